"""Runs that kill their workers end, and harm nobody else. Counters are kept apart."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator

import pytest

from kagzi import RunStatus, WorkflowFailed
from tests.faults.conftest import MakeSite
from tests.faults.processes import Site

# On one database: what differs between the two is held by the conformance suite.
pytestmark = pytest.mark.parametrize("url", ["sqlite"], indirect=True)


@pytest.fixture
def site(url: str, make_site: MakeSite) -> Site:
    return make_site(url, lease="2s", max_crashes=4)


@contextlib.asynccontextmanager
async def respawning(site: Site, count: int) -> AsyncIterator[None]:
    """That many worker processes, each replaced when it dies."""

    async def keep() -> None:
        while True:
            worker = site.worker()
            while worker.process.poll() is None:
                await asyncio.sleep(0.02)

    tasks = [asyncio.create_task(keep()) for _ in range(count)]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_run_that_kills_its_workers_fails_and_others_go_on(site: Site) -> None:
    async with site.program.app, respawning(site, 2):
        poison = await site.program.deadly.start(2)
        neighbours = [await site.program.chain.start(5, 0.005) for _ in range(10)]
        results = await asyncio.gather(*(run.result(timeout=60) for run in neighbours))
        assert results == [sum(range(5))] * 10
        with pytest.raises(WorkflowFailed, match=r"died 4 times in a row") as caught:
            await poison.result(timeout=60)
        assert caught.value.failure is not None
        found = await poison.get()
        assert (found.status, found.crashes, found.attempts) == (RunStatus.FAILED, 4, 0)
        assert found.executions >= 4  # claims: a worker that had another suspect handed it back
        assert len(site.ledger.lines("enter", phase=100)) == 4
        # Later runs have workers again.
        assert await (await site.program.chain.start(2, 0)).result(timeout=60) == 1
    site.ledger.check_acknowledged_once()


async def test_a_run_that_kills_the_only_worker_there_is_takes_no_other_along(site: Site) -> None:
    """What is due while no worker is up meets again in the first claim of the next one. Begun together, the others
    would die with the poison; and here they have lost their workers so often that one more time is the last."""
    async with site.program.app:
        neighbours = [await site.program.chain.start(3, 0.3) for _ in range(10)]
        with contextlib.closing(sqlite3.connect(site.url.removeprefix("sqlite:///"))) as database:
            database.execute("UPDATE workflow_runs SET crashes = 3, crashed_seq = -1")
            database.commit()
        poison = await site.program.deadly.start(0)
        async with respawning(site, 1):
            results = await asyncio.gather(*(run.result(timeout=60) for run in neighbours))
            assert results == [sum(range(3))] * 10
            with pytest.raises(WorkflowFailed, match=r"died 4 times in a row"):
                await poison.result(timeout=60)
        # One that was getting on counts anew when it loses its worker; the others were never begun beside the poison.
        assert {(await run.get()).crashes for run in neighbours} <= {1, 3}
    site.ledger.check_acknowledged_once()


async def test_progress_between_crashes_forgives_them(site: Site) -> None:
    """As many crashes as the limit allows, but never twice at the same place."""
    async with site.program.app, respawning(site, 1):
        run = await site.program.dies_after_each.start(4)
        assert await run.result(timeout=90) == 4
        found = await run.get()
        assert (found.status, found.executions, found.attempts) == (RunStatus.COMPLETED, 5, 0)
        assert found.crashes == 1  # in a row
    site.ledger.check_acknowledged_once()


async def test_waking_from_sleeps_burns_nothing(site: Site) -> None:
    async with site.program.app:
        await site.worker().ready()
        run = await site.program.naps.start(3, 1.1)
        assert await run.result(timeout=30) == 3
        found = await run.get()
        assert (found.attempts, found.crashes) == (0, 0)
        assert 1 <= found.executions <= 4
    assert [line["phase"] for line in site.ledger.lines("enter")] == [0, 1, 2]
