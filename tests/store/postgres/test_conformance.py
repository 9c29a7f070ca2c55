from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from kagzi.store.postgres.store import PostgresStore
from kagzi.testing.clock import VirtualClock
from kagzi.testing.conformance import *  # noqa: F403
from kagzi.testing.conformance import Bench

pytestmark = pytest.mark.postgres


@pytest.fixture
async def bench(postgres_database: str) -> AsyncIterator[Bench]:
    clock = VirtualClock()
    store = PostgresStore(postgres_database, now=clock.now)
    await store.open()
    yield Bench(store, clock)
    await store.close()
