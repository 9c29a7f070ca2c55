"""The suite of all stores once more, with company in every batch.

A write that is alone in its batch has statements of its own, and most tests of the suite send them one by one. Here
each comes with a second one, so the statements over arrays have to do the same.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from random import Random
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio

from kagzi.api.operations import Chunk, ChunkAnswer, SendSignal, StartRun, Write
from kagzi.errors import InvalidRequest
from kagzi.store.postgres.store import PostgresStore
from kagzi.store.protocol.changes import Applied
from kagzi.testing.conformance import *  # noqa: F403
from kagzi.testing.conformance import Bench
from tests.postgres_databases import Databases
from tests.store.shared import NewBench, shared_store

# These count the runs of every namespace, the company's among them.
del TestLoad, TestRetention, TestSurvey, TestUnservedRuns  # noqa: F821

pytestmark = [pytest.mark.postgres, pytest.mark.asyncio(loop_scope="module")]


class SociableStore(PostgresStore):
    """Somebody else's writes are in every batch."""

    def __init__(self, url: str, **options: Any) -> None:
        super().__init__(url, **options)
        self._alone = self.work.apply
        self.work.apply = self._in_company  # type: ignore[method-assign]

    async def _in_company(self, writes: Sequence[Write]) -> Applied:
        somebody = str(uuid4())
        company: list[Write] = []
        if any(isinstance(write, StartRun) for write in writes):
            company.append(
                StartRun(namespace="other", run_id=somebody, workflow_type="other", task_queue="other", version="1")
            )
        if any(isinstance(write, Chunk) for write in writes):
            company.append(Chunk(namespace="other", run_id=somebody, token=somebody, operations=()))
        if any(isinstance(write, SendSignal) for write in writes):
            company.append(SendSignal(namespace="other", run_id=somebody, key=somebody, name="other", value=b"1"))
        applied = await self._alone([*company, *writes])
        return Applied(applied.answers[len(company) :], applied.woken)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sociable(postgres_databases: Databases) -> AsyncIterator[NewBench]:
    async with shared_store(postgres_databases, kind=SociableStore) as new:
        yield new


@pytest_asyncio.fixture(loop_scope="module")
async def bench(sociable: NewBench) -> Bench:
    return await sociable()


async def test_a_key_that_is_too_long_is_a_bad_value_and_the_others_pass(bench: Bench) -> None:
    """The engine lets no such id pass; should one come another way, it is not taken for a fault of ours."""
    chance = Random(1)
    too_long = "".join(chr(chance.randrange(0x10000, 0x110000)) for _ in range(1000))
    one, other = [await bench.started_claim() for _ in range(2)]
    chunks = [bench.chunk(one, bench.completed(too_long, 1)), bench.chunk(other, bench.completed("short", 1))]
    bad, good = await bench.apply(chunks)
    assert isinstance(bad, InvalidRequest)
    assert good is ChunkAnswer.DONE
