"""DBOS: workflows started directly on the event loop, or through a queue that polls every 20 ms."""

from __future__ import annotations

import asyncio
import sqlite3
from typing import Any

import psycopg
from dbos import DBOS, DBOSConfig

from benchmarks.systems.driver import CHILDREN, PARALLEL_STEPS, Rows, System, expected, main
from benchmarks.systems.stopwatch import stopwatch
from benchmarks.workloads import Task

QUEUE = "bench"
SLEEP_SECONDS = 2.0


@DBOS.step()
async def add_one(x: int) -> int:
    return x + 1


@DBOS.workflow()
async def one_step(x: int) -> int:
    return await add_one(x)


@DBOS.workflow()
async def ten_steps(x: int) -> int:
    for _ in range(10):
        x = await add_one(x)
    return x


@DBOS.workflow()
async def hundred_steps(x: int) -> int:
    run = x
    stopwatch.begin(run)
    for _ in range(100):
        x = await add_one(x)
    stopwatch.end(run)
    return x


@DBOS.workflow()
async def parallel_steps(x: int) -> int:
    stopwatch.begin(x)
    results = await asyncio.gather(*(add_one(x + i) for i in range(PARALLEL_STEPS)))
    stopwatch.end(x)
    return sum(results)


@DBOS.workflow()
async def sleeper(x: int) -> int:
    stopwatch.begin(x)
    await DBOS.sleep_async(SLEEP_SECONDS)
    stopwatch.end(x)
    return x


@DBOS.workflow()
async def family(x: int) -> int:
    stopwatch.begin(x)
    children = [await DBOS.start_workflow_async(one_step, x + i) for i in range(CHILDREN)]
    results = [await child.get_result() for child in children]
    stopwatch.end(x)
    return sum(results)


@DBOS.workflow()
async def told(x: int) -> int:
    found = await DBOS.recv_async("go", timeout_seconds=60)
    stopwatch.end(x)
    return int(found)


WORKFLOWS: dict[str, Any] = {
    workflow.__name__: workflow
    for workflow in (one_step, ten_steps, hundred_steps, parallel_steps, sleeper, family, told)
}


class Dbos:
    times_itself = True

    def __init__(self, task: Task) -> None:
        self._options = task.options
        self._url = task.url
        self._queue = bool(task.options["queue"])
        # Results of queued workflows are learnt by polling; a count of rows is cheaper for many.
        self.counted = self._queue
        self._database: Database = (
            SqliteDatabase(task.url) if task.url.startswith("sqlite") else PostgresDatabase(task.url)
        )
        config: DBOSConfig = {
            "name": "bench",
            "system_database_url": task.url,
            "sys_db_pool_size": task.options["pool_size"],
            "max_executor_threads": task.options["threads"],
            "log_level": "ERROR",
        }
        DBOS(config=config)

    async def open(self) -> None:
        DBOS.launch()
        if self._queue:
            await DBOS.register_queue_async(QUEUE, polling_interval_sec=self._options["poll_seconds"])

    async def close(self) -> None:
        self._database.close()

    async def run(self, workflow: str, x: int) -> Any:
        return await self.result(await self.start(workflow, x))

    async def start(self, workflow: str, x: int) -> Any:
        if self._queue:
            return await DBOS.enqueue_workflow_async(QUEUE, WORKFLOWS[workflow], x)
        return await DBOS.start_workflow_async(WORKFLOWS[workflow], x)

    async def tell(self, handle: Any, x: int) -> None:
        await DBOS.send_async(handle.workflow_id, x, topic="go")

    async def result(self, handle: Any) -> Any:
        if self._queue:
            return await handle.get_result(polling_interval_sec=self._options["poll_seconds"])
        return await handle.get_result()

    async def count_finished(self) -> int:
        return await asyncio.to_thread(
            self._database.number,
            "SELECT count(*) FROM {schema}workflow_status WHERE status = 'SUCCESS'",
        )

    async def rows(self, workflow: str) -> Rows:
        finished = await DBOS.list_workflows_async(name=workflow, status="SUCCESS")
        return Rows(
            finished_runs=len(finished),
            steps=self._database.number("SELECT count(*) FROM {schema}operation_outputs"),
            wrong_outputs=sum(
                found.input is None or found.output != expected(workflow, found.input["args"][0]) for found in finished
            ),
        )


class Database:
    """A connection of our own, to count rows without going through the system under test."""

    schema = ""

    def fetch(self, sql: str) -> list[tuple[Any, ...]]:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    def number(self, sql: str) -> int:
        return int(self.fetch(sql)[0][0])


class PostgresDatabase(Database):
    schema = "dbos."

    def __init__(self, url: str) -> None:
        self._connection = psycopg.connect(url, autocommit=True)

    def fetch(self, sql: str) -> list[tuple[Any, ...]]:
        return self._connection.execute(sql.format(schema=self.schema).encode()).fetchall()

    def close(self) -> None:
        self._connection.close()


class SqliteDatabase(Database):
    def __init__(self, url: str) -> None:
        path = url.removeprefix("sqlite:///")
        self._connection = sqlite3.connect(path, check_same_thread=False, timeout=30)

    def fetch(self, sql: str) -> list[tuple[Any, ...]]:
        return self._connection.execute(sql.format(schema=self.schema)).fetchall()

    def close(self) -> None:
        self._connection.close()


def make(task: Task) -> System:
    return Dbos(task)


if __name__ == "__main__":
    main(make)
