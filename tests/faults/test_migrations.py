"""Processes that start at once on an empty database: one migrates, all of them work."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import asyncpg
import pytest

from tests.warm import PIPE, Warm, clean_environ

# All wait for the same moment, so that they open the database at once and not as their interpreters come up.
STARTER = """
import asyncio, pathlib, sys, time
from kagzi import Kagzi
app = Kagzi(sys.argv[1])
@app.workflow
async def nothing() -> int:
    return 1
async def main() -> None:
    print("ready", flush=True)
    sys.stdin.readline()
    async with app:
        await nothing.start()
        print("opened", flush=True)
asyncio.run(main())
"""


PROCESSES = 5


def start_at_once(url: str, directory: Path, warm: Warm) -> None:
    program = directory / "starter.py"
    program.write_text(STARTER)
    processes = [
        warm.start([str(program), url], directory=directory, environ=clean_environ(), stdin=PIPE)
        for _ in range(PROCESSES)
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        for process in processes:
            out, errors = process.communicate(timeout=60)
            assert process.returncode == 0, errors
            assert "opened" in out
            assert not errors
    finally:
        for process in processes:
            process.kill()
            process.wait()


async def _postgres_counts(url: str) -> tuple[list[int], int]:
    connection = await asyncpg.connect(url)
    try:
        numbers = await connection.fetch("SELECT number FROM kagzi.migrations ORDER BY number")
        runs = await connection.fetchval("SELECT count(*) FROM kagzi.workflow_runs")
        return [row["number"] for row in numbers], runs
    finally:
        await connection.close()


def test_sqlite_is_migrated_once(tmp_path: Path, warm: Warm) -> None:
    for repetition in range(2):
        path = tmp_path / f"{repetition}.db"
        start_at_once(f"sqlite:///{path}", tmp_path, warm)
        connection = sqlite3.connect(path)
        try:
            numbers = [row[0] for row in connection.execute("SELECT number FROM schema_migrations ORDER BY number")]
            runs = connection.execute("SELECT count(*) FROM workflow_runs").fetchone()[0]
        finally:
            connection.close()
        assert numbers == list(range(1, len(numbers) + 1))
        assert runs == PROCESSES


@pytest.mark.postgres
def test_postgres_is_migrated_once(fresh_database: str, tmp_path: Path, warm: Warm) -> None:
    for _ in range(2):
        start_at_once(fresh_database, tmp_path, warm)
        numbers, runs = asyncio.run(_postgres_counts(fresh_database))
        assert numbers == list(range(1, len(numbers) + 1))
        assert runs == PROCESSES
        asyncio.run(_drop_schema(fresh_database))


async def _drop_schema(url: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute("DROP SCHEMA kagzi CASCADE")
    finally:
        await connection.close()
