"""The server that all other PostgreSQL tests stand on: it must be durable, and go away when it should."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import asyncpg
import pytest

from kagzi.testing.postgres import (
    BIN_VARIABLE,
    URL_VARIABLE,
    PostgresServer,
    PostgresUnavailable,
    find_binaries,
    postgres_for_tests,
    wheel_binaries,
)

pytestmark = pytest.mark.postgres


async def fetch(url: str, query: str) -> object:
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetchval(query)
    finally:
        await connection.close()


async def execute(url: str, statement: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


async def test_database_is_empty_and_gone_afterwards(postgres_url: str, postgres_database: str) -> None:
    name = await fetch(postgres_database, "SELECT current_database()")
    assert name != await fetch(postgres_url, "SELECT current_database()")
    tables = "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'"
    assert await fetch(postgres_database, tables) == 0
    await execute(postgres_database, "CREATE TABLE left_behind (id int)")


async def test_no_table_is_left_from_another_test(postgres_database: str) -> None:
    assert await fetch(postgres_database, "SELECT to_regclass('left_behind')") is None


async def test_restart_after_immediate_stop_keeps_committed_data(postgres_server: PostgresServer) -> None:
    url = postgres_server.url
    await execute(url, "CREATE TABLE kept (id int)")
    await execute(url, "INSERT INTO kept VALUES (1), (2), (3)")

    await asyncio.to_thread(postgres_server.stop, "immediate")
    assert postgres_server.pid is None
    with pytest.raises(OSError, match="Connect call failed"):
        await asyncpg.connect(url)
    await asyncio.to_thread(postgres_server.start)

    assert postgres_server.url == url
    assert await fetch(url, "SELECT count(*) FROM kept") == 3


async def test_another_program_may_run_it(postgres_server: PostgresServer) -> None:
    program, used = (postgres_server.directory / name for name in ("program", "used"))
    program.write_text(f'#!/bin/sh\necho "$@" >{used}\nexec {postgres_server.bin_dir / "postgres"} "$@"\n')
    program.chmod(0o755)
    await asyncio.to_thread(postgres_server.stop, "fast")
    await asyncio.to_thread(lambda: postgres_server.start(program=program))
    assert await fetch(postgres_server.url, "SELECT 1") == 1
    assert "-D" in used.read_text()


async def test_a_server_is_durable_and_ready_for_many() -> None:
    with PostgresServer(settings={"shared_buffers": "32MB"}) as server:
        for setting in ("fsync", "synchronous_commit", "full_page_writes"):
            assert await fetch(server.url, f"SHOW {setting}") == "on"
        assert await fetch(server.url, "SHOW shared_buffers") == "32MB"
        assert await fetch(server.url, "SHOW max_connections") == "300"
        assert await fetch(server.socket_url, "SELECT inet_server_addr()") is None
        assert await fetch(server.url, "SELECT host(inet_server_addr())") == "127.0.0.1"
        if os.name == "posix":  # never as root
            assert (server.directory / "data" / "postmaster.pid").stat().st_uid != 0


async def test_wheel_serves_where_the_machine_has_no_postgres(monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = wheel_binaries()
    assert wheel is not None
    monkeypatch.setattr("kagzi.testing.postgres.machine_binaries", lambda: None)
    monkeypatch.delenv(BIN_VARIABLE, raising=False)
    assert find_binaries() == wheel
    with PostgresServer() as server:
        assert str(await fetch(server.url, "SELECT version()")).startswith("PostgreSQL")


async def test_wheel_serves_from_where_another_user_cannot_reach_it(tmp_path: Path) -> None:
    """As when root's clone, with its virtual environment, lies below /root."""
    wheel = wheel_binaries()
    assert wheel is not None
    package = wheel.parent.parent
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    subprocess.run(["cp", "-R", package, package.with_name(f"{package.name}.libs"), closed], check=True)
    moved = closed / package.name / wheel.parent.name / "bin"
    with PostgresServer(bin_dir=moved) as server:
        assert await fetch(server.url, "SHOW fsync") == "on"


def test_named_server_is_used_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(URL_VARIABLE, "postgresql://someone@somewhere/db")
    with postgres_for_tests() as url:
        assert url == "postgresql://someone@somewhere/db"


def test_wrong_binaries_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(BIN_VARIABLE, str(tmp_path))
    with pytest.raises(PostgresUnavailable, match=BIN_VARIABLE):
        find_binaries()


def test_a_failed_start_says_why_and_leaves_nothing() -> None:
    server = PostgresServer(settings={"no_such_setting": "1"})
    with pytest.raises(PostgresUnavailable, match="no_such_setting"), server:
        pass
    with pytest.raises(PostgresUnavailable, match="not started"):
        _ = server.directory


OWNER = """
from kagzi.testing.postgres import PostgresServer
server = PostgresServer()
server.start()
print(server.directory, server.url, flush=True)
input()
"""


@pytest.mark.faults
async def test_goes_away_when_its_owner_is_killed() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        directory, url = (await asyncio.to_thread(owner.stdout.readline)).split()
        assert await fetch(url, "SELECT 1") == 1
        owner.kill()
    # Both loops are bounded by the timeout of the test. The directory goes first: the signal is sent by then,
    # but the processes of the server may need another moment.
    while Path(directory).exists():
        await asyncio.sleep(0.02)
    while await answers(url):
        await asyncio.sleep(0.02)


async def answers(url: str) -> bool:
    try:
        return await fetch(url, "SELECT 1") == 1
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
        return False
