from __future__ import annotations

from collections.abc import AsyncIterator

import asyncpg
import pytest

from kagzi.store.postgres.store import PostgresStore
from kagzi.testing.clock import VirtualClock
from kagzi.testing.conformance import Bench
from tests.campaigns import LONG


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


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves each test of all stores one set of parameters where it is run as behind a pooler.

    They choose values, and what is kept in sessions is seen with any. Campaigns have them all.
    """
    if LONG:
        return
    seen: set[tuple[object, str]] = set()
    others = []
    for item in items:
        if item.path.name == "test_pgbouncer.py" and isinstance(item, pytest.Function) and item.cls is not None:
            name = (item.cls, item.originalname)
            if name in seen:
                others.append(item)
            seen.add(name)
    if others:
        config.hook.pytest_deselected(items=others)
        left = set(others)
        items[:] = [item for item in items if item not in left]
