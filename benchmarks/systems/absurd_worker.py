"""Absurd: asynchronous clients and workers in one process, on one connection each or on eight.

Its SQL schema is no part of the SDK: it is in the command line tool, `absurdctl`, of the same version.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import psycopg
from absurd_sdk import AsyncAbsurd, AsyncTaskContext
from absurdctl import BUNDLED_SCHEMA_SQL

from benchmarks.systems.driver import PARALLEL_STEPS, Rows, System, expected, main
from benchmarks.systems.stopwatch import stopwatch
from benchmarks.workloads import Task

QUEUE = "bench"
SLEEP_SECONDS = 2.0
RESULT_TIMEOUT_SECONDS = 120.0


async def one_step(params: Any, ctx: AsyncTaskContext) -> int:
    return await add_one(ctx, params["x"])


async def ten_steps(params: Any, ctx: AsyncTaskContext) -> int:
    x: int = params["x"]
    for _ in range(10):
        x = await add_one(ctx, x)
    return x


async def hundred_steps(params: Any, ctx: AsyncTaskContext) -> int:
    x: int = params["x"]
    stopwatch.begin(params["x"])
    for _ in range(100):
        x = await add_one(ctx, x)
    stopwatch.end(params["x"])
    return x


async def parallel_steps(params: Any, ctx: AsyncTaskContext) -> int:
    x: int = params["x"]
    stopwatch.begin(x)
    results = await asyncio.gather(*(add_one(ctx, x + i) for i in range(PARALLEL_STEPS)))
    stopwatch.end(x)
    return sum(results)


async def sleeper(params: Any, ctx: AsyncTaskContext) -> int:
    x: int = params["x"]
    stopwatch.begin(x)
    await ctx.sleep_for("nap", SLEEP_SECONDS)
    stopwatch.end(x)
    return x


async def add_one(ctx: AsyncTaskContext, x: int) -> int:
    async def body() -> int:
        return x + 1

    return await ctx.step("add_one", body)


WORKFLOWS = {task.__name__: task for task in (one_step, ten_steps, hundred_steps, parallel_steps, sleeper)}


class Absurd:
    counted = True
    times_itself = True

    def __init__(self, task: Task) -> None:
        self._url = task.url
        self._slots = task.sizes.slots
        self._options = task.options
        connections = int(task.options["connections"])
        self._workers = [self._app() for _ in range(connections)]
        self._clients = [self._app() for _ in range(connections)]
        self._next_client = itertools.cycle(self._clients)
        self._working: list[asyncio.Task[None]] = []
        self._counter: psycopg.AsyncConnection[Any] | None = None

    def _app(self) -> AsyncAbsurd:
        app = AsyncAbsurd(self._url, queue_name=QUEUE)
        for name, handler in WORKFLOWS.items():
            app.register_task(name)(handler)
        return app

    async def open(self) -> None:
        with psycopg.connect(self._url, autocommit=True) as connection:
            connection.execute(BUNDLED_SCHEMA_SQL.encode())
        self._counter = await psycopg.AsyncConnection.connect(self._url, autocommit=True)
        await self._clients[0].create_queue(QUEUE)
        for app in self._clients:
            await app.list_queues()  # connects; concurrent first calls would each open one
        share = -(-self._slots // len(self._workers))
        for number, app in enumerate(self._workers):
            working = app.start_worker(
                worker_id=f"bench-{number}",
                concurrency=share,
                poll_interval=self._options["poll_seconds"],
            )
            self._working.append(asyncio.create_task(working))

    async def close(self) -> None:
        for app in self._workers:
            app.stop_worker()
        for task in self._working:
            await asyncio.wait_for(task, 30)

    async def run(self, workflow: str, x: int) -> Any:
        return await self.result(await self.start(workflow, x))

    async def start(self, workflow: str, x: int) -> Any:
        spawned = await next(self._next_client).spawn(workflow, {"x": x})
        return spawned["task_id"]

    async def result(self, handle: Any) -> Any:
        client = next(self._next_client)
        if not self._options["poll_results"]:
            snapshot = await client.await_task_result(handle, timeout=RESULT_TIMEOUT_SECONDS)
            return snapshot.result if snapshot.state == "completed" else snapshot
        while True:
            found = await client.fetch_task_result(handle)
            if found is not None and found.state not in ("pending", "running", "sleeping"):
                return found.result if found.state == "completed" else found
            await asyncio.sleep(self._options["poll_seconds"])

    async def count_finished(self) -> int:
        return await self._number(f"SELECT count(*) FROM absurd.r_{QUEUE} WHERE state = 'completed'")

    async def rows(self, workflow: str) -> Rows:
        assert self._counter is not None
        cursor = await self._counter.execute(
            f"SELECT params, completed_payload FROM absurd.t_{QUEUE} WHERE state = 'completed'"
        )
        answers = await cursor.fetchall()
        return Rows(
            finished_runs=len(answers),
            steps=await self._number(f"SELECT count(*) FROM absurd.c_{QUEUE}"),
            wrong_outputs=sum(output != expected(workflow, params["x"]) for params, output in answers),
        )

    async def _number(self, sql: str) -> int:
        assert self._counter is not None
        row = await (await self._counter.execute(sql.encode())).fetchone()
        assert row is not None
        return int(row[0])


def make(task: Task) -> System:
    return Absurd(task)


if __name__ == "__main__":
    main(make)
