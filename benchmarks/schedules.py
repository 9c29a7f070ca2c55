"""`python -m benchmarks.schedules`: what do many schedules cost, when they are due together and when they are not?

On both stores. First ten thousand schedules that are due in the same moment, beside a caller who starts one run after
the other and waits for its result: how long until all have fired, once each, and how long the caller's slowest run
takes. Then a hundred thousand schedules that are due some day, beside none: what an idle process does, in processor
time and, on PostgreSQL, in transactions and in rows that are read. Exit code 1 if a bar is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import sqlite3
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import asyncpg

from benchmarks.server.bars import Verdict, table
from kagzi import Kagzi, Workflow
from kagzi.clock import SystemClock
from kagzi.core.instant import SECOND, Instant
from kagzi.store.postgres.store import PostgresStore
from kagzi.store.sqlite.store import SqliteStore
from kagzi.testing.postgres import PostgresServer

MOST_SECONDS_TO_FIRE = 5.0
MOST_SECONDS_LATER = 1.0
MOST_IDLE_CPU_PERCENT = 1.0  # more than without any schedule
MOST_ROWS_MORE_A_MINUTE = 600.0
HOUR = 3600 * SECOND

# $1 how many, $2 when they are looked at, $3 the firing that is due then, and which is the newest.
SQLITE = (
    """
    WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?1)
    INSERT INTO workflow_runs (run_id, namespace, task_queue, workflow_type, version, status, created_at, available_at,
        next_fire_at, cron_expr, timezone, max_catchup, input)
    SELECT printf('00000000-0000-7000-8000-%012x', i), 'default', 'reports', 'report', '1', 'SCHEDULED', 1, ?2, ?3,
        'every 1h', 'UTC', 1, x'5b5d' FROM n
    """,
    """
    INSERT INTO schedules (namespace, schedule_id, overlap, jitter, fired_until, updated_at)
    SELECT namespace, run_id, 'allow', 0, ?3 - 1, 1 FROM workflow_runs WHERE status = 'SCHEDULED' AND ?1 + ?2 > 0
    """,
)
POSTGRES = (
    """
    INSERT INTO kagzi.workflow_runs (run_id, namespace, task_queue, workflow_type, version, status, created_at,
        available_at, next_fire_at, cron_expr, timezone, max_catchup, input)
    SELECT ('00000000-0000-7000-8000-' || lpad(to_hex(i), 12, '0'))::uuid, 'default', 'reports', 'report', '1',
        'SCHEDULED', 1, $2::bigint, $3::bigint, 'every 1h', 'UTC', 1, '[]' FROM generate_series(1, $1::integer) AS i
    """,
    """
    INSERT INTO kagzi.schedules (namespace, schedule_id, overlap, jitter, fired_until, updated_at)
    SELECT namespace, run_id, 'allow', 0, $3::bigint - 1, 1 FROM kagzi.workflow_runs
    WHERE status = 'SCHEDULED' AND $1::integer + $2::bigint > 0
    """,
)
IS_DUE = "SELECT EXISTS (SELECT 1 FROM {0}workflow_runs WHERE status = 'SCHEDULED' AND available_at <= {1})"
FIRED = "SELECT count(*), count(DISTINCT schedule_group_id) FROM {0}workflow_runs WHERE scheduled_for IS NOT NULL"
ROWS_READ = """
SELECT coalesce(sum(coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0)), 0)::bigint AS rows,
       (SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()) AS transactions
FROM pg_stat_user_tables WHERE schemaname = 'kagzi'
"""


class Database:
    """Looks into the database beside the engine that is measured."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.name = "SQLite" if url.startswith("sqlite") else "PostgreSQL"
        self._path = url.removeprefix("sqlite:///")

    async def fill(self, schedules: int, look_at: Instant, due: Instant) -> None:
        store = SqliteStore(self._path) if self.name == "SQLite" else PostgresStore(self.url)
        await store.open()
        await store.close()
        if self.name == "SQLite":
            connection = sqlite3.connect(self._path)
            for statement in SQLITE:
                connection.execute(statement, (schedules, look_at, due))
            connection.commit()
            connection.close()
            return
        session = await asyncpg.connect(self.url)
        for statement in POSTGRES:
            await session.execute(statement, schedules, look_at, due)
        await session.execute("VACUUM ANALYZE")
        await session.close()

    async def ask(self, statement: str) -> Sequence[int]:
        if self.name == "SQLite":
            return await asyncio.to_thread(self._ask, statement)
        session = await asyncpg.connect(self.url)
        try:
            row = await session.fetchrow(statement)
        finally:
            await session.close()
        assert row is not None
        return tuple(row)

    def _ask(self, statement: str) -> Sequence[int]:
        connection = sqlite3.connect(self._path)
        try:
            answer: tuple[int, ...] = connection.execute(statement).fetchone()
        finally:
            connection.close()
        return answer


def make_app(url: str) -> tuple[Kagzi, Workflow[[int], int]]:
    app = Kagzi(url)

    @app.step
    async def echo(number: int) -> int:
        return number

    @app.workflow
    async def ping(number: int) -> int:
        return await echo(number)

    return app, ping


async def fire_together(url: str, schedules: int) -> list[Verdict]:
    """How long until schedules that are due together have fired, and how much longer another run takes meanwhile."""
    database = Database(url)
    now = SystemClock().now()
    look_at = now + 6 * SECOND + schedules * SECOND // 5000
    await database.fill(schedules, look_at, now - now % HOUR)
    prefix = "" if database.name == "SQLite" else "kagzi."
    app, ping = make_app(url)
    taken: dict[bool, list[float]] = {False: [0.0], True: [0.0]}  # before they are due, and from then on
    over = asyncio.Event()

    async def call() -> None:
        while not over.is_set():
            firing, begun = SystemClock().now() >= look_at - SECOND // 10, time.perf_counter()
            await ping.run(1)
            taken[firing].append(time.perf_counter() - begun)
            await asyncio.sleep(0.01)

    async with app, app.worker():
        await ping.run(1)
        caller = asyncio.create_task(call())
        await asyncio.sleep((look_at - SystemClock().now()) / SECOND)
        while (await database.ask(IS_DUE.format(prefix, look_at)))[0]:  # noqa: ASYNC110 - nobody could tell us
            await asyncio.sleep(0.02)
        seconds = (SystemClock().now() - look_at) / SECOND
        over.set()
        await caller
    fired = tuple(await database.ask(FIRED.format(prefix)))
    assert fired == (schedules, schedules), f"{schedules} were due; runs, and schedules that have one: {fired}"
    title = f"{database.name}: {schedules:,} schedules due together"
    return [
        Verdict(f"{title} have fired after", seconds, "s", MOST_SECONDS_TO_FIRE),
        Verdict("  the slowest of other runs meanwhile", max(taken[True]), "s", max(taken[False]) + MOST_SECONDS_LATER),
    ]


async def idle(url: str, schedules: int, seconds: float) -> tuple[float, float, float]:
    """What an idle process does: percent of a core, transactions and rows read a minute, the last two on PostgreSQL."""
    database = Database(url)
    now = SystemClock().now()
    if schedules:
        await database.fill(schedules, now + 24 * HOUR, now + 24 * HOUR)
    app, ping = make_app(url)
    async with app, app.worker():
        await ping.run(1)
        await asyncio.sleep(2)
        statistics = database.name != "SQLite"
        before = await database.ask(ROWS_READ) if statistics else (0, 0)
        begun, cpu = time.perf_counter(), time.process_time()
        await asyncio.sleep(seconds)
        cpu, lasted = time.process_time() - cpu, time.perf_counter() - begun
        await asyncio.sleep(1)  # backends tell of what they have read about once a second
        after = await database.ask(ROWS_READ) if statistics else (0, 0)
    minutes = (lasted + 1) / 60
    return cpu / lasted * 100, (after[1] - before[1]) / minutes, (after[0] - before[0]) / minutes


async def measure(first: str, second: str, third: str, due: int, kept: int, seconds: float) -> list[Verdict]:
    verdicts = await fire_together(first, due)
    without, with_them = await idle(second, 0, seconds), await idle(third, kept, seconds)
    title = f"  idle with {kept:,} schedules, more than with none"
    verdicts.append(Verdict(f"{title}: processor", with_them[0] - without[0], "%", MOST_IDLE_CPU_PERCENT))
    if not first.startswith("sqlite"):
        verdicts += [
            Verdict(f"{title}: rows read a minute", with_them[2] - without[2], "", MOST_ROWS_MORE_A_MINUTE),
            Verdict("  rows read a minute with none", without[2], ""),
            Verdict("  transactions a minute with none", without[1], ""),
            Verdict("  transactions a minute with all", with_them[1], ""),
        ]
    return verdicts


async def main(due: int, kept: int, seconds: float, stores: Sequence[str]) -> bool:
    verdicts: list[Verdict] = []
    if "sqlite" in stores:
        with tempfile.TemporaryDirectory() as directory:
            urls = [f"sqlite:///{Path(directory, name)}.db" for name in ("due", "none", "kept")]
            verdicts += await measure(urls[0], urls[1], urls[2], due, kept, seconds)
    if "postgresql" in stores:
        with PostgresServer() as server:
            connection = await asyncpg.connect(server.url)
            for name in ("due", "none", "kept"):
                await connection.execute(f"CREATE DATABASE {name}")
            await connection.close()
            urls = [server.url_of(name) for name in ("due", "none", "kept")]
            verdicts += await measure(urls[0], urls[1], urls[2], due, kept, seconds)
    print("\n".join(table(verdicts)))
    return all(verdict.met for verdict in verdicts)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--due", type=int, default=10_000)
    parser.add_argument("--kept", type=int, default=100_000)
    parser.add_argument("--idle-seconds", type=float, default=30.0)
    parser.add_argument("--stores", default="sqlite,postgresql")
    asked = parser.parse_args()
    raise SystemExit(not asyncio.run(main(asked.due, asked.kept, asked.idle_seconds, asked.stores.split(","))))
