"""Fixtures for tests that need PostgreSQL. Such a test never skips: a server is found or started.

- `postgres_url`: a server for the whole session, shared by the processes of pytest-xdist. Do not stop it.
- `postgres_database`: a database on that server which nobody else uses meanwhile, migrated, without a run.
- `fresh_database`: one that was never used: not migrated either, and dropped afterwards.
- `postgres_server`: a server of the test's own, to stop, kill and restart.

Under pytest-xdist the controlling process starts the server and tells the workers its URL; without it, the
first test that asks starts it. Either way it is stopped when the session ends, however it ends.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Protocol

import pytest

from kagzi.testing.postgres import URL_VARIABLE, PostgresServer
from tests.postgres_databases import Databases, create_database, drop_database

_SHARED_URL = pytest.StashKey[str]()
_WORKER_INPUT = "kagzi_postgres_url"
# Nobody pulls the plug on the shared server, so it need not wait for the disk; those that tests kill are durable. And
# nobody looks at its tables behind the back of a test: a plan is that of the statistics that the test has asked for.
_NEVER_KILLED = {
    "fsync": "off",
    "full_page_writes": "off",
    "max_wal_size": "8GB",
    "checkpoint_timeout": "1h",
    "autovacuum": "off",
}


class XdistNode(Protocol):
    config: pytest.Config
    workerinput: dict[str, str]


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: XdistNode) -> None:
    node.workerinput[_WORKER_INPUT] = _shared_url(node.config)


@pytest.fixture(scope="session")
def postgres_url(pytestconfig: pytest.Config) -> str:
    return _shared_url(pytestconfig)


@pytest.fixture(scope="session")
def postgres_databases(postgres_url: str) -> Iterator[Databases]:
    databases = Databases(postgres_url)
    yield databases
    databases.close()


@pytest.fixture
def postgres_database(postgres_databases: Databases) -> Iterator[str]:
    database = postgres_databases.take()
    yield database.url
    postgres_databases.give_back(database)


@pytest.fixture
def fresh_database(postgres_url: str) -> Iterator[str]:
    url = create_database(postgres_url)
    yield url
    drop_database(url, postgres_url)


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
        config.stash[_SHARED_URL] = (
            os.environ.get(URL_VARIABLE) or stack.enter_context(PostgresServer(settings=_NEVER_KILLED)).url
        )
    return config.stash[_SHARED_URL]
