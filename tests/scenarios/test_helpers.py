"""Every helper works in `def` and `async def` steps and workflows alike, or says why it does not."""

from __future__ import annotations

import asyncio
import threading
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import kagzi
from kagzi import InvalidRequest, Kagzi, Retry, WorkflowFailed
from tests.scenarios.conftest import Stage, until

LONG = timedelta(milliseconds=200)


def test_sleeps_last_everywhere(stage: Stage) -> None:
    app = Kagzi("memory://")

    @app.step
    def plain_step() -> timedelta:
        began = kagzi.now()
        kagzi.sleep("120ms")
        kagzi.sleep_until(kagzi.now() + timedelta(milliseconds=80))
        return kagzi.now() - began

    @app.step
    async def async_step() -> timedelta:
        began = kagzi.now()
        await kagzi.sleep("120ms")
        await kagzi.sleep_until("named", kagzi.now() + timedelta(milliseconds=80))
        return kagzi.now() - began

    @app.workflow
    def plain() -> list[timedelta]:
        began = kagzi.now()
        kagzi.sleep("120ms")
        kagzi.sleep_until("named", kagzi.now() + timedelta(milliseconds=80))
        return [kagzi.now() - began, plain_step.call(), async_step.call()]

    @app.workflow
    async def awaiting() -> list[timedelta]:
        began = kagzi.now()
        await kagzi.sleep("named", "120ms")
        await kagzi.sleep_until(kagzi.now() + timedelta(milliseconds=80))
        return [kagzi.now() - began, await plain_step(), await async_step()]

    async def scenario() -> list[timedelta]:
        return [*await plain.run(), *await awaiting.run()]

    lengths = stage.run(app, scenario)
    assert len(lengths) == 6
    assert all(length >= LONG for length in lengths), lengths


def test_inline_steps_run_everywhere(stage: Stage) -> None:
    app = Kagzi("memory://")

    async def later(number: int) -> int:
        return number + 1

    @app.step
    def plain_step() -> list[int]:
        return [kagzi.run_step("a", len, "ab"), kagzi.run_step("b", later, 2)]  # type: ignore[list-item]

    @app.step
    async def async_step() -> list[int]:
        return [await kagzi.run_step("a", len, "ab"), await kagzi.run_step("b", later, 2)]

    @app.workflow
    def inner(number: int) -> int:
        return number * 2

    @app.workflow
    def plain(ctx: kagzi.Context) -> list[int]:
        both: Any = [kagzi.run_step("a", len, "ab"), ctx.step("b", later, 2), inner.call(3)]
        return [*both, *plain_step.call(), *async_step.call()]

    @app.workflow
    async def awaiting(ctx: kagzi.Context) -> list[int]:
        both = [await kagzi.run_step("a", len, "ab"), await ctx.step("b", later, 2), await inner(3)]
        return [*both, *await plain_step(), *await async_step()]

    async def scenario() -> list[list[int]]:
        return [await plain.run(), await awaiting.run()]

    # On virtual time a `def` body has no thread, and so no event loop for an `async def` function.
    if stage.lateness < 1:
        with pytest.raises(WorkflowFailed, match="b is an `async def` function, and an event loop runs in this thread"):
            stage.run(app, scenario)
    else:
        assert stage.run(app, scenario) == [[2, 3, 6, 2, 3, 2, 3]] * 2


async def test_a_sleeping_def_step_ends_when_it_is_cancelled() -> None:
    app = Kagzi("memory://")
    asleep, ends = threading.Event(), []

    @app.step
    def doze() -> None:
        asleep.set()
        try:
            kagzi.sleep("1 hour")
        finally:
            ends.append(kagzi.cancelled())

    @app.workflow
    async def flow() -> None:
        await doze()

    async with app, app.worker():
        run = await flow.start()
        await until(asleep.is_set)
        await run.cancel()
        await until(lambda: ends)
    assert ends == [True]


async def test_an_async_step_sees_that_it_was_cancelled() -> None:
    app = Kagzi("memory://")
    asleep, seen = threading.Event(), []

    @app.step
    async def doze() -> None:
        seen.append(kagzi.cancelled())
        asleep.set()
        try:
            await kagzi.sleep("1 hour")
        finally:
            seen.append(kagzi.cancelled())

    @app.workflow
    async def flow() -> None:
        await doze()

    async with app, app.worker():
        run = await flow.start()
        await until(asleep.is_set)
        await run.cancel()
        await until(lambda: len(seen) == 2)
    assert seen == [False, True]


def test_what_is_not_for_workflows_says_so(stage: Stage) -> None:
    app = Kagzi("memory://")

    @app.step
    def add(a: int, b: int) -> int:
        return a + b

    wrong = {
        "attempt": (kagzi.attempt, r"kagzi\.attempt\(\) is for steps"),
        "cancelled": (kagzi.cancelled, r"kagzi\.cancelled\(\) is for steps.*CancelledError"),
        "call": (lambda: add.call(1, 2), r"add\.call\(\.\.\.\) is for `def` workflows.*write `await add\(\.\.\.\)`"),
    }

    @app.workflow(retry=Retry.none)
    async def awaiting(what: str) -> Any:
        return wrong[what][0]()

    @app.workflow(retry=Retry.none)
    def plain(what: str) -> Any:
        return wrong[what][0]()

    async def scenario() -> None:
        for what, (_, words) in wrong.items():
            with pytest.raises(WorkflowFailed, match=f"{words}.*test_helpers.py:"):
                await awaiting.run(what)
            if what != "call":
                with pytest.raises(WorkflowFailed, match=words):
                    await plain.run(what)
        assert await plain.run("call") == 3

    stage.run(app, scenario)


# As the functions they are, without an engine.


class Functions:
    app = Kagzi("memory://")

    @staticmethod
    @app.step
    def add(a: int, b: int) -> int:
        kagzi.sleep("10ms")
        return a + b

    @staticmethod
    @app.step
    async def multiply(a: int, b: int) -> int:
        await kagzi.sleep("10ms")
        return a * b

    @staticmethod
    @app.workflow
    def inner(number: int) -> int:
        return Functions.multiply.call(number, 2)

    @staticmethod
    @app.workflow
    def plain(number: int) -> list[int]:
        kagzi.sleep("10ms")
        direct: Any = [Functions.add(number, 1), Functions.multiply(number, 3), kagzi.run_step("len", len, "ab")]
        return [*direct, Functions.add.call(number, 1), Functions.inner.call(number)]

    @staticmethod
    @app.workflow
    async def awaiting(number: int) -> list[int]:
        await kagzi.sleep("10ms")
        return [await Functions.add(number, 1), await Functions.multiply(number, 3), await Functions.inner(number)]


def test_a_def_workflow_is_a_function_that_gets_results() -> None:
    began = time.monotonic()
    result: Any = Functions.plain.fn(5)
    assert result == [6, 15, 2, 6, 10]
    assert time.monotonic() - began >= 0.05


def test_an_async_workflow_is_a_function_that_awaits() -> None:
    async def scenario() -> Any:
        return await Functions.app.workflow(name="caller")(no_def_within).fn(5)

    async def no_def_within(number: int) -> list[int]:
        with pytest.raises(InvalidRequest, match=r"add\.call.*is for `def` workflows"):
            Functions.add.call(1, 2)
        return [await Functions.add(number, 1), await Functions.multiply(number, 3)]

    assert asyncio.run(scenario()) == [6, 15]
    with pytest.raises(InvalidRequest, match="multiply is an `async def` function, and an event loop runs"):
        asyncio.run(Functions.awaiting.fn(5))  # its inner workflow is a `def` one, and calls an `async def` step


def test_call_gives_the_result_of_any_step_outside() -> None:
    assert Functions.add.call(1, 2) == 3
    assert Functions.multiply.call(2, 3) == 6
    began = datetime.now(UTC)
    kagzi.sleep_until(began + timedelta(milliseconds=30))
    assert datetime.now(UTC) >= began + timedelta(milliseconds=30)


def test_groups_give_results_to_def_code() -> None:
    """In the body of a `def` step, and in a `def` workflow that is called as a function."""
    app = Kagzi("memory://")

    @app.step
    def double(number: int) -> int:
        return 2 * number

    @app.step
    def plain_step(numbers: list[int]) -> list[int]:
        result: Any = kagzi.map(double, numbers)
        return list(result)

    @app.workflow
    def plain(numbers: list[int]) -> list[int]:
        result: Any = kagzi.map(double, numbers)
        return list(result)

    async def scenario() -> Any:
        async with app, app.worker():
            return await app.workflow(name="outer")(lambda: plain_step.call([1, 2])).run(), await plain.run([3])

    assert asyncio.run(scenario()) == ([2, 4], [6])
    assert plain_step.call([1, 2]) == [2, 4]
    assert plain.fn([3]) == [6]  # type: ignore[comparison-overlap]
