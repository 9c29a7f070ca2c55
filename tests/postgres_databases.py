"""Databases for tests, used again: making, migrating and dropping one takes longer than most tests.

A database that a test has given back is emptied. If the test has changed anything but rows (tables, functions, roles'
settings, statistics) or leaves a table full of dead ones, the database is dropped instead, so nothing of a test reaches
another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar
from urllib.parse import urlsplit
from uuid import uuid4

import asyncpg

from kagzi.store.postgres.store import PostgresStore

T = TypeVar("T")

# Whatever is made, changed or dropped by a statement has a row of another number or of another transaction afterwards.
_SHAPE = """
SELECT md5(string_agg(name, ',' ORDER BY name)) FROM (
    SELECT concat('c', oid, ':', xmin, ':', reltuples) AS name FROM pg_class WHERE oid >= 16384
    UNION ALL SELECT concat('a', attrelid, ':', attnum, ':', xmin) FROM pg_attribute WHERE attrelid >= 16384
    UNION ALL SELECT concat('p', oid, ':', xmin) FROM pg_proc WHERE oid >= 16384
    UNION ALL SELECT concat('t', oid, ':', xmin) FROM pg_trigger
    UNION ALL SELECT concat('n', oid, ':', xmin) FROM pg_namespace
    UNION ALL SELECT concat('k', oid, ':', xmin) FROM pg_constraint WHERE oid >= 16384
    UNION ALL SELECT concat('i', indexrelid, ':', indisvalid) FROM pg_index WHERE indexrelid >= 16384
    UNION ALL SELECT concat('d', oid, ':', xmin) FROM pg_database WHERE datname = current_database()
    UNION ALL SELECT concat('s', setrole, ':', setconfig) FROM pg_db_role_setting AS s
        JOIN pg_database AS d ON d.oid = s.setdatabase WHERE d.datname = current_database()
    UNION ALL SELECT concat('v', count(*)) FROM pg_statistic WHERE starelid >= 16384
    UNION ALL SELECT concat('l', n) FROM pg_class, floor(pg_relation_size(oid) / 8388608) AS n
        WHERE relnamespace = 'kagzi'::regnamespace AND relkind = 'r'
    UNION ALL SELECT concat('m', m) FROM kagzi.migrations AS m
    UNION ALL SELECT concat('x', name, encode(value, 'hex')) FROM kagzi.secrets
) AS everything
"""
_OTHERS = """
SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
"""
_KEPT = ("migrations", "secrets")


class Emptied:
    """A migrated database, and how to empty it again."""

    def __init__(self, url: str, shape: str, statements: str, connection: asyncpg.Connection) -> None:
        self.url = url
        self._shape = shape
        self._statements = statements
        self._connection = connection  # kept: a new one takes PostgreSQL longer than all that is asked on it

    async def empty(self, connection: asyncpg.Connection) -> bool:
        """Returns whether it is as it was in the beginning."""
        if await connection.fetchval(_SHAPE) != self._shape:
            return False
        await connection.execute(self._statements)
        return True

    async def recycle(self) -> bool:
        try:
            return await self._alone()
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
            # Tests end connections, too, and not only their own.
            self._connection.terminate()
            self._connection = await asyncpg.connect(self.url, timeout=30)
            return await self._alone()

    async def close(self) -> None:
        self._connection.terminate()

    async def _alone(self) -> bool:
        await self._connection.execute(_OTHERS)  # processes that a test has killed may still hold locks
        return await self.empty(self._connection)


class Databases:
    """The databases of one process of the suite."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._free: list[Emptied] = []
        self._loop = asyncio.new_event_loop()  # of the connections that are kept

    def take(self) -> Emptied:
        return self._free.pop() if self._free else self._run(self._make)

    def give_back(self, database: Emptied) -> None:
        try:
            whole = self._run(database.recycle)
        except (asyncpg.PostgresError, OSError, TimeoutError):
            whole = False
        if whole:
            self._free.append(database)
        else:
            self._drop(database)

    def close(self) -> None:
        while self._free:
            self._drop(self._free.pop())
        self._loop.close()

    def _drop(self, database: Emptied) -> None:
        self._run(database.close)
        drop_database(database.url, self._url)

    def _run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        with ThreadPoolExecutor(max_workers=1) as executor:
            return executor.submit(lambda: self._loop.run_until_complete(work())).result()

    async def _make(self) -> Emptied:
        url = await _create(self._url)
        store = PostgresStore(url)
        await store.open()
        await store.close()
        connection = await asyncpg.connect(url)
        tables = await connection.fetch(
            "SELECT tablename AS name FROM pg_tables WHERE schemaname = 'kagzi' AND tablename <> ALL ($1)", _KEPT
        )
        # DELETE, not TRUNCATE: for a few rows it is the faster of the two. Without triggers: those of the product
        # note ends, and refuse changes.
        statements = ["SET session_replication_role = replica"]
        statements += [f'DELETE FROM kagzi."{table["name"]}"' for table in tables]
        namespaces = await connection.fetchval("SELECT jsonb_agg(to_jsonb(n))::text FROM kagzi.namespaces AS n")
        statements += [
            "INSERT INTO kagzi.namespaces SELECT * FROM jsonb_populate_recordset(NULL::kagzi.namespaces,"
            f" $rows${namespaces}$rows$)"
        ]
        return Emptied(url, await connection.fetchval(_SHAPE), "; ".join(statements), connection)


def create_database(server_url: str) -> str:
    """Returns the URL of a new database without a table."""
    return in_thread(lambda: _create(server_url))


def drop_database(url: str, server_url: str) -> None:
    # FORCE, as processes which a test has killed may still seem connected.
    in_thread(lambda: _execute(server_url, f"DROP DATABASE IF EXISTS {urlsplit(url).path[1:]} WITH (FORCE)"))


async def _create(server_url: str) -> str:
    name = f"kagzi_test_{uuid4().hex}"
    # template0, as nobody can be connected to it, which would make PostgreSQL refuse to copy it.
    await _execute(server_url, f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'UTF8'")
    return urlsplit(server_url)._replace(path=f"/{name}").geturl()


async def _execute(url: str, statement: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


def in_thread(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Serves blocking and async tests alike, and leaves the test's event loop alone."""
    with ThreadPoolExecutor(max_workers=1) as executor:
        return executor.submit(lambda: asyncio.run(work())).result()
