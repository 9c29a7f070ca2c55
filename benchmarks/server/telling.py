"""Runs that talk, on an idle system: how long until the workflow of a parked run goes on after a signal, until a step
in another process is cancelled, and until a parent has the results of its children."""

from __future__ import annotations

import asyncio
import contextlib
import time
from statistics import median

import kagzi
from benchmarks.server.bars import Verdict
from benchmarks.server.site import Site
from benchmarks.systems.driver import percentile
from kagzi import Kagzi, KagziError, RunStatus, Workflow

WARM_UP = 20
MOST_MS = {"in process": 10.0, "through a server": 20.0}
MOST_MS_TO_CANCEL = 100.0
CHILDREN = 1000
MOST_SECONDS_OF_CHILDREN = 1.5
MOST_REPLAYS = 5


async def telling(site: Site, times: int) -> list[Verdict]:
    verdicts = []
    for where, url in (("in process", site.database), ("through a server", site.url)):
        taken = [seconds * 1000 for seconds in await _tell(url, WARM_UP + times)][WARM_UP:]
        title = f"signal to a parked run, {where}, until it goes on"
        verdicts += [
            Verdict(f"{title}: p50", median(taken), "ms", MOST_MS[where]),
            Verdict(f"{title}: p99", percentile(taken, 0.99), "ms"),
        ]
    for where, url in (("in another process", site.database), ("behind a server", site.url)):
        cancels = [seconds * 1000 for seconds in await _cancel(site.database, url, times // 4 + 5)][5:]
        title = f"cancel until a step {where} is told"
        verdicts.append(Verdict(f"{title}: p50", median(cancels), "ms"))
        verdicts.append(Verdict(f"{title}: p99", percentile(cancels, 0.99), "ms", MOST_MS_TO_CANCEL))
    seconds, replays = await _raise_children(site.database)
    title = f"{CHILDREN:,} one-step children of one parent"
    return [
        *verdicts,
        Verdict(title, seconds, "s", MOST_SECONDS_OF_CHILDREN),
        Verdict("  replays of the parent", replays, "", MOST_REPLAYS),
    ]


async def _cancel(here: str, there: str, times: int) -> list[float]:
    """Two engines that share nothing but the database; one clock measures both."""
    begun, taken = asyncio.Event(), list[float]()

    def define(url: str) -> tuple[Kagzi, Workflow[[], None]]:
        app = Kagzi(url)

        @app.step
        async def works() -> None:
            begun.set()
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                taken.append(time.perf_counter())
                raise

        @app.workflow
        async def busy() -> None:
            await works()

        return app, busy

    (app, _), (caller, busy) = define(there), define(here)
    asked = []
    async with app, app.worker(), caller:
        for _ in range(times):
            begun.clear()
            run = await busy.start()
            await begun.wait()
            await asyncio.sleep(0.2)
            asked.append(time.perf_counter())
            await run.cancel()
            with contextlib.suppress(KagziError):
                await run.result()
    return [told - ask for ask, told in zip(asked, taken, strict=True)]


async def _raise_children(url: str) -> tuple[float, int]:
    """The best of three families, and the replays of that parent."""
    app = Kagzi(url)
    entered = 0

    @app.step
    async def add_one(x: int) -> int:
        return x + 1

    @app.workflow
    async def child(x: int) -> int:
        return await add_one(x)

    @app.workflow
    async def parent() -> int:
        nonlocal entered
        entered += 1
        return sum(await asyncio.gather(*(child.run(i) for i in range(CHILDREN))))

    found = []
    async with app, app.worker(concurrency=400):
        for _ in range(3):
            entered, begun = 0, time.perf_counter()
            assert await parent.run() == CHILDREN * (CHILDREN + 1) // 2
            found.append((time.perf_counter() - begun, entered - 1))
    return min(found)


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
