"""What people see of runs and steps: datetimes, data and failures."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import kagzi
from kagzi import Conflict, Kagzi, Retry, RunRecord, RunStatus, StepKind, StepRecord, StepStatus, WorkflowFailed
from tests.scenarios.conftest import Stage

PAUSE, RETRY = timedelta(seconds=1.1), timedelta(seconds=0.2)


def make_app(may_work: asyncio.Event) -> tuple[Kagzi, Any]:
    app = Kagzi("memory://")

    @app.step(retry=Retry(attempts=2, first=RETRY, jitter=0))
    async def flaky(sku: str) -> str:
        await may_work.wait()
        if kagzi.attempt() == 1:
            raise ConnectionError(f"no {sku} today")
        return sku.upper()

    @app.step(retry=Retry.none)
    async def broken() -> None:
        raise ValueError("never works")

    @app.workflow
    async def order(sku: str, *, fail: bool = False) -> str:
        await kagzi.sleep("pause", PAUSE)
        result = await flaky(sku)
        if fail:
            await broken()
        return result

    return app, order


def test_a_record_of_a_run(stage: Stage) -> None:
    may_work = asyncio.Event()
    app, order = make_app(may_work)

    async def scenario() -> tuple[datetime, RunRecord, RunRecord, tuple[RunRecord, ...]]:
        began = kagzi.now()
        run = await order.options(id="a").start("pen")
        early = await run.get()
        may_work.set()
        await run.result()
        return began, early, await run.get(), (await app.runs()).items

    began, early, late, listed = stage.run(app, scenario)
    assert listed == (late,)
    assert abs(early.created_at - began) <= timedelta(seconds=stage.lateness)
    assert (early.finished_at, early.duration, early.output) == (None, None, None)
    assert early.created_at.tzinfo is UTC
    assert (late.id, late.workflow, late.queue) == ("a", "order", "default")
    assert (late.status, late.error) == (RunStatus.COMPLETED, None)
    assert late.duration is not None
    assert PAUSE + RETRY <= late.duration < PAUSE + RETRY + timedelta(seconds=stage.lateness)
    assert (late.input, late.output) == (["pen"], "PEN")
    assert "PEN" not in repr(late)
    assert "RunRecord(namespace='default'" in repr(late)


def test_records_of_steps(stage: Stage) -> None:
    may_work = asyncio.Event()
    may_work.set()
    app, order = make_app(may_work)

    async def scenario() -> tuple[tuple[StepRecord, ...], RunRecord]:
        run = await order.start("pen", fail=True)
        try:
            await run.result()
        except WorkflowFailed:
            pass
        return await run.steps(), await run.get()

    steps, run = stage.run(app, scenario)
    pause, again, broken, first = sorted(steps, key=lambda step: step.completed_seq or 99)
    assert (pause.name, pause.kind) == ("pause", StepKind.SLEEP)
    assert pause.duration is not None
    assert PAUSE <= pause.duration < PAUSE + timedelta(seconds=stage.lateness)
    assert (first.name, first.attempt, first.status, first.output) == ("flaky", 1, StepStatus.FAILED, None)
    assert first.error is not None
    assert first.error.message == "no pen today"
    assert first.finished_at is not None
    assert first.retry_at == first.finished_at + RETRY
    assert (again.attempt, again.status, again.input, again.output) == (2, StepStatus.COMPLETED, ["pen"], "PEN")
    assert again.started_at >= first.retry_at
    assert (broken.step_id, broken.retry_at) == ("broken", None)
    assert run.error is not None
    assert run.error.type == "builtins.ValueError"
    assert run.input == {"sku": "pen", "fail": True}


class Salted:
    """Other bytes every time, as an encrypting codec with a random nonce gives them."""

    def __init__(self) -> None:
        self.count = 0

    def encode(self, data: bytes, context: kagzi.PayloadContext) -> bytes:
        self.count += 1
        return self.count.to_bytes(4) + data

    def decode(self, data: bytes, context: kagzi.PayloadContext) -> bytes:
        return data[4:]


def test_a_codec_with_a_random_nonce(stage: Stage) -> None:
    app = Kagzi("memory://", codec=Salted())

    @app.step
    async def double(number: int) -> int:
        return 2 * number

    @app.workflow
    async def work(number: int) -> int:
        number = await double(number)
        await kagzi.sleep("1100ms")
        return await double(number)

    @app.workflow
    async def other(number: int) -> int:
        return number

    async def scenario() -> list[Any]:
        first = await work.options(id="one").start(1)
        second = await work.options(id="one").start(1)
        seen: list[Any] = [second.id == first.id, second.already_exists]
        for attempt in (
            work.options(id="one").start(2),
            other.options(id="one").start(1),
            work.options(id="one", on_conflict="fail").start(1),
        ):
            try:
                await attempt
            except Conflict:
                seen.append("conflict")
        return [*seen, await first.result(), (await first.get()).input, [s.output for s in await first.steps()]]

    assert stage.run(app, scenario) == [
        True,
        True,
        "conflict",
        "conflict",
        "conflict",
        4,
        [1],
        [2, None, 4],
    ]
