"""`python -m benchmarks.search`: how long does a page of a search take with a million runs in the table?

The table is filled by plain SQL: nine in ten runs have completed, one in a hundred has failed, one in a thousand of
those with a rare error; some have tags, ids and schedules. Each filter is asked for several times, from the first page
on and from the middle of the table, those that match nothing too. What is measured is a page of the store: a search
that has to go on asks for the next one.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sqlite3
import sys
import time
from collections.abc import Iterator

import asyncpg

from benchmarks import databases
from kagzi.api.workflows import RunFilter
from kagzi.core.instant import SECOND
from kagzi.core.page import Cursor
from kagzi.core.run import RunStatus
from kagzi.store.postgres.store import PostgresStore
from kagzi.store.protocol.store import Store
from kagzi.store.sqlite.store import SqliteStore

MOST_MS = 50.0
_PAGE = 21
_SCHEDULE = "0190a5f2-7c3e-7d31-9a51-0c8e6b1f2a44"
_PARENT = "0190a5f2-7c3e-7d31-9a51-0c8e6b1f2a45"
_DAY = 86_400 * SECOND
_ERROR = '{"type":"shop.%s","message":"no","traceback":"' + "x" * 1500 + '"}'

_ROWS = """
SELECT n, {start} + n * 1000 AS at, {id} AS id,
       CASE WHEN n % 100 = 7 THEN 'FAILED' WHEN n % 1000 = 8 THEN 'CANCELLED' WHEN n % 50 = 9 THEN 'SLEEPING'
            ELSE 'COMPLETED' END AS status
FROM {numbers}
"""
_INSERT = """
INSERT INTO {schema}workflow_runs (run_id, created_at, started_at, finished_at, claim_key, available_at, executions,
    namespace, task_queue, workflow_type, version, status, external_id, input, output, error, tags,
    schedule_group_id, parent_run_id)
SELECT r.id, r.at, r.at, CASE WHEN r.status <> 'SLEEPING' THEN r.at + 1000 END,
    CASE WHEN r.status = 'SLEEPING' THEN {never} END, CASE WHEN r.status = 'SLEEPING' THEN {never} END, 1, 'default',
    CASE WHEN r.n % 5 = 0 THEN 'mail' ELSE 'default' END, CASE WHEN r.n % 3 = 0 THEN 'refund' ELSE 'checkout' END, '1',
    r.status, CASE WHEN r.n % 10 = 0 THEN 'order-' || r.n END, {one}, {one},
    CASE WHEN r.status = 'FAILED' THEN CASE WHEN r.n % 100000 = 7 THEN {rare} ELSE {common} END
         WHEN r.status = 'CANCELLED' THEN {common} END,
    CASE WHEN r.n % 20 = 0 THEN '{{"batch":"' || (r.n / 1000) || '"}}' WHEN r.n % 20 = 1 THEN '{{"all":"yes"}}' END,
    CASE WHEN r.n % 50 = 3 THEN {schedule} END, CASE WHEN r.n % 50 = 4 THEN {parent} END
FROM ({rows}) AS r
"""


async def fill_postgres(url: str, count: int, start: int) -> None:
    identity = (
        f"(lpad(to_hex(({start} + n * 1000) / 1000), 12, '0') || '7' || substr(md5(n::text), 1, 3) || '8'"
        " || substr(md5(n::text), 4, 15))::uuid"
    )
    rows = _ROWS.format(start=start, id=identity, numbers=f"generate_series(1, {count}) AS n")
    blob = "convert_to('{}', 'UTF8')"
    statement = _INSERT.format(
        schema="kagzi.",
        never=start + 1000 * _DAY,
        one=r"'\x5b315d'::bytea",
        rare=blob.format(_ERROR % "CardDeclined"),
        common=blob.format(_ERROR % "Timeout"),
        schedule=f"'{_SCHEDULE}'::uuid",
        parent=f"'{_PARENT}'::uuid",
        rows=rows,
    )
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(statement)
        await connection.execute("VACUUM (ANALYZE) kagzi.workflow_runs, kagzi.run_tags")
        await connection.execute("CHECKPOINT")
    finally:
        await connection.close()


def fill_sqlite(url: str, count: int, start: int) -> None:
    identity = (
        f"substr(printf('%012x', ({start} + n * 1000) / 1000), 1, 8) || '-' ||"
        f" substr(printf('%012x', ({start} + n * 1000) / 1000), 9) || '-7000-8000-' || printf('%012x', n)"
    )
    numbers = f"(WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < {count}) SELECT n FROM c)"
    blob = "CAST('{}' AS BLOB)"
    statement = _INSERT.format(
        schema="",
        never=start + 1000 * _DAY,
        one="x'5b315d'",
        rare=blob.format(_ERROR % "CardDeclined"),
        common=blob.format(_ERROR % "Timeout"),
        schedule=f"'{_SCHEDULE}'",
        parent=f"'{_PARENT}'",
        rows=_ROWS.format(start=start, id=identity, numbers=numbers),
    )
    with contextlib.closing(sqlite3.connect(url.removeprefix("sqlite:///"), timeout=60)) as connection:
        connection.execute(statement)
        connection.commit()
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def searches(start: int, count: int) -> Iterator[tuple[str, RunFilter]]:
    """What is asked for; those with a star match nothing."""
    middle = start + count * 500
    yield "everything", RunFilter()
    yield "status FAILED", RunFilter(status=RunStatus.FAILED)
    yield "status RUNNING *", RunFilter(status=RunStatus.RUNNING)
    yield "status SLEEPING", RunFilter(status=RunStatus.SLEEPING)
    yield "workflow", RunFilter(workflow_type="refund")
    yield "workflow *", RunFilter(workflow_type="nobody")
    yield "queue *", RunFilter(task_queue="nobody")
    yield "workflow, status FAILED *", RunFilter(workflow_type="nobody", status=RunStatus.FAILED)
    yield "workflow, status SLEEPING *", RunFilter(workflow_type="nobody", status=RunStatus.SLEEPING)
    yield "tag of 50 runs", RunFilter(tags={"batch": "7"})
    yield "tag of one in 20 runs", RunFilter(tags={"all": "yes"})
    yield "tag *", RunFilter(tags={"batch": "none"})
    yield "tag, workflow *", RunFilter(tags={"all": "yes"}, workflow_type="nobody")
    yield "error, rare", RunFilter(error="CardDeclined")
    yield "error with its module", RunFilter(error="shop.Timeout")
    yield "error *", RunFilter(error="Nobody")
    yield "error, workflow *", RunFilter(error="Timeout", workflow_type="nobody")
    yield "id prefix of 11 runs", RunFilter(id_prefix="order-9999")
    yield "id prefix of one in 10 runs", RunFilter(id_prefix="order-")
    yield "id prefix *", RunFilter(id_prefix="invoice-")
    yield "schedule", RunFilter(schedule_id=_SCHEDULE)
    yield "schedule, status FAILED *", RunFilter(schedule_id=_SCHEDULE, status=RunStatus.FAILED)
    yield "parent", RunFilter(parent_run_id=_PARENT)
    yield "parent, workflow *", RunFilter(parent_run_id=_PARENT, workflow_type="nobody")
    yield "since", RunFilter(created_after=middle, workflow_type="refund")
    yield "until *", RunFilter(created_before=start - 10, workflow_type="refund")


async def measure(store: Store, start: int, count: int, repeat: int) -> bool:
    met = True
    at = f"{(start + count * 500) // 1000:012x}"
    middle = f"{at[:8]}-{at[8:]}-7000-8000-000000000000"
    for title, filter in searches(start, count):
        took: list[float] = []
        found = 0
        for cursor in (None, Cursor(middle), Cursor(middle, backward=True)):
            for _ in range(repeat):
                began = time.perf_counter()
                page = await store.runs.search(filter, cursor, _PAGE)
                took.append((time.perf_counter() - began) * 1000)
                found = max(found, len(page.runs))
        took.sort()
        p50, p95 = took[len(took) // 2], took[int(len(took) * 0.95)]
        met &= p95 <= MOST_MS
        print(
            f"  {title:32} {found:3} runs  p50 {p50:7.2f} ms  p95 {p95:7.2f} ms{'' if p95 <= MOST_MS else '  MISSED'}"
        )
    return met


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1_000_000)
    parser.add_argument("--repeat", type=int, default=20, help="how often each page is asked for")
    parser.add_argument("--store", choices=("sqlite", "postgres"), action="append")
    parser.add_argument("--url", help="a PostgreSQL server instead of one of its own")
    options = parser.parse_args()
    met = True
    start = int(time.time() * SECOND) - 30 * _DAY
    with (
        databases.server(options.url)
        if "sqlite" not in (options.store or ()) or len(options.store) > 1
        else (contextlib.nullcontext()) as server
    ):
        for name in options.store or ("sqlite", "postgres"):
            async with databases.fresh(name, server) as url:
                store: Store = SqliteStore(url.removeprefix("sqlite:///")) if name == "sqlite" else PostgresStore(url)
                await store.open()
                began = time.perf_counter()
                if name == "sqlite":
                    fill_sqlite(url, options.runs, start)
                else:
                    await fill_postgres(url, options.runs, start)
                print(f"{name}: {options.runs:,} runs, filled in {time.perf_counter() - began:.0f} s")
                met &= await measure(store, start, options.runs, options.repeat)
                await store.close()
    print(f"p95 of every page within {MOST_MS:g} ms: {'met' if met else 'MISSED'}")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
