"""What happens beside a running step body: timers, timeouts, other branches, bodies that misbehave."""

from __future__ import annotations

import asyncio
import sys

import pytest

import kagzi
from kagzi import Kagzi, Retry, WorkflowFailed
from kagzi.testing import run_virtually


def make_app() -> Kagzi:
    return Kagzi("memory://")


def test_a_timeout_ends_a_running_step() -> None:
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
            async with asyncio.timeout(1.5):
                return [await slow()]
        except TimeoutError:
            return ["timed out", (kagzi.now() - began).total_seconds()]

    async def scenario() -> list[float | str]:
        return await impatient.run()

    verdict, seconds = run_virtually(app, scenario)
    assert verdict == "timed out"
    assert isinstance(seconds, float)
    assert seconds == pytest.approx(1.5, abs=0.01)
    assert ended == ["cancelled"]


def test_a_sleep_beside_a_step_ends_on_time() -> None:
    app = make_app()

    @app.step
    async def work(seconds: float) -> float:
        await asyncio.sleep(seconds)
        return seconds

    @app.workflow
    async def both() -> list[float]:
        began = kagzi.now()

        async def nap() -> float:
            await asyncio.sleep(20)
            await work.options(key="after the nap")(1)
            return (kagzi.now() - began).total_seconds()

        long, napped = await asyncio.gather(work(60), nap())
        return [long, napped, (kagzi.now() - began).total_seconds()]

    async def scenario() -> list[float]:
        return await both.run()

    assert run_virtually(app, scenario) == pytest.approx([60, 21, 60], abs=0.1)


def test_a_retry_beside_a_step_starts_on_time() -> None:
    app = make_app()

    @app.step(retry=Retry.fixed("5s", attempts=3))
    async def flaky() -> int:
        if kagzi.attempt() < 3:
            raise ConnectionError("not yet")
        return kagzi.attempt()

    @app.step
    async def long() -> None:
        await asyncio.sleep(100)

    @app.workflow
    async def both() -> list[float]:
        began = kagzi.now()

        async def stubborn() -> float:
            await flaky()
            return (kagzi.now() - began).total_seconds()

        _, needed = await asyncio.gather(long(), stubborn())
        return [needed]

    async def scenario() -> list[float]:
        return await both.run()

    [needed] = run_virtually(app, scenario)
    assert 7 <= needed <= 13, "two retries of five seconds, with jitter, not after the long step"


def test_a_body_that_calls_exit_fails_its_step_and_nothing_else() -> None:
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

    run_virtually(app, scenario)
