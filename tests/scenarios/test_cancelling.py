"""Cancelling runs, as their authors and their callers see it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import pytest

import kagzi
from kagzi import Kagzi, Retry, RunStatus, StepKind, StepStatus, WorkflowCancelled, WorkflowFailed
from kagzi.api.operations import CancelAnswer, CancelRun, Chunk, CompleteRun, Write
from kagzi.store.postgres.work import Work as PostgresWork
from kagzi.store.protocol.changes import Applied
from kagzi.store.sqlite.work import Work as SqliteWork
from tests.scenarios.conftest import Stage, until
from tests.scenarios.shop import Shop, becomes, ended

RUNNING, SLEEPING, PENDING = RunStatus.RUNNING, RunStatus.SLEEPING, RunStatus.PENDING
CANCELLED, COMPLETED, FAILED = RunStatus.CANCELLED, RunStatus.COMPLETED, RunStatus.FAILED


@pytest.fixture
def cancelled_at_the_end(monkeypatch: pytest.MonkeyPatch) -> list[CancelAnswer]:
    """Whatever comes to its end is cancelled just before that is stored, once; what the caller is told."""
    told: list[CancelAnswer] = []

    def before_ends(work: type[Any]) -> None:
        apply = work.apply

        async def cancel_first(self: Any, writes: Sequence[Write]) -> Applied:
            for write in writes:
                if not told and isinstance(write, Chunk) and isinstance(write.operations[-1], CompleteRun):
                    cancel = CancelRun(namespace=write.namespace, run_id=write.run_id)
                    told.extend((await apply(self, [cancel])).answers)
            applied: Applied = await apply(self, writes)
            return applied

        monkeypatch.setattr(work, "apply", cancel_first)

    before_ends(SqliteWork)
    before_ends(PostgresWork)
    return told


@pytest.mark.parametrize("form", ["async", "def"])
def test_a_run_that_has_returned_is_told_when_cancel_said_so(
    stage: Stage, cancelled_at_the_end: list[CancelAnswer], form: str
) -> None:
    shop = Shop(stage)
    if form == "async":

        @shop.app.workflow
        async def order() -> str:
            try:
                return await shop.charge(0)
            except asyncio.CancelledError:
                await shop.refund()
                raise
    else:

        @shop.app.workflow
        def order() -> str:
            try:
                return shop.charge.call(0)
            except asyncio.CancelledError:
                shop.refund.call()
                raise

    async def scenario() -> None:
        run = await order.start()
        assert await ended(run) is CANCELLED
        assert [answer.effective for answer in cancelled_at_the_end] == [True]
        assert shop.seen == ["charging", "charged", "refunded"]
        steps = [(step.step_id, step.status) for step in await run.steps()]
        assert steps == [
            ("charge", StepStatus.COMPLETED),
            ("@cancel", StepStatus.COMPLETED),
            ("refund", StepStatus.COMPLETED),
        ]

    shop.run(scenario)


def test_a_run_without_steps_that_has_returned_ends_cancelled(
    stage: Stage, cancelled_at_the_end: list[CancelAnswer]
) -> None:
    shop = Shop(stage)

    @shop.app.workflow
    async def nothing() -> str:
        return "done"

    async def scenario() -> None:
        run = await nothing.start()
        assert await ended(run) is CANCELLED
        assert await nothing.run() == "done"

    shop.run(scenario)
    assert [answer.effective for answer in cancelled_at_the_end] == [True]


def test_a_running_step_is_cancelled_and_the_workflow_cleans_up(stage: Stage) -> None:
    shop = Shop(stage)

    @shop.app.workflow
    async def order() -> None:
        try:
            await shop.charge()
        finally:
            await shop.refund()

    async def scenario() -> None:
        run = await order.start()
        async with asyncio.timeout(60):
            while not await run.steps():  # what is over at once leaves no row
                await asyncio.sleep(0.01)
        at = asyncio.get_running_loop().time()
        answer = await run.cancel()
        assert (bool(answer), answer.status) == (True, RUNNING)
        with pytest.raises(WorkflowCancelled, match="cancelled") as caught:
            await run.result(timeout=60)
        assert caught.value.run_id == run.id
        assert asyncio.get_running_loop().time() - at < stage.lateness  # at once, if its worker is in this process
        steps = {step.step_id: step for step in await run.steps()}
        assert {name: step.status for name, step in steps.items()} == {
            "charge": StepStatus.CANCELLED,
            "@cancel": StepStatus.COMPLETED,
            "refund": StepStatus.COMPLETED,
        }
        assert (steps["@cancel"].kind, steps["@cancel"].completed_seq) == (StepKind.CANCEL, 1)
        assert (await run.status()) is CANCELLED

    shop.run(scenario)
    assert shop.seen == ["charging", "charge cancelled", "refunded"]


def test_a_sleeping_run_is_woken(stage: Stage) -> None:
    shop = Shop(stage)

    @shop.app.workflow
    async def order() -> None:
        try:
            await kagzi.sleep("30 days")
        finally:
            await shop.refund()

    async def scenario() -> float:
        run = await order.start()
        await stage.linger(3600)
        await becomes(run, SLEEPING)
        before = asyncio.get_running_loop().time()
        assert await run.cancel()
        assert await ended(run) is CANCELLED
        return asyncio.get_running_loop().time() - before

    assert shop.run(scenario) < stage.lateness
    assert shop.seen == ["refunded"]


def test_a_run_that_waits_for_a_retry_is_woken(stage: Stage) -> None:
    shop = Shop(stage)

    @shop.app.step(retry=Retry(attempts=5, first="1h", cap="1h"))
    async def flaky() -> None:
        shop.seen.append("tried")
        raise OSError("busy")

    @shop.app.workflow
    async def order() -> None:
        await flaky()

    async def scenario() -> None:
        run = await order.start()
        await becomes(run, SLEEPING)
        assert await run.cancel()
        assert await ended(run) is CANCELLED

    shop.run(scenario)
    assert shop.seen == ["tried"]


def test_a_short_wait_is_cut_short(stage: Stage) -> None:
    shop = Shop(stage)

    @shop.app.workflow
    async def order() -> None:
        try:
            while True:
                await asyncio.sleep(0.9)
        finally:
            await shop.refund()

    async def scenario() -> None:
        runs = [await order.start() for _ in range(5)]
        for run in runs:
            await becomes(run, RUNNING)
        await stage.linger(2)
        assert all([await run.cancel() for run in runs])
        assert [await ended(run) for run in runs] == [CANCELLED] * 5

    # More of them than there are slots: each needs one again before it can clean up.
    shop.run(scenario, concurrency=2)
    assert shop.seen == ["refunded"] * 5


def test_a_run_that_never_executed_ends_at_once(stage: Stage) -> None:
    shop = Shop(stage)

    @shop.app.workflow
    async def order() -> None:
        await shop.charge()

    async def scenario() -> None:
        run = await order.options(delay="1h").start()
        answer = await run.cancel()
        assert (answer.effective, answer.status) == (True, CANCELLED)
        with pytest.raises(WorkflowCancelled, match="before it began"):
            await run.result(timeout=60)
        assert await run.steps() == ()

    shop.run(scenario)
    assert shop.seen == []


def test_whoever_swallows_the_cancellation_completes(stage: Stage) -> None:
    shop = Shop(stage)

    @shop.app.workflow
    async def order() -> str:
        try:
            return await shop.charge()
        except asyncio.CancelledError:
            return await shop.refund()

    async def scenario() -> None:
        run = await order.start()
        await until(lambda: shop.seen)
        assert await run.cancel()
        assert await run.result(timeout=30) == "back"
        answer = await run.cancel()
        assert (bool(answer), answer.status) == (False, COMPLETED)

    shop.run(scenario)


def test_another_error_makes_it_fail_and_it_is_not_tried_again(stage: Stage) -> None:
    shop = Shop(stage)

    @shop.app.workflow(retry=Retry(attempts=5, first="1s"))
    async def order() -> None:
        try:
            await shop.charge()
        finally:
            raise ValueError("cannot undo")

    async def scenario() -> None:
        run = await order.start()
        await until(lambda: shop.seen)
        assert await run.cancel()
        with pytest.raises(WorkflowFailed, match="cannot undo") as caught:
            await run.result(timeout=60)
        assert not isinstance(caught.value, WorkflowCancelled)
        assert (await run.get()).attempts == 0

    shop.run(scenario)
    assert shop.seen == ["charging", "charge cancelled"]


def test_cancelling_beats_the_next_try_of_a_run(stage: Stage) -> None:
    shop = Shop(stage)

    @shop.app.workflow(retry=Retry(attempts=5, first="1h", cap="1h"))
    async def order() -> None:
        try:
            await shop.charge(0)
            if len(shop.seen) == 2:
                raise ValueError("once")
            await asyncio.sleep(3600)
        finally:
            await shop.refund()

    async def scenario() -> None:
        run = await order.start()
        await until(lambda: "refunded" in shop.seen)
        await becomes(run, PENDING)
        assert (await run.get()).attempts == 1
        assert await run.cancel()
        assert await ended(run) is CANCELLED

    shop.run(scenario)
    assert shop.seen == ["charging", "charged", "refunded"]  # the refund was recorded with the first try


def test_a_workflow_is_told_once(stage: Stage) -> None:
    shop = Shop(stage)
    told: list[str] = []
    enough = asyncio.Event()

    @shop.app.step
    async def wait() -> None:
        await enough.wait()

    @shop.app.workflow
    async def order() -> str:
        for body in (shop.charge, wait, wait):
            try:
                await body()
            except asyncio.CancelledError:
                told.append("told")
        return "done anyway"

    async def scenario() -> None:
        run = await order.start()
        await until(lambda: shop.seen)
        for _ in range(3):
            assert await run.cancel()
            await until(lambda: told)
        await stage.linger(1)
        enough.set()
        assert await run.result(timeout=60) == "done anyway"

    shop.run(scenario)
    assert told == ["told"]


def test_cleaning_up_has_its_time(stage: Stage) -> None:
    assert 0.2 <= seconds_to_clean_up(stage, "200ms") < 1.2 + stage.lateness


@pytest.mark.parametrize("stage", ["virtual"], indirect=True)  # half a minute is too long elsewhere
def test_cleaning_up_has_half_a_minute(stage: Stage) -> None:
    assert 30 <= seconds_to_clean_up(stage, None) < 31


def seconds_to_clean_up(stage: Stage, grace: str | None) -> float:
    shop = Shop(stage)

    @shop.app.workflow
    async def order() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            shop.seen.append("cleaning up")
            await kagzi.sleep("cancel", "1h")
            shop.seen.append("clean")

    async def scenario() -> float:
        run = await order.start()
        await becomes(run, SLEEPING)
        before = asyncio.get_running_loop().time()
        assert await run.cancel(grace=grace)
        with pytest.raises(WorkflowCancelled, match="time it had to clean up"):
            await run.result(timeout=600)
        return asyncio.get_running_loop().time() - before

    seconds: float = shop.run(scenario)
    assert "cleaning up" in shop.seen
    assert "clean" not in shop.seen
    return seconds


def test_cleaning_up_may_sleep_and_retry(stage: Stage) -> None:
    shop = Shop(stage)
    tries: list[int] = []

    @shop.app.step(retry=Retry(attempts=3, first="50ms", factor=1, jitter=0))
    async def release() -> str:
        tries.append(kagzi.attempt())
        if kagzi.attempt() < 3:
            raise OSError("busy")
        return "released"

    @shop.app.workflow
    async def order() -> None:
        await kagzi.sleep("cancel", "50ms")  # has the name of what is recorded for a cancellation
        try:
            await shop.charge()
        finally:
            await kagzi.sleep("cancel", "1100ms")  # long enough to be parked
            await release()

    async def scenario() -> None:
        run = await order.start()
        await until(lambda: shop.seen)
        assert await run.cancel()
        assert await ended(run) is CANCELLED
        events = [(step.step_id, step.attempt, step.kind) for step in await run.steps() if step.completed_seq]
        assert events == [
            ("@cancel", 1, StepKind.SLEEP),
            ("@cancel", 2, StepKind.CANCEL),
            ("@cancel#2", 1, StepKind.SLEEP),
            ("release", 3, StepKind.FUNCTION),
        ]

    shop.run(scenario)
    assert tries == [1, 2, 3]


def test_everything_a_workflow_has_under_way_is_cancelled(stage: Stage) -> None:
    shop = Shop(stage)

    @shop.app.workflow
    async def order() -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(3):
                group.create_task(shop.charge())
            group.create_task(asyncio.sleep(3600))

    async def scenario() -> None:
        run = await order.start()
        await until(lambda: len(shop.seen) == 3)
        assert await run.cancel()
        assert await ended(run) is CANCELLED

    shop.run(scenario)
    assert shop.seen == ["charging"] * 3 + ["charge cancelled"] * 3


def test_cleaning_up_begins_when_cancelled_bodies_have_ended(stage: Stage) -> None:
    shop = Shop(stage)

    @shop.app.step
    async def slow() -> None:
        shop.seen.append("slow began")
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.3)
            shop.seen.append("slow ended")

    @shop.app.workflow
    async def order() -> None:
        try:
            await slow()
        finally:
            await shop.refund()

    async def scenario() -> None:
        run = await order.start()
        await until(lambda: shop.seen)
        assert await run.cancel()
        assert await ended(run) is CANCELLED

    shop.run(scenario)
    assert shop.seen == ["slow began", "slow ended", "refunded"]


async def test_a_thread_is_asked_to_stop(home: str) -> None:
    """Not on virtual time, where threads have no place."""
    app = Kagzi(home)
    seen: list[str] = []

    @app.step
    def grind() -> None:
        seen.append("grinding")
        while not kagzi.cancelled():
            time.sleep(0.01)
        seen.append("stopped")

    @app.step
    async def sweep() -> None:
        seen.append("swept")

    @app.workflow
    async def mill() -> None:
        try:
            await grind()
        finally:
            await sweep()

    async with app, app.worker():
        run = await mill.start()
        await until(lambda: seen)
        assert await run.cancel()
        with pytest.raises(WorkflowCancelled):
            await run.result(timeout=20)
        again = await run.retry()
        await until(lambda: len(seen) == 4)
        assert await again.terminate("enough")
        with pytest.raises(WorkflowCancelled, match="enough"):
            await again.result(timeout=20)
    assert seen[:3] == ["grinding", "stopped", "swept"]
