"""Both stores pass the one suite."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from kagzi.core.instant import Instant
from kagzi.store.protocol import Store
from kagzi.store.sqlite import SqliteStore
from kagzi.testing.clock import VirtualClock
from kagzi.testing.conformance import *  # noqa: F403
from kagzi.testing.conformance import Bench

OpenStore = Callable[[Callable[[], Instant]], Store]


@pytest.fixture(
    params=["sqlite-file", "sqlite-memory", pytest.param("postgres", marks=pytest.mark.postgres)],
)
def new_store(request: pytest.FixtureRequest, tmp_path: Path) -> OpenStore:
    if request.param == "sqlite-file":
        return lambda now: SqliteStore(str(tmp_path / "kagzi.db"), now=now)
    if request.param == "sqlite-memory":
        return lambda now: SqliteStore(None, now=now)
    from kagzi.store.postgres.store import PostgresStore

    url: str = request.getfixturevalue("empty_database")
    return lambda now: PostgresStore(url, now=now)


@pytest.fixture
async def bench(new_store: OpenStore) -> AsyncIterator[Bench]:
    clock = VirtualClock()
    store = new_store(clock.now)
    await store.open()
    try:
        yield Bench(store, clock)
    finally:
        await store.close()
