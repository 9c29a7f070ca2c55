"""Attempts of steps: which are left, what they are given, how the last one ends."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kagzi.core.exceptions import failure_of
from kagzi.core.instant import SECOND
from kagzi.core.retry import Retry
from kagzi.core.step import Step, StepKind, StepStatus
from kagzi.errors import StepTimeout
from tests.sdk.replay.host import START, Host, Rows, current, step
from tests.sdk.replay.workflows import charge, finish, result, value


def failed_attempt(step_id: str, attempt: int, *, retry_at: int | None, error: BaseException) -> Step:
    return Step(
        step_id=step_id,
        attempt=attempt,
        kind=StepKind.FUNCTION,
        status=StepStatus.FAILED,
        completed_seq=None,
        started_at=START,
        finished_at=START + SECOND,
        retry_at=retry_at,
        input_hash=0,
        output=None,
        error=failure_of(error).encode(),
    )


async def two_failing() -> Any:
    async def call(name: str) -> str:
        loop: Any = asyncio.get_running_loop()
        try:
            return str(await step(name, value("ran")))
        except Exception as error:
            current().trace.append((name, loop.now))
            return type(error).__name__

    return await asyncio.gather(asyncio.create_task(call("a"), name="one"), asyncio.create_task(call("b"), name="two"))


@pytest.mark.parametrize("retry_at", [None, START + 60 * SECOND])
def test_no_attempt_left_ends_the_step_one_event_at_a_time(retry_at: int | None) -> None:
    """The coordinator ended the attempt, or the policy was made stricter since."""
    rows: Rows = {
        (step_id, 2): failed_attempt(step_id, 2, retry_at=retry_at, error=StepTimeout("slow"))
        for step_id in ("one/a", "two/b")
    }
    for attempts in (1, 2):
        outcome, host = finish(two_failing, rows=dict(rows), retry=Retry.fixed("1s", attempts=attempts), now=START + 5)
        assert outcome == ("completed", b'["StepTimeout", "StepTimeout"]')
        assert host.started == []
        assert {key: row.completed_seq for key, row in host.rows.items()} == {("one/a", 2): 1, ("two/b", 2): 2}
        assert finish(two_failing, rows=host.rows)[0] == outcome


def test_attempts_left_go_on_where_they_were() -> None:
    rows: Rows = {
        ("one/a", 1): failed_attempt("one/a", 1, retry_at=START + 60 * SECOND, error=ValueError("x")),
        ("one/a", 2): failed_attempt("one/a", 2, retry_at=START + 90 * SECOND, error=ValueError("x")),
        ("two/b", 1): failed_attempt("two/b", 1, retry_at=None, error=StepTimeout("slow")),
    }
    host = Host(two_failing, rows=rows, retry=Retry.fixed("2s", attempts=3), now=START + 2 * SECOND)
    execution = host.begin()
    assert execution.idle
    assert execution.next_due() == START + 3 * SECOND
    host.clock = START + 3 * SECOND
    execution.tick()
    assert host.started == [("two/b", 2)]
    host.clock = START + 90 * SECOND
    execution.tick()
    assert host.started == [("two/b", 2), ("one/a", 3)]
    host.evict(execution)


def test_each_attempt_gets_its_own_copy_of_the_arguments() -> None:
    seen = []

    def body(items: list[int]) -> int:
        seen.append(list(items))
        items.append(9)
        if len(seen) < 3:
            raise ValueError
        return len(items)

    async def workflow() -> Any:
        items = [1]
        return [await step("a", body, items, retry=Retry.fixed("1s", attempts=3)), items]

    assert result(workflow) == "[2, [1]]"
    assert seen == [[1], [1], [1]]


def test_a_cancelled_step_is_not_tried_again() -> None:
    async def workflow() -> Any:
        try:
            async with asyncio.timeout(5):
                await step("a", lambda: 1 / 0, retry=Retry.fixed("60s", attempts=9))
        except TimeoutError:
            return await step("b", value(2))

    outcome, host = finish(workflow)
    assert outcome == ("completed", b"2")
    assert host.started == [("a", 1), ("b", 1)]


def test_show_after_the_end_says_nothing() -> None:
    async def workflow() -> None:
        background = asyncio.create_task(charge())
        await asyncio.sleep(1)
        del background

    host = Host(workflow)
    execution = host.begin()
    (call,) = list(host.bodies)
    execution.show(call)
    execution.show(call)
    host.clock += 2 * SECOND
    execution.tick()
    assert execution.outcome is not None
    assert not execution.busy
    before = list(host.pending)
    execution.show(call)
    execution.body_ended(call)
    execution.step_returned(call, 1)
    assert host.pending == before


def test_a_result_that_is_too_large_fails_the_step_for_good() -> None:
    async def workflow() -> Any:
        try:
            await step("big", lambda: "x" * (1 << 21), retry=Retry.fixed("1s", attempts=5))
        except Exception as error:
            return type(error).__name__

    assert result(workflow) == '"PayloadTooLarge"'


async def fails_for_good() -> Any:
    await step("a", value(1))
    await step("b", failing)
    await step("c", value(3))


def failing() -> None:
    raise ValueError("no")


def test_what_is_kept_of_a_run_that_is_tried_again_ends_before_the_failure() -> None:
    """The failed event must go: replaying it would fail the run again, without its body having run."""
    outcome, host = finish(fails_for_good, retry=Retry.fixed("1s", attempts=1))
    assert {key: row.completed_seq for key, row in host.rows.items()} == {("a", 1): 1, ("b", 1): 2}
    assert outcome[0] == "failed"
    assert outcome[-1] == 1
