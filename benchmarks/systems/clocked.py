"""Schedules of one system, each due every second, and when what they fire begins: for `benchmarks.clocks`.

    python -m benchmarks.systems.clocked SYSTEM URL SCHEDULES SECONDS FILE

What is noted is when the body of the first step begins, beside the instant it was fired for.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

SETTLED_SECONDS = 3.0  # after the schedules were made
BEHIND_SECONDS = 3.0  # for what is late at the end

Fired = list[tuple[float, float]]


@asynccontextmanager
async def kagzi(url: str, schedules: int) -> AsyncIterator[Fired]:
    import kagzi as library

    fired: Fired = []
    app = library.Kagzi(url)

    @app.step
    async def note(nominal: float) -> None:
        fired.append((nominal, time.time()))

    @app.workflow
    async def tick() -> None:
        at = library.scheduled_for()
        assert at is not None
        await note(at.timestamp())

    async with app, app.worker(concurrency=400):
        for i in range(schedules):
            await app.schedules.create(f"tick-{i}", tick, cron="every 1s")
        yield fired


@asynccontextmanager
async def server(url: str, schedules: int) -> AsyncIterator[Fired]:
    from benchmarks.systems.processes import free_port
    from benchmarks.systems.server_worker import start_server

    with tempfile.TemporaryDirectory(prefix="kagzi-bench-") as directory:
        port = free_port()
        process = await start_server(url, port, Path(directory))
        try:
            async with kagzi(f"grpc://127.0.0.1:{port}", schedules) as fired:
                yield fired
        finally:
            await process.stop()


@asynccontextmanager
async def dbos(url: str, schedules: int) -> AsyncIterator[Fired]:
    """On a queue that is polled every 20 ms: the one that schedules have by themselves is polled once a second."""
    from dbos import DBOS, DBOSConfig

    fired: Fired = []

    @DBOS.step()
    async def note(nominal: float) -> None:
        fired.append((nominal, time.time()))

    @DBOS.workflow()
    async def tick(at: datetime, context: Any) -> None:  # noqa: ARG001
        await note(at.timestamp())

    config: DBOSConfig = {
        "name": "bench",
        "system_database_url": url,
        "sys_db_pool_size": 20,
        "max_executor_threads": 20,
        "log_level": "ERROR",
    }
    DBOS(config=config)
    DBOS.launch()
    await DBOS.register_queue_async("ticks", polling_interval_sec=0.02)
    for i in range(schedules):
        await DBOS.create_schedule_async(
            schedule_name=f"tick-{i}", workflow_fn=tick, schedule="* * * * * *", queue_name="ticks"
        )
    yield fired


@asynccontextmanager
async def temporal(url: str, schedules: int) -> AsyncIterator[Fired]:  # noqa: ARG001
    from datetime import timedelta

    from temporalio import client as library

    from benchmarks.systems.temporal_flows import fired, tick
    from benchmarks.systems.temporal_worker import QUEUE, serving

    async with serving() as client:
        for i in range(schedules):
            every_second = library.ScheduleIntervalSpec(every=timedelta(seconds=1))
            schedule = library.Schedule(
                action=library.ScheduleActionStartWorkflow(tick.run, id=f"tick-{i}", task_queue=QUEUE),
                spec=library.ScheduleSpec(intervals=[every_second]),
                policy=library.SchedulePolicy(overlap=library.ScheduleOverlapPolicy.ALLOW_ALL),
            )
            await client.create_schedule(f"tick-{i}", schedule)
        yield fired


SYSTEMS = {"kagzi": kagzi, "server": server, "dbos": dbos, "temporal": temporal}


async def measure(system: str, url: str, schedules: int, seconds: float, file: Path) -> None:
    async with SYSTEMS[system](url, schedules) as fired:
        await asyncio.sleep(SETTLED_SECONDS)
        begun = time.time()
        await asyncio.sleep(seconds + BEHIND_SECONDS)
        found = [(nominal, at) for nominal, at in fired if begun < nominal <= begun + seconds]
        report(file, found)


def report(file: Path, found: Fired) -> None:
    """And never let a library keep the process alive."""
    file.write_text(json.dumps(found))
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(measure(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), Path(sys.argv[5])))
