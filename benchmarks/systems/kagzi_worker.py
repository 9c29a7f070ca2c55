"""Kagzi: client and worker in one process, or the worker in a process of its own.

Callers do what a user's program does, `await flow.run(x)`, and a run counts when its result is in the caller's hands.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sqlite3
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Protocol

import asyncpg
import msgspec

from benchmarks.systems.driver import Rows, System, expected, main
from benchmarks.systems.kagzi_workflows import define
from benchmarks.systems.processes import peak_memory_mb
from benchmarks.workloads import Task, Values
from kagzi import Kagzi

QUEUE = "default"
RESULT_TIMEOUT = 120
IDLE_SECONDS = 12.0


class KagziSystem:
    counted = False
    times_itself = False

    def __init__(self, task: Task) -> None:
        self._task = task
        self._app = Kagzi(task.url)
        self._workflows = define(self._app)
        self._worker: asyncio.subprocess.Process | None = None
        self._opened = contextlib.AsyncExitStack()
        self._database = open_database(task.url)

    async def open(self) -> None:
        await self._opened.enter_async_context(self._app)
        if self._task.options.get("worker_apart"):
            arguments = ("-m", __spec__.name, "worker", self._task.url, str(self._task.sizes.slots))
            self._worker = await asyncio.create_subprocess_exec(sys.executable, *arguments)
        else:
            worker = self._app.worker(queues=[QUEUE], concurrency=self._task.sizes.slots)
            await self._opened.enter_async_context(worker)

    async def close(self) -> None:
        if self._worker is not None:
            self._worker.send_signal(signal.SIGTERM)
            await self._worker.wait()
        await self._opened.aclose()

    async def run(self, workflow: str, x: int) -> Any:
        return await self._workflows[workflow].run(x)

    async def start(self, workflow: str, x: int) -> Any:
        return await self._workflows[workflow].start(x)

    async def tell(self, handle: Any, x: int) -> None:
        await handle.signal("go", x)

    async def result(self, handle: Any) -> Any:
        return await handle.result(timeout=RESULT_TIMEOUT)

    async def count_finished(self) -> int:
        return (await self.rows("one_step")).finished_runs

    async def rows(self, workflow: str) -> Rows:
        return await self._database.rows(workflow)

    async def idle(self) -> Values:
        """Transactions a second while nothing happens, and the most memory a worker of its own has held."""
        values: Values = {}
        if self._worker is not None:
            values["worker_mb"] = peak_memory_mb(self._worker.pid)
        if isinstance(self._database, PostgresDatabase):
            # What is cleaned up after a load is not what an idle process asks for.
            async with self._database.without_autovacuum():
                # A backend tells its counters within a second, an idle one within ten.
                await asyncio.sleep(IDLE_SECONDS)
                before = await self._database.transactions()
                await asyncio.sleep(IDLE_SECONDS)
                after = await self._database.transactions()
            values["queries_per_second"] = max(0, after - before - 1) / IDLE_SECONDS
        return values

    async def extras(self, runs: int, steps: int) -> Values:
        """What a run leaves behind, asked when all connections are closed and have told their counters."""
        values: Values = {"own_mb": peak_memory_mb(os.getpid())}
        values["bytes_per_run"] = await self._database.bytes_used() / runs
        if isinstance(self._database, PostgresDatabase):
            await asyncio.sleep(1)
            values["transactions_per_step"] = await self._database.transactions() / max(1, steps)
        return values


class Database(Protocol):
    """The tables, seen without going through the system under test."""

    async def rows(self, workflow: str) -> Rows: ...
    async def bytes_used(self) -> int: ...


# Without the rows that `benchmarks.filling` has made.
RUNS = """SELECT input, output, executions FROM {schema}workflow_runs
          WHERE status = 'COMPLETED' AND workflow_type = '{workflow}'"""
STEPS = "SELECT count(*) FROM {schema}step_runs WHERE status = 'COMPLETED' AND step_id NOT IN ('old', '@begin')"


class PostgresDatabase:
    def __init__(self, url: str) -> None:
        self._url = url

    async def rows(self, workflow: str) -> Rows:
        runs = await self.fetch(RUNS.format(schema="kagzi.", workflow=workflow))
        steps = await self.fetch(STEPS.format(schema="kagzi."))
        return to_rows(workflow, [tuple(run) for run in runs], steps[0][0])

    async def bytes_used(self) -> int:
        """Rows and indexes; how full the pages are is part of it."""
        tables = ("workflow_runs", "workflow_payloads", "step_runs")
        sizes = [await self.fetch(f"SELECT pg_total_relation_size('kagzi.{table}')") for table in tables]
        return sum(int(size[0][0]) for size in sizes)

    async def transactions(self) -> int:
        """Committed in this database since it was made, by everybody."""
        sql = "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"
        return int((await self.fetch(sql))[0][0])

    @contextlib.asynccontextmanager
    async def without_autovacuum(self) -> AsyncIterator[None]:
        await self.fetch("ALTER SYSTEM SET autovacuum = off")
        await self.fetch("SELECT pg_reload_conf()")
        try:
            yield
        finally:
            await self.fetch("ALTER SYSTEM RESET autovacuum")
            await self.fetch("SELECT pg_reload_conf()")

    async def fetch(self, sql: str) -> list[asyncpg.Record]:
        connection = await asyncpg.connect(self._url)
        try:
            return list(await connection.fetch(sql))
        finally:
            await connection.close()


class SqliteDatabase:
    def __init__(self, url: str) -> None:
        self._path = Path(url.removeprefix("sqlite:///"))

    async def rows(self, workflow: str) -> Rows:
        with contextlib.closing(sqlite3.connect(self._path, timeout=30)) as connection:
            runs = connection.execute(RUNS.format(schema="", workflow=workflow)).fetchall()
            steps = connection.execute(STEPS.format(schema="")).fetchall()
        return to_rows(workflow, runs, steps[0][0])

    async def bytes_used(self) -> int:
        """The file without the write-ahead log, which was folded into it when the last user left."""
        return self._path.stat().st_size


def open_database(url: str) -> PostgresDatabase | SqliteDatabase:
    return SqliteDatabase(url) if url.startswith("sqlite") else PostgresDatabase(url)


def to_rows(workflow: str, runs: list[tuple[Any, ...]], steps: int) -> Rows:
    wrong = 0
    for run_input, output, executions in runs:
        (x,) = msgspec.json.decode(run_input)
        # A sleeper that was claimed only once did not let go of its slot while it slept.
        parked = workflow != "sleeper" or executions > 1
        wrong += not parked or msgspec.json.decode(output) != expected(workflow, x)
    return Rows(finished_runs=len(runs), steps=steps, wrong_outputs=wrong)


def make(task: Task) -> System:
    return KagziSystem(task)


def work(url: str, slots: int) -> None:
    """The worker's own process."""
    app = Kagzi(url)
    define(app)
    app.run_worker(queues=[QUEUE], concurrency=slots)


if __name__ == "__main__":
    if sys.argv[1] == "worker":
        work(sys.argv[2], int(sys.argv[3]))
    else:
        main(make)
