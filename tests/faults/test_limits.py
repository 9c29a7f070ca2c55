"""A limit over worker processes that are killed, stopped and replaced: never more than it says, and nothing is left
behind. `make campaigns` does so for 300 runs, and through a server."""

from __future__ import annotations

import asyncio
import math
import signal
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from kagzi import RunStatus
from tests.campaigns import length
from tests.faults.conftest import MakeSite
from tests.faults.processes import ServerProcess, Site, WorkerProcess, until

MOST = 5
LEASE = 2.0
RUNS, ROUNDS = length(102, 300), length(3, 10)
BEHIND_SERVER = length(False, True)


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


def _in_bodies(site: Site) -> set[int]:
    """The processes in which step bodies have begun that have not ended."""
    ended = {(line["run"], line["step"], line["pid"]) for line in site.ledger.lines("exit")}
    begun = {(line["run"], line["step"], line["pid"]) for line in site.ledger.lines("enter")}
    return {pid for _, _, pid in begun - ended}


async def _suspend_in_a_body(site: Site, workers: list[WorkerProcess]) -> tuple[WorkerProcess, float]:
    """Stops a worker in the middle of a step body, so that there is something to take over. Which, and when."""
    while True:
        busy = await until(lambda: [each for each in workers if each.pid in _in_bodies(site)], "somebody works")
        at = await busy[-1].suspend()
        if busy[-1].pid in _in_bodies(site):
            return busy[-1], at
        busy[-1].send(signal.SIGCONT)


def _most_at_once(site: Site, killed: dict[int, float]) -> int:
    """The most step bodies that ran at once. Those of a process that was killed ended with it, and those of one that
    was stopped are zombies from then on."""
    ends = {(line["run"], line["step"], line["pid"]): line["at"] for line in site.ledger.lines("exit")}
    moments = []
    for line in site.ledger.lines("enter"):
        gone = killed.get(line["pid"], math.inf)
        if line["at"] > gone:
            continue
        end = min(ends.get((line["run"], line["step"], line["pid"]), math.inf), gone)
        assert end < math.inf, line
        moments += [(line["at"], 1), (end, -1)]
    most = now = 0
    for _, change in sorted(moments):
        now += change
        most = max(most, now)
    return most


@pytest.mark.timeout(600)
async def test_a_limit_holds_while_workers_are_killed_and_stopped(
    url: str, make_site: MakeSite, tmp_path: Path
) -> None:
    """Bodies of a process that is stopped for longer than its lease are zombies when it goes on: they do not count."""
    async with AsyncExitStack() as stack:
        settings = {"lease": f"{LEASE:g}s"}
        if BEHIND_SERVER and url.startswith("postgres"):
            server = ServerProcess(tmp_path, url, lease=LEASE)
            stack.callback(server.close)
            url, settings = await server.url(), {}
        await _keep_to_the_limit(make_site(url, **settings))


async def _keep_to_the_limit(site: Site) -> None:
    gone: dict[int, float] = {}  # killed or stopped, and when
    async with site.program.app:
        await site.program.app.limits.set(workflow="chain", concurrency=MOST)
        watch = asyncio.create_task(_watch(site))
        workers = [site.worker(concurrency=10) for _ in range(4)]
        for worker in workers:
            await worker.ready()
        runs = []
        stopped: list[WorkerProcess] = []
        for turn in range(ROUNDS):
            # So that there is work after each of them, however long the machine took for it.
            runs += [await site.program.chain.start(2, 0.04) for _ in range(RUNS // ROUNDS)]
            worker, gone_at = await _suspend_in_a_body(site, workers)
            gone[worker.pid] = gone_at
            if turn % 3 == 1:
                stopped.append(worker)
            else:
                worker.kill()
            workers.remove(worker)
            workers.append(site.worker(concurrency=10))
        if stopped:
            await asyncio.sleep(LEASE)  # so that others have their runs
        for worker in stopped:
            worker.send(signal.SIGCONT)
        assert await asyncio.gather(*[run.result(timeout=240) for run in runs]) == [1] * len(runs)
        watch.cancel()
        assert 1 < await watch <= MOST
    assert 1 < _most_at_once(site, gone) <= MOST
