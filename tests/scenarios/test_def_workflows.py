"""`def` workflows: they run in a thread, one thing after the other, and survive like all others."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

import kagzi
from kagzi import Context, Kagzi, NonRetryable
from tests.scenarios.conftest import Stage


class Declined(NonRetryable):
    pass


def make_app() -> Kagzi:
    return Kagzi("memory://")


def test_steps_sleeps_and_errors_in_order(stage: Stage) -> None:
    app = make_app()

    @app.step
    async def reserve(item: str) -> str:
        await asyncio.sleep(0.1)
        return f"{item} reserved"

    @app.step
    def charge(cents: int) -> str:
        if cents > 100:
            raise Declined("too much")
        return f"{cents} paid"

    @app.workflow
    def checkout(item: str, cents: int) -> list[str]:
        began = kagzi.now()
        story = [reserve.call(item)]
        kagzi.sleep("think it over", "1100ms")
        try:
            story.append(charge.call(cents))
        except Declined as declined:
            story.append(f"declined: {declined}")
        story.append(kagzi.run_step("shout", str.upper, "done"))  # type: ignore[arg-type]
        assert kagzi.now() - began >= timedelta(seconds=1.1)
        return story

    async def scenario() -> tuple[list[str], list[str], int]:
        good, bad = await checkout.start("book", 50), await checkout.start("yacht", 5000)
        return await good.result(), await bad.result(), (await good.get()).executions

    good, bad, executions = stage.run(app, scenario)
    assert good == ["book reserved", "50 paid", "DONE"]
    assert bad == ["yacht reserved", "declined: too much", "DONE"]
    assert executions == 2, "parked to think it over"


def test_a_context_and_a_workflow_within_a_workflow(stage: Stage) -> None:
    app = make_app()

    @app.step
    def double(number: int) -> int:
        return number * 2

    @app.workflow
    def inner(number: int) -> int:
        return double.call(number)

    @app.workflow
    def outer(ctx: Context, number: int) -> list[int]:
        ctx.sleep("a moment", "100ms")
        return [ctx.step("plain", lambda: number + 1), inner(number)]  # type: ignore[list-item]

    @app.workflow
    async def mixed(number: int) -> int:
        return await inner(number) + 1

    async def scenario() -> tuple[list[int], int]:
        return await outer.run(20), await mixed.run(4)

    assert stage.run(app, scenario) == ([21, 40], 9)


async def test_many_at_once(home: str) -> None:
    """Not on virtual time, where threads have no place."""
    app = Kagzi(home)

    @app.step
    def add(a: int, b: int) -> int:
        return a + b

    @app.workflow
    def total(numbers: list[int]) -> int:
        result = 0
        for number in numbers:
            result = add.call(result, number)
        return result

    async with app, app.worker():
        assert await asyncio.gather(*(total.run([1, 2, n]) for n in range(20))) == [3 + n for n in range(20)]


def test_it_can_be_called_as_the_function_it_is() -> None:
    app = make_app()

    @app.step
    def double(number: int) -> int:
        return number * 2

    @app.workflow
    def quadruple(number: int) -> int:
        return double.call(double.call(number))

    assert quadruple.fn(3) == 12  # type: ignore[comparison-overlap]
    with pytest.raises(kagzi.InvalidRequest, match="start"):
        quadruple(3)
