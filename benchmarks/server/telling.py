"""A signal to a parked run on an idle system: how long until its workflow goes on."""

from __future__ import annotations

import asyncio
import time
from statistics import median

import kagzi
from benchmarks.server.bars import Verdict
from benchmarks.server.site import Site
from benchmarks.systems.driver import percentile
from kagzi import Kagzi, RunStatus

WARM_UP = 20
MOST_MS = {"in process": 10.0, "through a server": 20.0}


async def telling(site: Site, times: int) -> list[Verdict]:
    verdicts = []
    for where, url in (("in process", site.database), ("through a server", site.url)):
        taken = [seconds * 1000 for seconds in await _tell(url, WARM_UP + times)][WARM_UP:]
        title = f"signal to a parked run, {where}, until it goes on"
        verdicts += [
            Verdict(f"{title}: p50", median(taken), "ms", MOST_MS[where]),
            Verdict(f"{title}: p99", percentile(taken, 0.99), "ms"),
        ]
    return verdicts


async def _tell(url: str, times: int) -> list[float]:
    """Client and worker are one process, so that one clock measures both."""
    app = Kagzi(url)
    went_on: list[float] = []

    @app.workflow
    async def waits() -> None:
        await kagzi.wait_signal("go")
        went_on.append(time.perf_counter())  # the line behind the wait: its next step begins a commit later

    taken = []
    async with app, app.worker():
        for _ in range(times):
            run = await waits.start()
            status = await run.status()
            while status is not RunStatus.SLEEPING:
                await asyncio.sleep(0.005)
                status = await run.status()
            told = time.perf_counter()
            await run.signal("go")
            await run.result()
            taken.append(went_on[-1] - told)
    return taken
