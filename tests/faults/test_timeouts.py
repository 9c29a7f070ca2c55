"""Steps that take too long: ended by their worker, or by the coordinator when the worker cannot."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta

import pytest

from kagzi import RunStatus, StepStatus, WorkflowFailed
from tests.faults.conftest import MakeSite
from tests.faults.processes import Site

# On one database: what differs between the two is held by the conformance suite.
pytestmark = pytest.mark.parametrize("url", ["sqlite"], indirect=True)


@pytest.fixture
def site(url: str, make_site: MakeSite) -> Site:
    return make_site(url, lease=30)


@pytest.mark.parametrize("kind", ["slow", "stubborn", "hanging"])
async def test_a_step_past_its_timeout_fails_and_is_tried_again(site: Site, kind: str) -> None:
    async with site.program.app:
        await site.worker().ready()
        run = await site.program.too_slow.start(kind)
        with pytest.raises(WorkflowFailed, match=r"ran longer than its timeout of 0\.3 s") as caught:
            await run.result(timeout=60)
        assert isinstance(caught.value.__cause__, TimeoutError)
        steps = sorted(await run.steps(), key=lambda step: step.attempt)
        assert [(step.status, step.attempt) for step in steps] == [(StepStatus.FAILED, 1), (StepStatus.FAILED, 2)]
        assert (await run.get()).executions == 1
        # By the worker's clock: a body notes its own beginning later than that, and not always equally late.
        assert all(step.duration is not None and step.duration >= timedelta(seconds=0.3) for step in steps)
        entered = site.ledger.lines("enter")
        assert [line["attempt"] for line in entered] == [1, 2]
        # A body that swallows its cancellation is given up after three seconds.
        assert entered[1]["at"] - entered[0]["at"] < 30
        site.program.release("hanging")


async def test_the_coordinator_ends_a_step_whose_worker_is_suspended(site: Site) -> None:
    """The lease has long to go: only the timeout can free the run."""
    async with site.program.app:
        first = await site.worker().ready()
        run = await site.program.second_try.start("a")
        entered = await site.seen("enter", tag="a")
        while not any(step.status is StepStatus.RUNNING for step in await run.steps()):
            assert time.monotonic() - entered["at"] < 5, "its timeout came first"
            await asyncio.sleep(0.02)
        await first.suspend()
        second = await site.worker().ready()
        assert await run.result(timeout=60) == 2
        again = await site.seen("enter", tag="a", pid=second.pid)
        assert 5 <= again["at"] - entered["at"] < 28  # timeout, then 5 s for the worker, well before the lease
        found, steps = await run.get(), sorted(await run.steps(), key=lambda step: step.attempt)
        assert (found.status, found.executions, found.crashes, found.attempts) == (RunStatus.COMPLETED, 2, 0, 0)
        assert [(step.status, step.attempt) for step in steps] == [(StepStatus.FAILED, 1), (StepStatus.COMPLETED, 2)]
        assert "timeout" in str(steps[0].error)
    assert not site.ledger.lines("exit")
