"""One-step runs through a queue that is limited in every way, for `benchmarks.queues`.

    python -m benchmarks.systems.queued SYSTEM URL RUNS FILE

At most 50 run at once, a rate that is high enough to hold nothing back is looked after all the same, and every run has
one of three priorities. Noted is how long it takes from the first start until all have ended, and how many were running
at once at most.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

LIMIT = 50
RATE = 1_000_000  # runs a second
CALLERS = 50
NAP_SECONDS = 0.002  # so that the limit is what counts


class Most:
    """How many are inside at once, at most."""

    def __init__(self) -> None:
        self.inside = self.most = 0

    async def visit(self, x: int) -> int:
        self.inside += 1
        self.most = max(self.most, self.inside)
        await asyncio.sleep(NAP_SECONDS)
        self.inside -= 1
        return x + 1


async def kagzi(url: str, runs: int, most: Most) -> float:
    from kagzi import Kagzi, Limit, Rate

    app = Kagzi(url)

    @app.step
    async def add_one(x: int) -> int:
        return await most.visit(x)

    @app.workflow(concurrency=Limit(LIMIT), rate=Rate(RATE, "1s", burst=RATE))
    async def one_step(x: int) -> int:
        return await add_one(x)

    async with app, app.worker(concurrency=400):
        await one_step.run(-1)
        begun = time.perf_counter()
        handles = await _started(runs, lambda x: one_step.options(priority=x % 3).start(x))
        for x, handle in handles:
            assert await handle.result() == x + 1
        return time.perf_counter() - begun


async def dbos(url: str, runs: int, most: Most) -> float:
    """Polled every 20 ms, as in the other comparisons: the default of a second would be slower."""
    from dbos import DBOS, DBOSConfig, SetEnqueueOptions

    @DBOS.step()
    async def add_one(x: int) -> int:
        return await most.visit(x)

    @DBOS.workflow()
    async def one_step(x: int) -> int:
        return await add_one(x)

    config: DBOSConfig = {
        "name": "bench",
        "system_database_url": url,
        "sys_db_pool_size": 20,
        "max_executor_threads": 20,
        "log_level": "ERROR",
    }
    DBOS(config=config)
    DBOS.launch()
    await DBOS.register_queue_async(
        "limited", global_concurrency=LIMIT, limiter={"limit": RATE, "period": 1.0}, polling_interval_sec=0.02
    )

    async def start(x: int) -> Any:
        with SetEnqueueOptions(priority=x % 3 + 1):
            return await DBOS.enqueue_workflow_async("limited", one_step, x)

    await (await start(0)).get_result(polling_interval_sec=0.02)
    begun = time.perf_counter()
    handles = await _started(runs, start)
    for x, handle in handles:
        assert await handle.get_result(polling_interval_sec=0.02) == x + 1
    return time.perf_counter() - begun


async def _started(runs: int, start: Any) -> list[tuple[int, Any]]:
    room = asyncio.Semaphore(CALLERS)

    async def one(x: int) -> tuple[int, Any]:
        async with room:
            return x, await start(x)

    return await asyncio.gather(*(one(x) for x in range(runs)))


SYSTEMS = {"kagzi": kagzi, "dbos": dbos}


async def measure(system: str, url: str, runs: int, file: Path) -> None:
    most = Most()
    report(file, await SYSTEMS[system](url, runs, most), most.most)


def report(file: Path, seconds: float, most: int) -> None:
    """And never let a library keep the process alive."""
    file.write_text(json.dumps([seconds, most]))
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(measure(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4])))
