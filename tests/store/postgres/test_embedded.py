"""The suite once more, with asyncpg as programs that embed the engine have it: the others expect lists, as a server
does (tests/conftest.py)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sized

import pytest
from asyncpg.protocol import protocol

from kagzi.store.postgres.store import PostgresStore
from kagzi.testing.clock import VirtualClock
from kagzi.testing.conformance import *  # noqa: F403
from kagzi.testing.conformance import Bench

pytestmark = pytest.mark.postgres


@pytest.fixture
async def bench(empty_database: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    monkeypatch.setattr(protocol, "IterableABC", Iterable)
    monkeypatch.setattr(protocol, "SizedABC", Sized)
    clock = VirtualClock()
    store = PostgresStore(empty_database, now=clock.now)
    await store.open()
    try:
        yield Bench(store, clock)
    finally:
        await store.close()
