from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from urllib.parse import urlsplit
from uuid import uuid4

import asyncpg
import pytest

from kagzi.store.postgres.store import PostgresStore
from kagzi.testing.clock import VirtualClock
from kagzi.testing.conformance import *  # noqa: F403
from kagzi.testing.conformance import Bench
from tests.postgres_server import _execute as execute

pytestmark = pytest.mark.postgres


@pytest.fixture(scope="module")
def database(postgres_url: str) -> Iterator[str]:
    """One database for all of these tests: making and migrating one takes longer than most of them."""
    name = f"kagzi_conformance_{uuid4().hex}"
    execute(postgres_url, f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'UTF8'")
    yield urlsplit(postgres_url)._replace(path=f"/{name}").geturl()
    execute(postgres_url, f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
async def bench(database: str) -> AsyncIterator[Bench]:
    clock = VirtualClock()
    store = PostgresStore(database, now=clock.now)
    await store.open()
    await _empty(database)
    yield Bench(store, clock)
    await store.close()


async def _empty(database: str) -> None:
    connection = await asyncpg.connect(database)
    for table in ("workflow_runs", "workflow_payloads", "step_runs", "workers", "worker_events", "namespaces"):
        await connection.execute(f"DELETE FROM kagzi.{table}")
    await connection.execute("INSERT INTO kagzi.namespaces (namespace) VALUES ('default')")
    await connection.close()
