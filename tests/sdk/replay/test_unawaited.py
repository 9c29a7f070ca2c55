"""Durable calls that are never awaited: which of them fail the run, and which do not."""

from __future__ import annotations

import asyncio
import gc
import inspect
from collections.abc import Callable
from typing import Any

import pytest

from kagzi.sdk.replay.outcome import Outcome
from tests.sdk.replay.host import Host, step
from tests.sdk.replay.workflows import Workflow, value

pytestmark = pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")

ELSEWHERE: list[Any] = []


def outcome_of(workflow: Workflow) -> tuple[Outcome, list[str]]:
    """How a run of this function ends, and which bodies ran."""
    host = Host(workflow)
    outcome = host.live()
    return outcome, [step_id for step_id, _ in host.started]


def complaint(workflow: Workflow) -> tuple[str, list[str]]:
    outcome, bodies = outcome_of(workflow)
    assert outcome.failure is not None
    assert outcome.failure.type == "kagzi.errors.NotAwaited"
    return outcome.failure.message, bodies


def line_of(function: Callable[..., Any], text: str) -> int:
    lines, first = inspect.getsourcelines(function)
    return first + next(number for number, line in enumerate(lines) if text in line)


async def kept_to_the_end() -> int:
    call = step("charge", value())
    return 5 if call else 6


async def dropped_at_once() -> int:
    step("charge", value())
    return 5


async def asked_for_its_truth() -> str:
    if step("charge", value()):
        return "paid"
    return "not paid"


async def returned() -> Any:
    return {"payment": step("charge", value())}


async def kept_elsewhere() -> int:
    ELSEWHERE.append(step("charge", value()))
    return 5


async def kept_by_a_cycle() -> int:
    box: list[Any] = [step("charge", value())]
    box.append(box)
    return 5


async def in_a_task() -> int:
    async def part() -> None:
        step("charge", value())

    await asyncio.create_task(part())
    return 5


async def after_a_sleep() -> int:
    await asyncio.sleep(5)
    step("charge", value())
    return 5


@pytest.mark.parametrize(
    "workflow",
    [
        kept_to_the_end,
        dropped_at_once,
        asked_for_its_truth,
        returned,
        kept_elsewhere,
        kept_by_a_cycle,
        in_a_task,
        after_a_sleep,
    ],
)
def test_a_forgotten_await_fails_the_run_and_names_the_line(workflow: Workflow) -> None:
    message, bodies = complaint(workflow)
    ELSEWHERE.clear()
    gc.collect()  # Python warns of what is left here, and not in a later test
    assert bodies == []
    assert message.startswith(f"charge was called at {__file__}:{line_of(workflow, 'step(')} in ")
    assert "never awaited" in message


async def sleep_dropped_at_once() -> None:
    asyncio.sleep(5)  # type: ignore[unused-coroutine]
    await step("charge", value())


async def sleep_asked_for_its_truth() -> str:
    return "paid" if asyncio.sleep(5) else "not paid"


async def sleep_in_a_task() -> None:
    async def part() -> None:
        asyncio.sleep(5)  # type: ignore[unused-coroutine]

    await asyncio.create_task(part())


async def sleep_kept_to_the_end() -> int:  # asyncio.sleep(
    call = asyncio.sleep(5)
    return 5 if call else 6


@pytest.mark.parametrize(
    "workflow", [sleep_dropped_at_once, sleep_asked_for_its_truth, sleep_in_a_task, sleep_kept_to_the_end]
)
def test_a_sleep_of_asyncio_is_not_forgotten_either(workflow: Workflow) -> None:
    message, bodies = complaint(workflow)
    assert bodies == []
    line = line_of(workflow, "asyncio.sleep(")
    assert message.startswith(f"asyncio.sleep was called at {__file__}:{line} in "), message


def test_nothing_more_is_done_after_a_forgotten_call() -> None:
    async def workflow() -> str:
        step("charge", value())
        await step("ship", value())
        return "shipped"

    message, bodies = complaint(workflow)
    assert message.startswith("charge was called")
    assert bodies == []


def test_cleaning_up_is_done_all_the_same() -> None:
    async def workflow() -> None:
        await step("reserve", value())
        step("charge", value())
        try:
            await step("ship", value())
        finally:
            await step("release", value())

    message, bodies = complaint(workflow)
    assert message.startswith("charge was called")
    assert bodies == ["reserve", "release"]


def test_an_error_of_the_workflow_comes_first() -> None:
    async def workflow() -> int:
        return step("charge", value()) + 1  # type: ignore[operator, no-any-return]

    outcome, _ = outcome_of(workflow)
    assert outcome.failure is not None
    assert outcome.failure.type == "builtins.TypeError"


# Tasks that nobody waits for.


async def charged() -> None:
    await step("charge", value())


async def a_task() -> int:
    asyncio.create_task(step("charge", value()))  # noqa: RUF006
    return 5


async def a_task_of_a_function() -> int:
    asyncio.create_task(charged())  # noqa: RUF006
    return 5


async def a_task_behind_others() -> int:
    asyncio.ensure_future(asyncio.wait_for(step("charge", value()), 5))  # noqa: RUF006
    await asyncio.sleep(0)
    return 5


async def a_task_that_a_set_holds() -> int:
    tasks = set()
    task = asyncio.create_task(step("charge", value()))
    tasks.add(task)
    task.add_done_callback(tasks.discard)
    return 5


async def a_gather() -> int:
    asyncio.gather(step("charge", value()), step("charge", value()))
    return 5


async def a_gather_that_is_kept() -> int:
    both = asyncio.gather(step("charge", value()), charged())
    await asyncio.sleep(0)
    return 5 if both else 6


async def a_gather_in_a_task() -> int:
    async def part() -> None:
        await asyncio.gather(step("charge", value()), charged())

    asyncio.create_task(part())  # noqa: RUF006
    return 5


async def a_group_in_a_task() -> int:
    async def part() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(charged())

    asyncio.create_task(part())  # noqa: RUF006
    return 5


async def a_shield() -> int:
    asyncio.shield(step("charge", value()))
    return 5


async def a_sleep() -> int:
    asyncio.create_task(asyncio.sleep(5))  # noqa: RUF006
    return 5


@pytest.mark.parametrize(
    ("workflow", "what"),
    [
        (a_task, "charge was called at {place} in a_task"),
        (a_task_of_a_function, "charged waited at "),
        (a_task_behind_others, "wait_for waited at "),
        (a_task_that_a_set_holds, "charge was called at {place} in a_task_that_a_set_holds"),
        (a_gather, "charge was called at {place} in a_gather"),
        (a_gather_that_is_kept, "charge was called at {place} in a_gather_that_is_kept"),
        (a_gather_in_a_task, "part waited at "),
        (a_group_in_a_task, "part waited at "),
        (a_shield, "charge was called at {place} in a_shield"),
        (a_sleep, "sleep waited at "),
    ],
)
def test_a_task_that_nobody_waits_for_fails_the_run_that_cuts_it_off(workflow: Workflow, what: str) -> None:
    message, _ = complaint(workflow)
    if "{place}" in what:
        what = what.format(place=f"{__file__}:{line_of(workflow, 'step(')}")
    assert message.startswith(what), message
    assert "in a task that nobody waits for" in message


async def tasks_that_are_over() -> int:
    both = asyncio.gather(step("a", value()), step("b", value()))
    task = asyncio.create_task(step("c", value()))
    while not (both.done() and task.done()):
        await asyncio.sleep(60)
    return 5


async def a_task_that_is_cancelled() -> int:
    task = asyncio.create_task(step("a", value()))
    await asyncio.sleep(0)
    task.cancel()
    return 5


async def losers() -> int:
    tasks = [asyncio.create_task(step("a", value())), asyncio.create_task(asyncio.sleep(3600))]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    return 5


async def what_a_timeout_has_shielded() -> int:
    task = asyncio.create_task(asyncio.sleep(3600))
    try:
        await asyncio.wait_for(asyncio.shield(task), 1)
    except TimeoutError:
        pass
    return 5


async def consumers_of_a_queue() -> int:
    queue: asyncio.Queue[int] = asyncio.Queue()

    async def consume() -> None:
        while await queue.get():
            await step("a", value())
            queue.task_done()

    tasks = [asyncio.create_task(consume()) for _ in range(3)]
    for number in range(5):
        queue.put_nowait(number + 1)
    await queue.join()
    return 5 if tasks else 6


async def what_a_timeout_has_cut_short() -> int:
    tasks = []

    async def part() -> None:
        tasks.append(asyncio.create_task(asyncio.sleep(3600)))
        await asyncio.sleep(60)
        await asyncio.gather(*tasks)

    try:
        async with asyncio.timeout(1):
            await part()
    except TimeoutError:
        pass
    return 5


async def what_a_failed_step_has_cut_short() -> int:
    task = asyncio.create_task(asyncio.sleep(3600))
    try:
        await step("a", lambda: 1 // len([]))
        await task
    except ZeroDivisionError:
        pass
    return 5


async def the_rest_of_a_gather_of_which_one_has_failed() -> int:
    async def fail() -> None:
        raise ValueError

    try:
        await asyncio.gather(asyncio.sleep(3600), fail())
    except ValueError:
        pass
    return 5


async def a_task_with_a_callback() -> int:
    task = asyncio.create_task(step("a", value()))
    task.add_done_callback(lambda _: None)
    return 5


# What was not forgotten.


async def awaited_later() -> int:
    first, second = step("a", value()), step("b", value())
    await asyncio.sleep(5)
    await second
    await first
    return 5


async def a_task_cancelled_before_its_turn() -> int:
    asyncio.create_task(step("a", value())).cancel()
    asyncio.create_task(asyncio.wait_for(step("b", value()), 5)).cancel()
    asyncio.create_task(asyncio.sleep(5)).cancel()
    asyncio.sleep(5).close()
    await asyncio.sleep(1)
    return 5


async def cut_short_while_waiting_for_a_turn() -> int:
    limit = asyncio.Semaphore(1)

    async def limited(call: Any, fails: bool) -> None:
        async with limit:
            if fails:
                call.close()
                raise ValueError
            await call

    try:
        async with asyncio.TaskGroup() as group:
            for number in range(3):
                group.create_task(limited(step(f"s{number}", value()), fails=number == 0))
    except* ValueError:
        pass
    await step("after", value())
    return 5


async def beside_a_refused_call() -> int:
    try:
        await asyncio.gather(step("a", value()), step("b", value(), object()))
    except TypeError:
        pass
    await step("after", value())
    return 5


@pytest.mark.parametrize(
    "workflow",
    [
        tasks_that_are_over,
        a_task_that_is_cancelled,
        losers,
        what_a_timeout_has_shielded,
        consumers_of_a_queue,
        a_task_with_a_callback,
        what_a_timeout_has_cut_short,
        what_a_failed_step_has_cut_short,
        the_rest_of_a_gather_of_which_one_has_failed,
        awaited_later,
        a_task_cancelled_before_its_turn,
        cut_short_while_waiting_for_a_turn,
        beside_a_refused_call,
    ],
)
def test_what_was_not_forgotten_fails_nothing(workflow: Workflow) -> None:
    outcome, _ = outcome_of(workflow)
    assert outcome.output == b"5"


def test_what_an_exception_has_dropped_does_not_keep_the_workflow_from_cleaning_up() -> None:
    async def workflow() -> None:
        try:
            await asyncio.gather(step("a", value()), step("b", value(1 // len([]))))
        except ZeroDivisionError:
            await step("refund", value())
            raise

    outcome, bodies = outcome_of(workflow)
    assert bodies == ["refund"]
    assert outcome.failure is not None
    assert outcome.failure.type == "builtins.ZeroDivisionError"


@pytest.mark.parametrize("end", ["loser", "cancelled", "forgotten", "failed"])
def test_a_body_that_has_begun_is_recorded_whatever_becomes_of_its_result(end: str) -> None:
    async def workflow() -> None:
        tasks = [asyncio.create_task(step("a", value())), asyncio.create_task(step("b", value()))]
        if end != "forgotten":
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        else:
            await step("c", value())
        if end == "cancelled":
            for task in tasks:
                task.cancel()
            await step("c", value())
        if end == "failed":
            raise ValueError

    for seed in range(20):
        host = Host(workflow, seed=seed)
        host.live()
        assert {step_id for step_id, _ in host.started} == {step_id for step_id, _ in host.rows}
