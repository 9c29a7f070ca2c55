"""Signals: what a run is told from outside, at every home."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import kagzi
from kagzi import Conflict, InvalidRequest, Kagzi, NotFound, RunStatus, StepKind, WorkflowFailed
from kagzi.testing import run_virtually
from tests.scenarios.conftest import Stage


class Office:
    """Workflows that wait for signals."""

    def __init__(self) -> None:
        self.app = app = Kagzi("memory://")
        self.steps: list[str] = []
        steps = self.steps

        @app.step
        async def note(text: str) -> str:
            steps.append(text)
            return text

        @app.workflow
        async def approval(timeout: str) -> str:
            approved = await kagzi.wait_signal("approved", bool, timeout=timeout, default=None)
            return await note({True: "yes", False: "no", None: "nobody"}[approved])

        @app.workflow
        async def cart() -> list[int]:
            items = [item async for item in kagzi.signals("added", int, timeout="1s")]
            await asyncio.sleep(1.5)  # parks: what follows has replayed all of this
            return items

        @app.workflow
        async def raced() -> str:
            first = await kagzi.race(kagzi.wait_signal("paid", str), kagzi.wait_signal("failed", str))
            second = await kagzi.wait_signal("failed", str)
            return f"{first} {second}"

        @app.workflow
        def plain() -> list[Any]:
            ok: Any = kagzi.wait_signal("approved", bool)
            return [ok, *kagzi.signals("added", int, timeout="1s")]

        @app.workflow
        async def strict() -> int:
            try:
                return await kagzi.wait_signal("count", int)
            except InvalidRequest:
                return await kagzi.wait_signal("count", int)

        self.approval, self.cart, self.raced, self.plain, self.strict = approval, cart, raced, plain, strict


@pytest.fixture
def office() -> Office:
    return Office()


async def parked(run: Any) -> None:
    await until_async(run, RunStatus.SLEEPING)


async def until_async(run: Any, status: RunStatus) -> None:
    async with asyncio.timeout(60):
        while await run.status() is not status:
            await asyncio.sleep(0.01)


def test_a_signal_wakes_the_run_that_waits_for_it(office: Office, stage: Stage) -> None:
    async def main() -> None:
        run = await office.approval.options(id="order-42").start("3d")
        await parked(run)
        await run.signal("other", 1)  # changes nothing
        await office.app.signal("order-42", "approved", True)
        assert await run.result(timeout=60) == "yes"
        assert [(signal.name, signal.value, signal.taken) for signal in await run.signals()] == [
            ("other", 1, False),
            ("approved", True, True),
        ]
        (step,) = [step for step in await run.steps() if step.kind is StepKind.SIGNAL]
        assert (step.name, step.output) == ("approved", True)

    stage.run(office.app, main)
    assert office.steps == ["yes"]


def test_without_a_signal_the_default_is_taken_in_time(office: Office, stage: Stage) -> None:
    async def main() -> None:
        assert await office.approval.run("1200ms") == "nobody"

    stage.run(office.app, main)


def test_signals_that_come_first_are_kept_in_order(office: Office, stage: Stage) -> None:
    async def main() -> None:
        run = await office.cart.options(delay="300ms").start()
        for number in range(30):
            await run.signal("added", number, key=f"k{number}")
            await run.signal("added", 100, key=f"k{number}")  # a repeat
        assert await run.result(timeout=60) == list(range(30))

    stage.run(office.app, main)


def test_the_loser_of_a_race_takes_nothing(office: Office, stage: Stage) -> None:
    async def main() -> None:
        run = await office.raced.start()
        await parked(run)
        await run.signal("paid", "first")
        await run.signal("failed", "second")
        assert await run.result(timeout=60) == "first second"

    stage.run(office.app, main)


def test_a_run_that_is_busy_hears_of_it_when_it_waits(office: Office, stage: Stage) -> None:
    going = asyncio.Event()

    @office.app.step
    async def busy() -> None:
        going.set()
        await asyncio.sleep(0.3)

    @office.app.workflow
    async def later() -> int:
        await busy()
        return await kagzi.wait_signal("go", int)

    async def main() -> None:
        run = await later.start()
        await going.wait()
        await run.signal("go", 7)
        assert await run.result(timeout=60) == 7

    stage.run(office.app, main)


def test_def_workflows_wait_for_signals(office: Office) -> None:
    async def main() -> Any:
        run = await office.plain.start()
        await run.signal("approved", True)
        await run.signal("added", 1)
        await run.signal("added", 2)
        return await run.result(timeout=60)

    assert run_virtually(office.app, main) == [True, 1, 2]


def test_a_value_that_does_not_fit_is_an_error_where_it_is_waited_for(office: Office) -> None:
    async def main() -> Any:
        run = await office.strict.start()
        await run.signal("count", "many")
        await run.signal("count", 3)
        return await run.result(timeout=60)

    assert run_virtually(office.app, main) == 3


def test_bad_signals_are_refused(office: Office, stage: Stage) -> None:
    async def main() -> None:
        run = await office.approval.options(id="one").start("3d")
        await run.signal("approved", True, key="k")
        assert await run.result(timeout=60) == "yes"
        with pytest.raises(Conflict, match="is COMPLETED and takes no signals"):
            await run.signal("approved", True)
        await run.signal("approved", True, key="k")  # a repeat is the first one
        with pytest.raises(NotFound, match="no run with the id 'two'"):
            await office.app.signal("two", "approved")
        with pytest.raises(InvalidRequest, match="signal name"):
            await run.signal("")
        with pytest.raises(InvalidRequest, match="must not begin with '~'"):
            await run.signal("approved", key="~mine")
        with pytest.raises(kagzi.NotSerializable, match="signal 'approved'"):
            await run.signal("approved", object())

    stage.run(office.app, main)


async def test_outside_of_a_workflow_there_is_nothing_to_wait_for() -> None:
    with pytest.raises(InvalidRequest, match="outside of a workflow"):
        kagzi.wait_signal("approved")


def test_a_default_that_is_never_given_is_refused(office: Office) -> None:
    @office.app.workflow
    async def endless() -> bool:
        return await kagzi.wait_signal("approved", bool, default=False)

    async def main() -> None:
        await endless.run()

    with pytest.raises(WorkflowFailed, match=r"has a default and no timeout.*test_signals\.py:\d+"):
        run_virtually(office.app, main)


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
def test_a_wait_that_is_not_awaited_fails_the_run(office: Office) -> None:
    @office.app.workflow
    async def forgetful() -> int:
        kagzi.wait_signal("approved")
        return 1

    async def main() -> None:
        await forgetful.run()

    with pytest.raises(WorkflowFailed, match=r"kagzi.wait_signal.*test_signals\.py:\d+"):
        run_virtually(office.app, main)


def test_a_cancelled_run_stops_waiting(office: Office, stage: Stage) -> None:
    async def main() -> None:
        run = await office.approval.start("3d")
        await parked(run)
        assert await run.cancel()
        with pytest.raises(kagzi.WorkflowCancelled):
            await run.result(timeout=60)

    stage.run(office.app, main)
