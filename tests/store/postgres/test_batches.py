"""The suite of all stores once more, with company in every batch.

A write that is alone in its batch has statements of its own, and most tests of the suite send them one by one. Here
each comes with a second one, so the statements over arrays have to do the same.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from random import Random
from urllib.parse import urlsplit
from uuid import uuid4

import asyncpg
import pytest

from kagzi.api.operations import Chunk, ChunkAnswer, StartRun, Write
from kagzi.errors import InvalidRequest
from kagzi.store.postgres.store import PostgresStore
from kagzi.store.protocol import Applied
from kagzi.testing.clock import VirtualClock
from kagzi.testing.conformance import (  # noqa: F401
    Bench,
    TestBirth,
    TestChunks,
    TestExternalIds,
    TestLeases,
    TestRunIds,
    TestRunRetries,
    TestRuns,
    TestSteps,
)
from tests.postgres_server import _execute

pytestmark = pytest.mark.postgres


class SociableStore(PostgresStore):
    async def apply(self, writes: Sequence[Write]) -> Applied:
        somebody = str(uuid4())
        company: list[Write] = []
        if any(isinstance(write, StartRun) for write in writes):
            company.append(
                StartRun(namespace="other", run_id=somebody, workflow_type="other", task_queue="other", version="1")
            )
        if any(isinstance(write, Chunk) for write in writes):
            company.append(Chunk(namespace="other", run_id=somebody, token=somebody, operations=()))
        applied = await super().apply([*company, *writes])
        return Applied(applied.answers[len(company) :], applied.woken)


@pytest.fixture(scope="module")
def database(postgres_url: str) -> Iterator[str]:
    """One database for all of these tests: making and migrating one takes longer than most of them."""
    name = f"kagzi_batches_{uuid4().hex}"
    _execute(postgres_url, f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'UTF8'")
    yield urlsplit(postgres_url)._replace(path=f"/{name}").geturl()
    _execute(postgres_url, f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
async def bench(database: str) -> AsyncIterator[Bench]:
    clock = VirtualClock()
    store = SociableStore(database, now=clock.now)
    await store.open()
    connection = await asyncpg.connect(database)
    await connection.execute("DELETE FROM kagzi.workflow_runs; DELETE FROM kagzi.step_runs")
    await connection.execute("DELETE FROM kagzi.workflow_payloads; DELETE FROM kagzi.workers")
    await connection.close()
    yield Bench(store, clock)
    await store.close()


async def test_a_key_that_is_too_long_is_a_bad_value_and_the_others_pass(bench: Bench) -> None:
    """The engine lets no such id pass; should one come another way, it is not taken for a fault of ours."""
    chance = Random(1)
    too_long = "".join(chr(chance.randrange(0x10000, 0x110000)) for _ in range(1000))
    one, other = [await bench.started_claim() for _ in range(2)]
    chunks = [bench.chunk(one, bench.completed(too_long, 1)), bench.chunk(other, bench.completed("short", 1))]
    bad, good = await bench.apply(chunks)
    assert isinstance(bad, InvalidRequest)
    assert good is ChunkAnswer.DONE
