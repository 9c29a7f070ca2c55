"""A process with workers: `python -m benchmarks.server.workers URL WORKERS SLOTS`.

Each worker has an app of its own, so channels, polls and heartbeats are as many as with a process for each of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import time
from datetime import UTC, datetime
from typing import Any

import kagzi
from benchmarks.systems.kagzi_workflows import define_one_step
from benchmarks.systems.stopwatch import stopwatch
from kagzi import Kagzi


def define(app: Kagzi) -> dict[str, Any]:
    _, one_step = define_one_step(app)

    @app.workflow
    async def due(number: int, at: float) -> int:
        """Sleeps until then, and notes how long after that it goes on."""
        await kagzi.sleep_until(datetime.fromtimestamp(at, UTC))
        stopwatch.begin(number, ago=time.time() - at)
        stopwatch.end(number)
        return number

    return {"one_step": one_step, "due": due}


async def work(url: str, workers: int, slots: int) -> None:
    told_to_stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told_to_stop.set)
    async with contextlib.AsyncExitStack() as opened:
        for _ in range(workers):
            app = Kagzi(url)
            define(app)
            await opened.enter_async_context(app)
            await opened.enter_async_context(app.worker(concurrency=slots))
        print("working", flush=True)
        await told_to_stop.wait()


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
