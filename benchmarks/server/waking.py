"""Parked runs that are due one after the other: how late they go on."""

from __future__ import annotations

import asyncio
import time
from statistics import median

from benchmarks.server.bars import Verdict
from benchmarks.server.site import Site
from benchmarks.server.workers import define
from benchmarks.systems.driver import percentile
from benchmarks.systems.stopwatch import stopwatch
from kagzi import Kagzi

DUE_OVER_SECONDS = 10.0
MOST_LATE_MS = 250
CALLERS = 200
PATIENCE_SECONDS = 60.0
# All of them are started and parked before the first is due, on a slow machine too.
STARTS_PER_SECOND = 300.0
SLEEPING = "SELECT count(*) FROM kagzi.workflow_runs WHERE status = 'SLEEPING'"
# A run that was claimed only once did not let go of its slot while it slept.
WOKEN = "SELECT count(*) FROM kagzi.workflow_runs WHERE status = 'COMPLETED' AND executions > 1"


async def waking(site: Site, runs: int) -> list[Verdict]:
    await site.start_workers(1)
    app = Kagzi(site.url)
    flow = define(app)["due"]
    async with app:
        first = time.time() + 5 + runs / STARTS_PER_SECOND
        room = asyncio.Semaphore(CALLERS)

        async def start(number: int) -> None:
            async with room:
                await flow.start(number, first + DUE_OVER_SECONDS * number / runs)

        await asyncio.gather(*(start(number) for number in range(runs)))
        sleeping = await site.reaches(SLEEPING, runs, by=first)
        if sleeping != runs:
            raise RuntimeError(f"only {sleeping} of {runs} runs were parked before the first was due")
        await asyncio.sleep(first + DUE_OVER_SECONDS - time.time())
        woken = await site.reaches(WOKEN, runs, by=time.time() + PATIENCE_SECONDS)
    late = [seconds * 1000 for seconds in stopwatch.seconds().values()]
    if woken != runs or len(late) != runs or min(late) < -1:  # a clock may be read a little early
        raise RuntimeError(f"{woken} of {runs} runs finished, {len(late)} woke, the first {min(late):.1f} ms late")
    title = f"{runs:,} sleeping runs due over {DUE_OVER_SECONDS:g} s"
    return [
        Verdict(f"{title}: late, p99", percentile(late, 0.99), "ms", MOST_LATE_MS),
        Verdict(f"{title}: late, p50", median(late), "ms"),
        Verdict(f"{title}: late, the last", max(late), "ms"),
    ]
