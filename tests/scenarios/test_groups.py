"""Groups: parallel, map and race."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import kagzi
from kagzi import InvalidRequest, Kagzi, NonDeterminismError, Retry, WorkflowFailed
from kagzi.testing import run_virtually
from tests.scenarios.conftest import Stage


class Shop:
    """Steps, and what their bodies did."""

    def __init__(self) -> None:
        self.app = app = Kagzi("memory://")
        self.did: list[str] = []
        did = self.did

        @app.step
        async def double(number: int) -> int:
            did.append(f"double {number}")
            return 2 * number

        @app.step(retry=Retry.none)
        async def fail(text: str) -> str:
            did.append(f"fail {text}")
            raise LookupError(text)

        @app.step
        async def slow(seconds: float) -> str:
            try:
                await asyncio.sleep(seconds)
            except asyncio.CancelledError:
                did.append(f"cancelled {seconds}")
                raise
            did.append(f"slow {seconds}")
            return f"slow {seconds}"

        self.double, self.fail, self.slow = double, fail, slow


@pytest.fixture
def shop() -> Shop:
    return Shop()


def result_of(shop: Shop, workflow: Any, *args: Any) -> Any:
    async def main() -> Any:
        return await workflow.run(*args)

    return run_virtually(shop.app, main)


def test_groups_name_what_their_branches_record(shop: Shop, stage: Stage) -> None:
    async def fetch(number: int) -> int:
        return await shop.double(number) + await shop.double(number)

    @shop.app.workflow
    async def busy() -> list[Any]:
        before = await shop.double(0)
        pair = await kagzi.parallel(shop.double(1), shop.double(2), name="book")
        mapped = await kagzi.map(shop.double, [3, 4])
        keyed = await kagzi.map(shop.double, [5, 6, 5], limit=1, key=lambda number: f"n-{number}")
        fetched = await kagzi.map(fetch, [7])
        first = await kagzi.race(shop.double(8), kagzi.sleep("1 hour"))
        await asyncio.sleep(1.5)  # parks: what follows has replayed all of this
        return [before, *pair, *mapped, *keyed, *fetched, first, await shop.double(9)]

    async def main() -> tuple[Any, list[tuple[str, str]]]:
        run = await busy.start()
        result = await run.result(timeout=60)
        return result, sorted((step.step_id, step.scope) for step in await run.steps() if step.name == "double")

    result, steps = stage.run(shop.app, main)
    assert result == [0, 2, 4, 6, 8, 10, 12, 10, 28, 16, 18]
    assert steps == [
        ("book/double", "book"),
        ("book/double#2", "book"),
        ("double", ""),
        ("double#2", ""),
        ("map#2/fetch/double", "map#2/fetch"),
        ("map#2/fetch/double#2", "map#2/fetch"),
        ("map/double", "map"),
        ("map/double#2", "map"),
        ("map[n-5]#2/double", "map[n-5]#2"),
        ("map[n-5]/double", "map[n-5]"),
        ("map[n-6]/double", "map[n-6]"),
        ("race/double", "race"),
    ]
    assert len(shop.did) == len(set(shop.did)) + 2  # double(5) and double(7) were called twice, and nothing ran again


def test_the_first_error_ends_the_others_and_is_raised(shop: Shop) -> None:
    @shop.app.workflow
    async def busy() -> list[str]:
        try:
            await kagzi.parallel(shop.slow(60), shop.fail("first"), shop.slow(90))
        except LookupError as error:
            return [str(error), *shop.did]
        return []

    assert result_of(shop, busy) == ["first", "fail first"]
    assert shop.did == ["fail first", "cancelled 60.0", "cancelled 90.0"]


def test_all_outcomes_can_be_collected(shop: Shop) -> None:
    @shop.app.workflow
    async def busy() -> list[str]:
        outcomes = await kagzi.parallel(shop.fail("a"), shop.slow(2), shop.fail("b"), on_error="collect_all")
        again = await kagzi.map(shop.fail, ["c"], on_error="collect_all")
        return [f"{type(outcome).__name__} {outcome}" for outcome in [*outcomes, *again]]

    assert result_of(shop, busy) == ["LookupError a", "str slow 2.0", "LookupError b", "LookupError c"]


def test_a_race_is_won_by_the_first_that_ends_or_by_the_first_that_succeeds(shop: Shop) -> None:
    @shop.app.workflow
    async def busy() -> list[str]:
        seen = [await kagzi.race(shop.slow(5), shop.slow(3), shop.fail("lost"), first="success")]
        try:
            await kagzi.race(shop.slow(5), shop.fail("won"))
        except LookupError as error:
            seen.append(f"raised {error}")
        try:
            await kagzi.race(shop.fail("a"), shop.fail("b"), first="success")
        except ExceptionGroup as group:
            seen.append(f"{group.message}: {[str(error) for error in group.exceptions]}")
        return seen

    assert result_of(shop, busy) == [
        "slow 3.0",
        "raised won",
        "no branch of the race has succeeded: ['a', 'b']",
    ]
    assert shop.did.count("cancelled 5.0") == 2


def test_no_more_branches_run_at_once_than_the_limit(shop: Shop) -> None:
    running = most = 0

    @shop.app.step
    async def busy_step(number: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(1)
        running -= 1
        return number

    @shop.app.workflow
    async def busy() -> list[int]:
        return await kagzi.map(busy_step, range(25), limit=4)

    assert result_of(shop, busy) == list(range(25))
    assert most == 4


def test_a_cancelled_group_cancels_its_branches(shop: Shop) -> None:
    @shop.app.workflow
    async def busy() -> str:
        try:
            async with asyncio.timeout(2):
                await kagzi.parallel(shop.slow(60), shop.slow(90))
        except TimeoutError:
            return "in time"
        return "late"

    assert result_of(shop, busy) == "in time"
    assert shop.did == ["cancelled 60.0", "cancelled 90.0"]


def test_a_branch_that_ignores_its_cancellation_is_left_behind(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    async def stubborn() -> None:
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                continue

    @shop.app.workflow
    async def busy() -> int:
        return await kagzi.race(stubborn(), shop.double(4), name="hunt")

    assert result_of(shop, busy) == 8
    assert "1 branches of race 'hunt' were cancelled and still run after 30 s" in caplog.text


def test_def_workflows_have_map(shop: Shop) -> None:
    @shop.app.workflow
    def plain() -> list[int]:
        return kagzi.map(shop.double, [1, 2, 3], limit=2)  # type: ignore[return-value]

    @shop.app.workflow
    def mistaken() -> None:
        kagzi.parallel(shop.double(1), shop.double(2))

    assert result_of(shop, plain) == [2, 4, 6]
    with pytest.raises(WorkflowFailed, match=r"use kagzi.map\(step, items\) there"):
        result_of(shop, mistaken)


async def test_outside_of_a_workflow_groups_are_plain_asyncio(shop: Shop) -> None:
    async def plus_one(number: int) -> int:
        await asyncio.sleep(0)
        return number + 1

    assert await kagzi.parallel(plus_one(1), plus_one(2)) == (2, 3)
    assert await kagzi.map(plus_one, [1, 2, 3], limit=2) == [2, 3, 4]
    assert await kagzi.race(plus_one(1), asyncio.sleep(60)) == 2
    assert await kagzi.parallel() == ()


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: kagzi.race(), InvalidRequest, "at least one call"),
        (lambda: kagzi.map(len, ["a"], limit=0), InvalidRequest, "limit must be a whole number from 1 on, not 0"),  # type: ignore[arg-type]
        (lambda: kagzi.map(len, {"a"}), NonDeterminismError, r"this set in an order .*test_groups\.py:\d+"),  # type: ignore[arg-type]
        (lambda: kagzi.map(len, iter("ab")), NonDeterminismError, "pass it a list"),  # type: ignore[arg-type]
        (lambda: kagzi.map("len", ["a"]), InvalidRequest, "is no function"),  # type: ignore[arg-type]
        (lambda: kagzi.map(len, range(10_001)), InvalidRequest, "at most 10,000 branches, not 10,001"),  # type: ignore[arg-type]
        (lambda: kagzi.parallel(5), InvalidRequest, "needs calls to await, not 5"),  # type: ignore[arg-type]
        (lambda: kagzi.parallel(on_error="stop"), InvalidRequest, 'on_error must be "fail_fast" or "collect_all"'),  # type: ignore[call-overload]
        (lambda: kagzi.race(asyncio.Future(), first="x"), InvalidRequest, 'first must be "done" or "success"'),  # type: ignore[arg-type]
    ],
)
async def test_bad_groups_are_refused(call: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        await call()


def test_a_function_that_gives_nothing_to_await_is_refused(shop: Shop) -> None:
    @shop.app.workflow
    async def busy() -> None:
        await kagzi.map(len, ["a"])  # type: ignore[arg-type]

    with pytest.raises(WorkflowFailed, match="needs a function whose calls can be awaited"):
        result_of(shop, busy)
