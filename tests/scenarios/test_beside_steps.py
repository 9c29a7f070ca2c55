"""What happens beside a running step body: timers, timeouts, other branches, bodies that misbehave."""

from __future__ import annotations

import asyncio
import sys

import pytest

import kagzi
from kagzi import Kagzi, Retry, WorkflowFailed
from tests.scenarios.conftest import Stage


def make_app() -> Kagzi:
    return Kagzi("memory://")


def test_a_timeout_ends_a_running_step(stage: Stage) -> None:
    app = make_app()
    ended: list[str] = []

    @app.step
    async def slow() -> str:
        try:
            await asyncio.sleep(300)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise
        return "late"

    @app.workflow
    async def impatient() -> list[float | str]:
        began = kagzi.now()
        try:
            async with asyncio.timeout(0.5):
                return [await slow()]
        except TimeoutError:
            return ["timed out", (kagzi.now() - began).total_seconds()]

    async def scenario() -> list[float | str]:
        return await impatient.run()

    verdict, seconds = stage.run(app, scenario)
    assert verdict == "timed out"
    assert isinstance(seconds, float)
    assert 0.5 <= seconds < 0.5 + stage.lateness
    assert ended == ["cancelled"]


def test_a_sleep_beside_a_step_ends_on_time(stage: Stage) -> None:
    app = make_app()
    awake = asyncio.Event()

    @app.step
    async def long() -> None:
        await awake.wait()

    @app.step
    async def rise() -> None:
        awake.set()

    @app.workflow
    async def both() -> float:
        began = kagzi.now()

        async def nap() -> float:
            await asyncio.sleep(1.2)
            seconds = (kagzi.now() - began).total_seconds()
            await rise()
            return seconds

        _, napped = await asyncio.gather(long(), nap())
        return napped

    async def scenario() -> float:
        return await both.run()

    assert 1.2 <= stage.run(app, scenario) < 1.2 + stage.lateness


def test_a_retry_beside_a_step_starts_on_time(stage: Stage) -> None:
    app = make_app()
    worked = asyncio.Event()

    @app.step(retry=Retry.fixed("500ms", attempts=3))
    async def flaky() -> None:
        if kagzi.attempt() < 3:
            raise ConnectionError("not yet")
        worked.set()

    @app.step
    async def long() -> None:
        await worked.wait()

    @app.workflow
    async def both() -> float:
        began = kagzi.now()

        async def stubborn() -> float:
            await flaky()
            return (kagzi.now() - began).total_seconds()

        _, needed = await asyncio.gather(long(), stubborn())
        return needed

    async def scenario() -> float:
        return await both.run()

    # Two retries of half a second, with jitter.
    assert 0.7 <= stage.run(app, scenario) < 1.3 + stage.lateness


def test_a_body_that_calls_exit_fails_its_step_and_nothing_else(stage: Stage) -> None:
    app = make_app()

    @app.step(retry=Retry.none)
    async def leave() -> None:
        sys.exit(3)

    @app.step(retry=Retry.none)
    def leave_too() -> None:
        sys.exit(4)

    @app.workflow
    async def rash(threaded: bool) -> None:
        await (leave_too() if threaded else leave())

    async def scenario() -> None:
        for threaded in (False, True):
            run = await rash.start(threaded)
            with pytest.raises(WorkflowFailed, match="SystemExit"):
                await run.result()

    stage.run(app, scenario)
