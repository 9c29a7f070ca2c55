"""A fresh database for every measurement, on a PostgreSQL that is durable or refused, or an SQLite file."""

from __future__ import annotations

import contextlib
import itertools
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import asyncpg

from benchmarks.environments import bench_directory

# Without any of these a commit may be lost, and what is measured is not a durable engine.
DURABLE = {"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on"}
REPORTED = ("server_version", "shared_buffers", "wal_sync_method", "max_connections")


class NotDurable(Exception):
    """The PostgreSQL server does not wait for its disk."""


@contextlib.contextmanager
def server(url: str | None) -> Iterator[str]:
    """The URL of the server to measure on: the given one, else one started for the purpose."""
    if url is not None:
        yield url
        return
    from kagzi.testing.postgres import PostgresServer

    with PostgresServer() as started:
        yield started.url


async def check_durable(url: str) -> dict[str, str]:
    """Its settings, for the record; refuses a server that does not keep what it has acknowledged."""
    connection = await asyncpg.connect(url)
    try:
        settings = {name: await connection.fetchval(f"SHOW {name}") for name in (*DURABLE, *REPORTED)}
    finally:
        await connection.close()
    for name, wanted in DURABLE.items():
        if settings[name] != wanted:
            raise NotDurable(f"{name} is {settings[name]}, so the numbers would mean nothing. Turn it on.")
    return settings


_numbers = itertools.count(1)


@contextlib.asynccontextmanager
async def fresh(store: str, server_url: str | None) -> AsyncIterator[str]:
    """The URL of a database nobody has used, removed afterwards."""
    if store == "sqlite":
        with tempfile.TemporaryDirectory(prefix="sqlite-", dir=bench_directory()) as directory:
            yield f"sqlite:///{Path(directory) / 'bench.db'}"
        return
    assert server_url is not None
    name = f"kagzi_bench_{next(_numbers)}"
    await _command(server_url, f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
    await _command(server_url, f"CREATE DATABASE {name}")
    # The last measurement's dirty pages are not written during the next one.
    await _command(server_url, "CHECKPOINT")
    try:
        yield with_database(server_url, name)
    finally:
        await _command(server_url, f"DROP DATABASE {name} WITH (FORCE)")


def with_database(url: str, name: str) -> str:
    return urlunsplit(urlsplit(url)._replace(path=f"/{name}"))


async def _command(url: str, sql: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(sql)
    finally:
        await connection.close()
