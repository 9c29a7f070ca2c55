"""Lets every store of a test run go through a real PgBouncer: `pytest -p scripts.pgbouncer_plugin`.

Tests also look at the database themselves; they do so directly. Stores in processes of their own do as well.
"""

from __future__ import annotations

import os

import msgspec
import pytest

from kagzi.store.postgres import connection
from kagzi.store.postgres.address import Address, read_address
from kagzi.testing.pgbouncer import PgBouncer
from kagzi.testing.postgres import URL_VARIABLE, PostgresServer


def pytest_configure(config: pytest.Config) -> None:
    server = PostgresServer()
    server.start()
    config.add_cleanup(server.close)
    bouncer = PgBouncer(server, pool_size=4)
    bouncer.start()
    config.add_cleanup(bouncer.close)
    os.environ[URL_VARIABLE] = server.url

    def through_pgbouncer(url: str) -> Address:
        address = read_address(url)
        servers = tuple(one.replace(server.host, bouncer.host) for one in address.servers)
        return msgspec.structs.replace(address, servers=servers)

    setattr(connection, "read_address", through_pgbouncer)  # noqa: B010 (it is not the module's to give)
