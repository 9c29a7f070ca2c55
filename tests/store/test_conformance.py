"""Both stores pass the one suite."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from kagzi.store.sqlite import SqliteStore
from kagzi.testing.clock import VirtualClock
from kagzi.testing.conformance import *  # noqa: F403
from kagzi.testing.conformance import Bench
from tests.postgres_databases import Databases
from tests.store.shared import NewBench, shared_store

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def on_postgres(postgres_databases: Databases) -> AsyncIterator[NewBench]:
    async with shared_store(postgres_databases) as new:
        yield new


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def new_bench(request: pytest.FixtureRequest) -> NewBench:
    fixture = "on_sqlite" if request.param == "sqlite" else "on_postgres"
    found: NewBench = request.getfixturevalue(fixture)
    return found


@pytest_asyncio.fixture(loop_scope="module")
async def on_sqlite(sqlite_file: str) -> AsyncIterator[NewBench]:
    clock = VirtualClock()
    store = SqliteStore(sqlite_file, now=clock.now)
    await store.open()

    async def new() -> Bench:
        return Bench(store, clock)

    yield new
    await store.close()


@pytest_asyncio.fixture(loop_scope="module")
async def bench(new_bench: NewBench) -> Bench:
    return await new_bench()
