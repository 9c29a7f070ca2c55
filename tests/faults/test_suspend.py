"""SIGSTOP past the lease, then SIGCONT: the old holder finds its writes refused and drops the run."""

from __future__ import annotations

import asyncio
import signal
import time

import pytest

from kagzi import RunStatus
from tests.faults.processes import LEASE, Site, until

# On one database: what differs between the two is held by the conformance suite.
pytestmark = pytest.mark.parametrize("url", [pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True)


async def test_the_writes_of_a_worker_that_slept_through_its_lease_are_refused(site: Site) -> None:
    async with site.program.app:
        first = await site.worker().ready()
        run = await site.program.two_effects.start(0.8 * LEASE)
        await site.seen("first", pid=first.pid)
        await first.suspend()
        second = await site.worker().ready()
        await site.seen("second", pid=second.pid)
        assert await run.result(timeout=30) == "done"
        before = await run.get(), await run.steps()

        first.send(signal.SIGCONT)
        await until(lambda: "is let go of" in first.log, "the first worker drops the run")
        await asyncio.sleep(1)  # more than the body had left

        assert (await run.get(), await run.steps()) == before
        assert before[0].status is RunStatus.COMPLETED
        assert (before[0].executions, before[0].crashes) == (2, 1)
        # The zombie's body was stopped before its second effect.
        assert [line["pid"] for line in site.ledger.lines("second")] == [second.pid]
        # And the process is of use again.
        second.kill()
        again = await site.program.holding.start("free", 0.0)
        assert await again.result(timeout=30) == first.pid


async def test_a_worker_that_holds_the_new_lease_of_its_own_old_run_drops_the_old_one(site: Site) -> None:
    """The client's coordinator takes the lease away; the same process claims the run again when it wakes."""
    async with site.program.app:
        worker = await site.worker().ready()
        run = await site.program.holding.start("a", 60.0)
        await site.seen("enter", tag="a")
        await worker.suspend()
        deadline = time.monotonic() + 30
        while (await run.get()).status is not RunStatus.PENDING:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.02)

        worker.send(signal.SIGCONT)

        await until(lambda: len(site.ledger.lines("enter", tag="a")) == 2, "it begins anew")
        await until(lambda: site.ledger.lines("cancelled", tag="a"), "the old body is stopped")
        assert "is let go of" in worker.log
        site.program.release("a")
        assert await run.result(timeout=30) == worker.pid
        found = await run.get()
        assert (found.executions, found.crashes, found.attempts) == (2, 1, 0)
    site.ledger.check_acknowledged_once()
    assert len(site.ledger.lines("exit", tag="a")) == 1


async def test_a_thread_that_slept_through_its_lease_reports_in_vain(site: Site) -> None:
    """Nothing ends a thread from outside, so its effect happens; its result is not taken."""
    async with site.program.app:
        first = await site.worker().ready()
        run = await site.program.holding.start("a", 60.0, True)
        await site.seen("enter", tag="a", pid=first.pid)
        await first.suspend()
        second = await site.worker().ready()
        await site.seen("enter", tag="a", pid=second.pid)
        first.send(signal.SIGCONT)
        await until(lambda: "is let go of" in first.log, "the first worker drops the run")
        site.program.release("a")
        assert await run.result(timeout=30) == second.pid
        assert (await run.get()).executions == 2
    site.ledger.check_acknowledged_once()
