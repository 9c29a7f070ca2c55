from __future__ import annotations

from collections.abc import AsyncIterator

import asyncpg
import pytest

from kagzi.store.postgres.store import PostgresStore
from kagzi.testing.clock import VirtualClock
from kagzi.testing.conformance import Bench


@pytest.fixture
async def bench(postgres_database: str) -> AsyncIterator[Bench]:
    """A store of the test's own, on a clock of its own."""
    clock = VirtualClock()
    store = PostgresStore(postgres_database, now=clock.now)
    await store.open()
    yield Bench(store, clock)
    await store.close()


@pytest.fixture
async def connection(postgres_database: str) -> AsyncIterator[asyncpg.Connection]:
    """Somebody else in the same database."""
    connection = await asyncpg.connect(postgres_database)
    yield connection
    await connection.close()
