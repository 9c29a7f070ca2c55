"""A PostgreSQL store that the tests of a module use one after the other: connecting, and preparing every statement
anew, takes longer than most of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from kagzi.core.instant import Instant
from kagzi.store.postgres.store import PostgresStore
from kagzi.testing.clock import VirtualClock
from kagzi.testing.conformance import Bench
from tests.postgres_databases import Databases

NewBench = Callable[[], Awaitable[Bench]]


@asynccontextmanager
async def shared_store(
    databases: Databases, options: str = "", kind: type[PostgresStore] = PostgresStore
) -> AsyncIterator[NewBench]:
    """Each call empties the database and gives a bench with a clock of its own."""
    clock = VirtualClock()

    def now() -> Instant:
        return clock.now()

    database = databases.take()
    store = kind(database.url + options, now=now)
    await store.open()
    connection = await asyncpg.connect(database.url)

    async def new() -> Bench:
        nonlocal clock
        assert await database.empty(connection), "a test of this module has changed the tables"
        clock = VirtualClock()
        return Bench(store, clock)

    try:
        yield new
    finally:
        await connection.close()
        await store.close()
        databases.give_back(database)


class OneConnection:
    """A pool for the nouns of a store, of one connection that is the test's own."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def run(self, work: Any) -> Any:
        return await work(self._connection)
