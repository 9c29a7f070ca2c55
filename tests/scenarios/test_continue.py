"""Workflows without end: a run that begins anew in place, at every home."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import kagzi
from kagzi import InvalidRequest, Kagzi, NonDeterminismError, PayloadTooLarge, WorkflowCancelled, WorkflowFailed
from kagzi.testing import run_virtually
from tests.scenarios.conftest import Stage


class Subscriptions:
    """Workflows that count months, and begin anew each time."""

    def __init__(self, url: str = "memory://") -> None:
        self.app = app = Kagzi(url)
        self.chance: list[Any] = []

        @app.step
        def charge(month: int) -> int:
            return month + 1

        @app.workflow
        async def months(month: int, last: int) -> int:
            self.chance.append((kagzi.uuid4(), kagzi.events()))
            month = await charge(month)
            if month < last:
                months.continue_as_new(month, last)
            return month

        @app.workflow
        def plain_months(month: int, last: int) -> int:
            month = charge.call(month)
            if month < last:
                plain_months.continue_as_new(month, last=last)
            return month

        @app.workflow
        async def cart(items: list[str]) -> list[str]:
            """Takes one item at a time; the others wait for the next incarnation."""
            items = [*items, await kagzi.wait_signal("added", str)]
            if items[-1] != "end":
                cart.continue_as_new(items)
            return items

        @app.workflow
        async def parent(last: int) -> int:
            return await months.run(0, last)

        self.months, self.plain_months, self.cart, self.parent = months, plain_months, cart, parent


def test_a_run_begins_anew_in_place(stage: Stage) -> None:
    works = Subscriptions()

    async def main() -> None:
        for workflow in (works.months, works.plain_months):
            run = await workflow.options(id=workflow.name).start(0, 5)
            assert await run.result(timeout=60) == 5
            record = await run.get()
            assert (record.incarnation, record.attempts, record.input) == (4, 0, [4, 5])
            # Its own steps, and those of the incarnation before it.
            assert sorted(step.step_id for step in await run.steps()) == ["charge", "charge~i4"]
            assert await run.values() == {}
            # A start that comes again finds it by what it was started with.
            again = await workflow.options(id=workflow.name).start(0, 5)
            assert (again.id, again.already_exists) == (run.id, True)
            with pytest.raises(kagzi.Conflict):
                await workflow.options(id=workflow.name).start(4, 5)
        assert len({chance for chance, _ in works.chance}) == 5  # each incarnation has its own
        assert {events for _, events in works.chance} == {0}
        assert await works.parent.run(3) == 3

    stage.run(works.app, main)


def test_signals_that_were_not_taken_stay(stage: Stage) -> None:
    works = Subscriptions()

    async def main() -> None:
        run = await works.cart.start([])
        for item in ("pen", "book", "ink", "end"):
            await run.signal("added", item)
        assert await run.result(timeout=60) == ["pen", "book", "ink", "end"]

    stage.run(works.app, main)


def test_a_thousand_continuations_leave_nothing_behind() -> None:
    works = Subscriptions()

    async def main() -> None:
        run = await works.months.start(0, 1001)
        assert await run.result(timeout=600) == 1001
        assert (await run.get()).incarnation == 1000
        assert len(await run.steps()) == 2
        works.chance.clear()

    run_virtually(works.app, main)


async def test_a_run_goes_on_in_the_version_that_it_is_given(home: str) -> None:
    app = Kagzi(home)

    @app.workflow(name="fee", version="2")
    async def fee_v2(cents: int) -> str:
        return f"{cents} in version 2"

    @app.workflow
    async def fee(cents: int) -> str:
        if cents % 2:
            fee.options(version="2").continue_as_new(cents + 1)
        fee_v2.continue_as_new(cents)

    async with app, app.worker():
        assert await fee.run(3) == "4 in version 2"
        run = await fee.start(6)
        assert await run.result(timeout=60) == "6 in version 2"
        assert (await run.get()).version == "2"


def test_whoever_is_told_to_end_is_told_in_the_next_incarnation() -> None:
    app = Kagzi("memory://")
    told: list[int] = []

    @app.step
    async def work(number: int) -> None:
        if number == 1:
            await handles[0].cancel()

    @app.workflow
    async def loop(number: int) -> None:
        try:
            await work(number)
            await kagzi.sleep("1h")
        except asyncio.CancelledError:
            told.append(number)
            raise
        loop.continue_as_new(number + 1)

    handles: list[Any] = []

    async def main() -> None:
        handles.append(await loop.start(0))
        with pytest.raises(WorkflowCancelled):
            await handles[0].result()
        assert told == [1]

    run_virtually(app, main)


class Mistakes:
    def __init__(self) -> None:
        self.app = app = Kagzi("memory://")

        @app.workflow
        async def other() -> None: ...

        @app.workflow
        async def loop(what: str) -> str:
            async def beside() -> None:
                loop.continue_as_new("done")

            try:
                match what:
                    case "arguments":
                        loop.continue_as_new()  # type: ignore[call-arg]
                    case "value":
                        loop.continue_as_new(object())  # type: ignore[arg-type]
                    case "another":
                        other.continue_as_new()
                    case "beside":
                        await asyncio.gather(beside())
                    case "options":
                        loop.options(queue="q", version="2").continue_as_new("done")
                    case "large":
                        loop.continue_as_new("x" * 3_000_000)
                    case "caught":
                        try:
                            loop.continue_as_new("done")
                        except BaseException:
                            return "caught"
                    case "group":
                        async with asyncio.TaskGroup():
                            loop.continue_as_new("done")
                    case "passed on":
                        try:
                            loop.continue_as_new("done")
                        except Exception:
                            return "wrong"
            finally:
                kagzi.set_value("cleaned", what)
            return what

        self.loop = loop


def test_mistakes_are_told_with_their_place() -> None:
    works = Mistakes()

    async def main() -> None:
        for what, error, match in (
            ("arguments", TypeError, "what"),
            ("value", kagzi.NotSerializable, "object"),
            ("another", InvalidRequest, r"in a run of loop \(at .*test_continue.py:\d+"),
            ("beside", InvalidRequest, r"in a task beside the workflow function \(at .*test_continue.py:\d+"),
            ("options", InvalidRequest, r"was called with queue \(at .*test_continue.py:\d+"),
            ("large", PayloadTooLarge, r"3,000,004 bytes \(at .*test_continue.py:\d+"),
            ("caught", NonDeterminismError, r"called at .*test_continue.py:\d+.*do not catch BaseException"),
        ):
            with pytest.raises(WorkflowFailed, match=match) as raised:
                await works.loop.run(what)
            assert raised.value.failure.type.rpartition(".")[2] == error.__name__, raised.value
        for what in ("group", "passed on"):
            assert await works.loop.run(what) == "done"
        with pytest.raises(InvalidRequest, match="is for workflows"):
            works.loop.continue_as_new("x")

    run_virtually(works.app, main)
