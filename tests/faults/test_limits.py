"""A limit over worker processes that are killed and replaced: never more than it says, and nothing is left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial

from kagzi import RunStatus
from tests.faults.conftest import MakeSite
from tests.faults.processes import Site, WorkerProcess, until

MOST = 5
LEASE = 2.0


async def _watch(site: Site) -> int:
    """The most runs that were RUNNING in any look, each of which is one statement; until it is cancelled."""
    most = 0
    try:
        while True:
            running = [run async for run in site.program.app.search(workflow="chain", status=RunStatus.RUNNING)]
            most = max(most, len(running))
            await asyncio.sleep(0.005)
    except asyncio.CancelledError:
        return most


def _entered(site: Site, living: Mapping[int, WorkerProcess], since: float) -> list[int]:
    """In which of these processes step bodies have begun since then."""
    return [line["pid"] for line in site.ledger.lines("enter") if line["pid"] in living and line["at"] > since]


def _most_at_once(site: Site, killed: dict[int, float]) -> int:
    """The most step bodies that ran at once. Those of a process that was killed ended with it."""
    ends = {(line["run"], line["step"], line["pid"]): line["at"] for line in site.ledger.lines("exit")}
    moments = []
    for line in site.ledger.lines("enter"):
        end = ends.get((line["run"], line["step"], line["pid"]), killed.get(line["pid"]))
        assert end is not None, line
        moments += [(line["at"], 1), (end, -1)]
    most = now = 0
    for _, change in sorted(moments):
        now += change
        most = max(most, now)
    return most


async def test_a_limit_holds_while_workers_are_killed(url: str, make_site: MakeSite) -> None:
    site = make_site(url, lease=f"{LEASE:g}s")
    killed: dict[int, float] = {}
    async with site.program.app:
        await site.program.app.limits.set(workflow="chain", concurrency=MOST)
        watch = asyncio.create_task(_watch(site))
        workers = [site.worker(concurrency=10) for _ in range(4)]
        for worker in workers:
            await worker.ready()
        runs = []
        for _ in range(3):
            # So that there is work after each kill, however long the machine took for it.
            runs += [await site.program.chain.start(2, 0.04) for _ in range(34)]
            living = {worker.pid: worker for worker in workers}
            since = max(killed.values(), default=0.0)
            busy = await until(partial(_entered, site, living, since), "somebody works")
            worker = living[busy[-1]]
            killed[worker.pid] = worker.kill()
            workers.remove(worker)
            workers.append(site.worker(concurrency=10))
        assert len(site.ledger.lines("exit", phase=1)) < len(runs)  # there was something to take over
        assert await asyncio.gather(*[run.result(timeout=60) for run in runs]) == [1] * len(runs)
        watch.cancel()
        assert 1 < await watch <= MOST
    assert 1 < _most_at_once(site, killed) <= MOST
