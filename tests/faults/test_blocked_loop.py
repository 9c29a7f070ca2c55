"""A step that blocks the event loop, or burns the processor, keeps its lease."""

from __future__ import annotations

import pytest

from kagzi import RunStatus
from tests.faults.processes import LEASE, Site


@pytest.mark.parametrize(
    ("url", "how"),
    [("sqlite", "burn"), pytest.param("postgres", "sleep", marks=pytest.mark.postgres)],
    indirect=["url"],
)
async def test_an_async_step_that_blocks_for_longer_than_its_lease_runs_once(site: Site, how: str) -> None:
    async with site.program.app:
        first = await site.worker().ready()
        run = await site.program.blocking.start(how, 1.6 * LEASE)
        await site.seen("enter")
        await site.worker().ready()  # which would take the run over
        assert await run.result(timeout=60) == "done"
        found = await run.get()
        assert (found.status, found.executions, found.crashes) == (RunStatus.COMPLETED, 1, 0)
        assert [line["pid"] for line in site.ledger.lines("enter")] == [first.pid]
        assert [line["attempt"] for line in site.ledger.lines("exit")] == [1]
        # What else the worker held meanwhile is not lost either.
        assert "is let go of" not in first.log
