"""Switches for changes of code under live runs, at every home."""

from __future__ import annotations

from typing import Any

import pytest

import kagzi
from kagzi import Kagzi, RunStatus, WorkflowFailed
from kagzi.testing import run_virtually
from tests.scenarios.conftest import Stage


def subscription(home: str, *, is_new: bool) -> Kagzi:
    """An app whose workflow charges a fee for each month; of the new code or of the old."""
    app = Kagzi(home)

    @app.step
    def fee(way: str, month: int) -> str:
        return f"{way}-{month}"

    @app.workflow
    async def months(count: int) -> list[str]:
        fees = []
        for month in range(count):
            fees.append(await fee("new" if is_new and kagzi.patched("new-fee") else "old", month))
            await kagzi.wait_signal("next")
        return fees

    return app


async def pay(app: Kagzi, run: kagzi.Handle[Any], month: int) -> None:
    """Waits until the month is charged and the run is parked."""
    async with app.worker():
        await run.signal("next", month)
        while True:
            status = await run.status()
            charged = [step for step in await run.steps() if step.name == "fee"]
            if status.finished or (status is RunStatus.SLEEPING and len(charged) > month + 1):
                return
            await kagzi.sleep(0.01)


async def test_a_run_ends_its_month_in_the_old_code_and_turns_to_the_new(home: str) -> None:
    async with subscription(home, is_new=False) as old, subscription(home, is_new=True) as new:
        workflow = old.find_workflow("months", "1")
        assert workflow is not None
        run = await workflow.start(4)
        await pay(old, run, 0)
        for month in (1, 2, 3):
            await pay(new, run, month)
        # It was parked in its second month, which the old code had begun.
        assert await run.result(timeout=60) == ["old-0", "old-1", "new-2", "new-3"]
        steps = {step.step_id: step for step in await run.steps()}
        assert [step_id for step_id in steps if step_id.startswith("@@@")] == ["@@@new-fee#3"]


def test_a_switch_stays_on_when_the_run_is_tried_again_and_when_it_is_repeated(stage: Stage) -> None:
    app = Kagzi("memory://")
    ways: list[str] = []
    healthy = False

    @app.step(retry=kagzi.Retry.none)
    def charge(way: str) -> str:
        ways.append(way)
        if not healthy:
            raise RuntimeError("no")
        return way

    @app.workflow(retry=kagzi.Retry(attempts=2, first="10ms"))
    def order() -> str:
        return charge.call("new" if kagzi.patched("new-fee") else "old")

    async def main() -> None:
        nonlocal healthy
        run = await order.start()
        with pytest.raises(WorkflowFailed):
            await run.result(timeout=60)
        healthy = True
        again = await run.retry()
        assert await again.result(timeout=60) == "new"
        assert ways == ["new"] * 3

    stage.run(app, main)


def test_in_a_step_it_is_refused_with_the_place() -> None:
    app = Kagzi("memory://")

    @app.step(retry=kagzi.Retry.none)
    async def charge() -> bool:
        return kagzi.patched("fee")

    @app.workflow
    async def order() -> bool:
        return await charge()

    async def main() -> None:
        with pytest.raises(WorkflowFailed, match=r"in a step, and is for workflows \(at .*test_patches.py:\d+"):
            await order.run()

    run_virtually(app, main)
