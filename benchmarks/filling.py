"""Old rows for the tables: runs that finished long ago and runs that sleep until tomorrow, by plain SQL.

They share namespace and queue with the runs that are measured, and their ids are in order of time, as
those of real runs. Each finished run has a step; `old` names what does not belong to the measurement.
"""

from __future__ import annotations

import contextlib
import sqlite3

import asyncpg

OLD = "old"

# Instants are microseconds. The finished runs end over the last week, well within the retention of 30 days.
_WEEK = 7 * 86_400 * 1_000_000
_DAY = 86_400 * 1_000_000

_POSTGRES_IDS = """
CREATE TEMP TABLE numbers AS
SELECT n, at, (lpad(to_hex(at / 1000), 12, '0') || '7' || substr(md5(n::text), 1, 3)
               || '8' || substr(md5(n::text), 4, 15))::uuid AS id
FROM (SELECT n, (SELECT kagzi.clock()) - {age} + n * ({age} / ({count} + 1)) AS at
      FROM generate_series(1, {count}) AS n) AS numbered
"""
_SQLITE_IDS = """
CREATE TEMP TABLE numbers AS
WITH RECURSIVE counted(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM counted WHERE n < {count}),
timed AS (SELECT n, CAST(strftime('%s', 'now') AS INTEGER) * 1000000 - {age}
                    + n * ({age} / ({count} + 1)) AS at FROM counted),
hexed AS (SELECT n, at, printf('%012x', at / 1000) AS ms, lower(hex(randomblob(10))) AS noise FROM timed)
SELECT n, at, substr(ms, 1, 8) || '-' || substr(ms, 9) || '-7' || substr(noise, 1, 3) || '-8'
              || substr(noise, 4, 3) || '-' || substr(noise, 7, 12) AS id
FROM hexed
"""
_FINISHED = """
INSERT INTO {schema}workflow_runs (run_id, created_at, started_at, finished_at, executions, namespace,
    task_queue, workflow_type, version, status, input, output)
SELECT id, at, at, at + 1000, 1, 'default', 'default', 'old', '1', 'COMPLETED', {one}, {two} FROM numbers
"""
_STEPS = """
INSERT INTO {schema}step_runs (run_id, started_at, finished_at, attempt, completed_seq, namespace, step_id,
    kind, status, input, output)
SELECT id, at, at + 1000, 1, 1, 'default', 'old', 'FUNCTION', 'COMPLETED', {one}, {two} FROM numbers
"""
_SLEEPING = """
INSERT INTO {schema}workflow_runs (run_id, token, claim_key, available_at, created_at, started_at, executions,
    namespace, task_queue, workflow_type, version, status, input)
SELECT id, id, at + {day} + {age}, at + {day} + {age}, at, at, 1,
    'default', 'default', 'sleeper', '1', 'SLEEPING', {one}
FROM numbers
"""
_STATEMENTS = ((_FINISHED, _STEPS), (_SLEEPING,))


async def fill(url: str, *, finished: int, sleeping: int) -> None:
    """Add that many rows and let the database settle, as it would have on the way there."""
    if url.startswith("sqlite"):
        _fill_sqlite(url, (finished, sleeping))
    else:
        await _fill_postgres(url, (finished, sleeping))


async def _fill_postgres(url: str, counts: tuple[int, int]) -> None:
    blobs = {"one": r"'\x5b315d'::bytea", "two": r"'\x32'::bytea"}
    connection = await asyncpg.connect(url)
    try:
        for count, statements in zip(counts, _STATEMENTS, strict=True):
            await connection.execute(_POSTGRES_IDS.format(age=_WEEK, count=int(count)))
            for statement in statements:
                await connection.execute(statement.format(schema="kagzi.", age=_WEEK, day=_DAY, **blobs))
            await connection.execute("DROP TABLE numbers")
        await connection.execute("VACUUM (ANALYZE) kagzi.workflow_runs, kagzi.step_runs")
        await connection.execute("CHECKPOINT")
    finally:
        await connection.close()


def _fill_sqlite(url: str, counts: tuple[int, int]) -> None:
    blobs = {"one": "x'5b315d'", "two": "x'32'"}
    with contextlib.closing(sqlite3.connect(url.removeprefix("sqlite:///"), timeout=60)) as connection:
        for count, statements in zip(counts, _STATEMENTS, strict=True):
            connection.execute(_SQLITE_IDS.format(age=_WEEK, count=int(count)))
            for statement in statements:
                connection.execute(statement.format(schema="", age=_WEEK, day=_DAY, **blobs))
            connection.commit()
            connection.execute("DROP TABLE numbers")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
