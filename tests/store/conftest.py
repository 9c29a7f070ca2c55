"""A PostgreSQL database shared by the tests of a module: making one takes longer than most of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import asyncpg
import pytest


@pytest.fixture(scope="module")
def shared_database(postgres_url: str) -> Iterator[str]:
    name = f"kagzi_store_{uuid4().hex}"
    _in_thread(lambda: _execute(postgres_url, f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'UTF8'"))
    try:
        yield urlsplit(postgres_url)._replace(path=f"/{name}").geturl()
    finally:
        _in_thread(lambda: _execute(postgres_url, f"DROP DATABASE IF EXISTS {name} WITH (FORCE)"))


@pytest.fixture
def empty_database(shared_database: str) -> str:
    """The shared database without a row but those the migrations made, if it is migrated."""
    _in_thread(lambda: _wipe(shared_database))
    return shared_database


async def _execute(url: str, statement: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


async def _wipe(url: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        rows = await connection.fetch(
            "SELECT tablename FROM pg_tables WHERE schemaname = 'kagzi'"
            " AND tablename NOT IN ('namespaces', 'secrets', 'migrations')"
        )
        # DELETE, not TRUNCATE: for a few rows it is the faster of the two.
        statements = [f'DELETE FROM kagzi."{row["tablename"]}"' for row in rows]
        if statements:
            statements.append("UPDATE kagzi.namespaces SET on_failure = NULL, on_failure_queue = NULL")
        await connection.execute("; ".join(statements) or "SELECT")
    finally:
        await connection.close()


def _in_thread(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    # The test's own event loop is left alone.
    with ThreadPoolExecutor(max_workers=1) as executor:
        executor.submit(lambda: asyncio.run(work())).result()
