"""Cancelling runs that other processes drive."""

from __future__ import annotations

import asyncio
import time

import pytest

from kagzi import RunStatus, WorkflowCancelled
from tests.faults.conftest import MakeSite
from tests.faults.processes import Site

# On one database: what differs between the two is held by the conformance suite.
pytestmark = pytest.mark.parametrize("url", [pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True)

LEASE = 6.0  # with a heartbeat every two seconds, long before its end


@pytest.fixture
def site(url: str, make_site: MakeSite) -> Site:
    return make_site(url, lease=f"{LEASE:g}s")


async def test_a_worker_hears_of_it_with_its_next_heartbeat(site: Site) -> None:
    async with site.program.app:
        await site.worker().ready()
        run = await site.program.undoing.start("a", 60)
        await site.seen("enter", tag="a")

        at = time.monotonic()
        answer = await run.cancel()

        assert (answer.effective, answer.status) == (True, RunStatus.RUNNING)
        told = await site.seen("cancelled", tag="a")
        assert told["at"] - at < LEASE
        with pytest.raises(WorkflowCancelled):
            await run.result(timeout=30)
        assert len(site.ledger.lines("exit", phase=2)) == len(site.ledger.lines("exit", phase=3)) == 1
        assert not site.ledger.lines("exit", phase=1)


async def test_a_worker_that_dies_while_it_cleans_up_is_replaced(site: Site) -> None:
    async with site.program.app:
        first = await site.worker().ready()
        run = await site.program.undoing.start("a", 60, 3.0)  # long enough to be killed meanwhile
        await site.seen("enter", tag="a")
        assert await run.cancel()
        await site.seen("enter", phase=2)
        first.kill()
        await site.worker().ready()

        with pytest.raises(WorkflowCancelled):
            await run.result(timeout=60)

        # What was told once is not told again: the cancelled step stays cancelled, and cleaning up goes on.
        assert len(site.ledger.lines("enter", tag="a")) == 1
        assert len(site.ledger.lines("exit", phase=3)) == 1


async def test_a_terminated_run_is_dropped_with_the_next_heartbeat(site: Site) -> None:
    async with site.program.app:
        await site.worker().ready()
        run = await site.program.undoing.start("a", 60)
        await site.seen("enter", tag="a")

        at = time.monotonic()
        assert await run.terminate("a test")

        with pytest.raises(WorkflowCancelled, match="terminated: a test"):
            await run.result(timeout=30)
        told = await site.seen("cancelled", tag="a")
        assert told["at"] - at < LEASE
        await asyncio.sleep(0.5)
        assert not site.ledger.lines("enter", phase=2)


async def test_a_sleeping_run_is_woken_in_another_process(site: Site) -> None:
    async with site.program.app:
        await site.worker().ready()
        run = await site.program.naps.start(1, 600)
        while await run.status() is not RunStatus.SLEEPING:
            await asyncio.sleep(0.02)

        at = time.monotonic()
        assert await run.cancel()

        with pytest.raises(WorkflowCancelled):
            await run.result(timeout=30)
        assert time.monotonic() - at < 5  # even if every notification is lost, once a second everybody looks
