"""Exceptions that are no `Exception`: they fail the attempt in which they are raised, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from kagzi import Kagzi, Retry, WorkflowFailed
from kagzi.core.failure import Failure
from tests.scenarios.conftest import Stage


class Halt(BaseException):
    pass


RAISED: list[BaseException] = [
    Halt("halt"),
    KeyboardInterrupt("ctrl-c"),
    SystemExit(3),
    GeneratorExit("closed"),
    BaseExceptionGroup("several", [Halt("one"), ValueError("two")]),
]


def failure_of(error: WorkflowFailed) -> Failure:
    assert error.failure is not None
    return error.failure


def test_in_step_bodies(stage: Stage) -> None:
    app = Kagzi("memory://")
    twice = Retry(attempts=2, first=0)

    @app.step(retry=twice)
    async def bad_async(number: int) -> None:
        await asyncio.sleep(0)
        raise RAISED[number]

    @app.step(retry=twice)
    def bad_def(number: int) -> None:
        raise RAISED[number]

    steps: dict[str, Callable[[int], Any]] = {"bad_async": bad_async, "bad_def": bad_def}

    @app.workflow(retry=Retry.none)
    async def calls(step: str, number: int) -> None:
        await steps[step](number)

    @app.workflow
    async def bystander() -> int:
        await asyncio.sleep(0.2)
        return 1

    async def main() -> None:
        beside = await bystander.start()
        for step in steps:
            for number, raised in enumerate(RAISED):
                run = await calls.start(step, number)
                with pytest.raises(WorkflowFailed) as caught:
                    await run.result(timeout=60)
                assert type(raised).__name__.removeprefix("Base") in str(caught.value)  # only an Exception comes back
                attempts = sorted((each.attempt, each.status) for each in await run.steps())
                assert attempts == [(1, "FAILED"), (2, "FAILED")]
        assert await beside.result() == 1

    stage.run(app, main)


def test_in_workflows(stage: Stage) -> None:
    app = Kagzi("memory://")

    @app.workflow(retry=Retry.none)
    async def bad_async(number: int) -> None:
        raise RAISED[number]

    @app.workflow(retry=Retry.none)
    def bad_def(number: int) -> None:
        raise RAISED[number]

    @app.workflow
    async def bystander() -> int:
        await asyncio.sleep(0.2)
        return 1

    async def main() -> None:
        beside = await bystander.start()
        for workflow in (bad_async, bad_def):
            for number, raised in enumerate(RAISED):
                run = await workflow.start(number)
                with pytest.raises(WorkflowFailed) as caught:
                    await run.result(timeout=60)
                assert failure_of(caught.value).type.endswith(type(raised).__name__)
        assert await beside.result() == 1

    stage.run(app, main)
