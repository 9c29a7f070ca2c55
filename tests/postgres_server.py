"""Fixtures for tests that need PostgreSQL. Such a test never skips: a server is found or started.

- `postgres_url`: a server for the whole session, shared by the processes of pytest-xdist. Do not stop it.
- `postgres_database`: a database of the test's own on that server, empty, dropped afterwards.
- `postgres_server`: a server of the test's own, to stop, kill and restart.

Under pytest-xdist the controlling process starts the server and tells the workers its URL; without it, the
first test that asks starts it. Either way it is stopped when the session ends, however it ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Protocol
from urllib.parse import urlsplit
from uuid import uuid4

import asyncpg
import pytest

from kagzi.testing.postgres import PostgresServer, postgres_for_tests

_SHARED_URL = pytest.StashKey[str]()
_WORKER_INPUT = "kagzi_postgres_url"


class XdistNode(Protocol):
    config: pytest.Config
    workerinput: dict[str, str]


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: XdistNode) -> None:
    node.workerinput[_WORKER_INPUT] = _shared_url(node.config)


@pytest.fixture(scope="session")
def postgres_url(pytestconfig: pytest.Config) -> str:
    return _shared_url(pytestconfig)


@pytest.fixture
def postgres_database(postgres_url: str) -> Iterator[str]:
    name = f"kagzi_test_{uuid4().hex}"
    # template0, as nobody can be connected to it, which would make PostgreSQL refuse to copy it.
    _execute(postgres_url, f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'UTF8'")
    try:
        yield urlsplit(postgres_url)._replace(path=f"/{name}").geturl()
    finally:
        # FORCE, as processes which a test has killed may still seem connected.
        _execute(postgres_url, f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


@pytest.fixture
def postgres_server() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


def _shared_url(config: pytest.Config) -> str:
    worker_input: dict[str, str] | None = getattr(config, "workerinput", None)
    if worker_input is not None:
        return worker_input[_WORKER_INPUT]
    if _SHARED_URL not in config.stash:
        stack = ExitStack()
        config.add_cleanup(stack.close)
        config.stash[_SHARED_URL] = stack.enter_context(postgres_for_tests())
    return config.stash[_SHARED_URL]


def _execute(url: str, statement: str) -> None:
    async def run() -> None:
        connection = await asyncpg.connect(url)
        try:
            await connection.execute(statement)
        finally:
            await connection.close()

    # In a thread, so that the fixture serves blocking and async tests and leaves the test's event loop alone.
    with ThreadPoolExecutor(max_workers=1) as executor:
        executor.submit(lambda: asyncio.run(run())).result()
