"""Children in an execution: when they are spawned, which outcomes are taken, and in which order."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from msgspec.structs import replace

from kagzi import InvalidRequest, LimitExceeded, WorkflowCancelled, WorkflowFailed, WorkflowTimedOut
from kagzi.api.operations import SpawnChild, TakeOutcome
from kagzi.core.failure import Failure
from kagzi.core.instant import SECOND
from kagzi.core.step import Step, StepStatus
from kagzi.errors import Conflict
from kagzi.ids import derived_run_id
from kagzi.sdk import children
from kagzi.sdk.replay import children as family
from kagzi.sdk.replay.calls import outcome_of
from tests.sdk.replay.host import START, Host, child, current, step
from tests.sdk.replay.programs import CANCELS


async def run(name: str = "render") -> Any:
    return await children._run(current(), CANCELS, child(name))


def ended(host: Host, step_id: str = "render", *, after: float = 1.0, value: Any = 1, **fields: Any) -> Step:
    """Writes the end of a child that is stored, as the store does."""
    end = replace(
        host.rows[step_id, 1],
        status=StepStatus.COMPLETED,
        finished_at=START + round(after * SECOND),
        output=json.dumps(value).encode(),
    )
    host.rows[step_id, 1] = replace(end, **fields)
    return host.rows[step_id, 1]


def outcome_of_run(host: Host) -> Any:
    assert host.execution is not None
    outcome = host.execution.outcome
    assert outcome is not None
    if outcome.failure is not None:
        return outcome.failure.type.rpartition(".")[2]
    return json.loads(outcome.output or b"null")


def test_a_child_is_spawned_once_and_its_outcome_taken_once() -> None:
    host = Host(run)
    execution = host.begin()
    (spawn,) = host.pending
    assert isinstance(spawn, SpawnChild)
    assert spawn.child.run_id == derived_run_id(START, "0190-run", "0", "render")
    assert spawn.completed_seq is None
    assert execution.waiting_for() == (f"c:{spawn.child.run_id}",)
    host.commit_all()
    host.evict(execution)
    again = host.begin()
    assert host.pending == []
    again.receive((), [ended(host, value=7)])
    (taken,) = host.pending
    assert isinstance(taken, TakeOutcome)
    assert taken.completed_seq == 1
    assert outcome_of_run(host) == 7
    host.commit_all()
    assert host.begin().outcome is not None
    assert host.pending == []


def test_an_outcome_that_came_with_the_claim_is_delivered_at_once() -> None:
    host = Host(run)
    execution = host.begin()
    host.commit_all()
    host.evict(execution)
    ended(host, value="early")
    host.begin()
    assert outcome_of_run(host) == "early"


@pytest.mark.parametrize(("after", "expected"), [(30, "in time"), (60, "in time"), (61, "late")])
def test_outcomes_and_timers_are_delivered_as_they_came_about(after: float, expected: str) -> None:
    async def program() -> Any:
        wait = child("render")
        await children._spawn(current(), CANCELS, wait)
        try:
            async with asyncio.timeout(60):
                return await outcome_of(current(), wait)
        except TimeoutError:
            return "late"

    host = Host(program)
    execution = host.begin()
    host.commit_all()
    host.clock = START + 3600 * SECOND  # nobody has driven the run for an hour
    execution.receive((), [ended(host, after=after, value="in time")])
    assert outcome_of_run(host) == expected


@pytest.mark.parametrize(
    ("status", "error", "raised"),
    [
        (StepStatus.FAILED, Failure.of(ValueError, "no"), WorkflowFailed),
        (StepStatus.FAILED, Failure.of(WorkflowTimedOut, "too late"), WorkflowTimedOut),
        (StepStatus.CANCELLED, Failure.of(WorkflowCancelled, "cancelled"), WorkflowCancelled),
        (StepStatus.FAILED, Failure.of(Conflict, "the id is taken"), Conflict),
    ],
)
def test_a_child_without_a_result_raises_where_it_is_awaited(
    status: StepStatus, error: Failure, raised: type[Exception]
) -> None:
    async def program() -> Any:
        try:
            await run()
        except Exception as caught:
            return [type(caught).__name__, getattr(caught, "run_id", None), str(caught)]

    host = Host(program)
    execution = host.begin()
    host.commit_all()
    row = ended(host, status=status, output=None, error=error.encode())
    execution.receive((), [row])
    name, run_id, message = outcome_of_run(host)
    assert name == raised.__name__
    assert run_id == (None if raised is Conflict else row.child_run_id)
    assert error.message in message


def test_several_may_wait_for_one_child_and_one_of_them_may_leave() -> None:
    async def program() -> Any:
        wait = child("render")
        await children._spawn(current(), CANCELS, wait)

        async def look(seconds: float) -> Any:
            try:
                async with asyncio.timeout(seconds):
                    return await outcome_of(current(), wait)
            except TimeoutError:
                return "gone"

        first = await asyncio.gather(look(1), look(100), look(100))
        return [*first, await outcome_of(current(), wait)]

    host = Host(program)
    execution = host.begin()
    host.commit_all()
    host.clock += 2 * SECOND
    execution.tick()
    execution.receive((), [ended(host, after=3, value=5)])
    assert outcome_of_run(host) == ["gone", 5, 5, 5]


async def run_for_a_second() -> Any:
    try:
        async with asyncio.timeout(1):
            await run()
    except TimeoutError:
        return round(asyncio.get_running_loop().time() - START / SECOND)


def cancelled_after_a_second(host: Host) -> Any:
    """The wait for the child times out, and the child is told to end."""
    execution = host.begin()
    host.clock += SECOND
    execution.tick()
    count = len(host.unhurried) + len(host.pending)
    host.commit_all()
    execution.durable(count)
    (cancel,) = host.bodies
    assert (cancel.step_id, cancel.args) == ("render.cancel", (host.rows["render", 1].child_run_id,))
    del host.bodies[cancel]
    execution.step_returned(cancel, True)
    assert execution.outcome is None
    return execution


def test_a_wait_that_is_cancelled_cancels_the_child_and_waits_for_its_end() -> None:
    host = Host(run_for_a_second)
    execution = cancelled_after_a_second(host)
    host.clock += 3 * SECOND
    execution.receive((), [ended(host, after=3, status=StepStatus.CANCELLED, output=None)])
    assert outcome_of_run(host) == 4


def test_a_child_that_does_not_end_is_left_after_its_grace() -> None:
    host = Host(run_for_a_second)
    execution = cancelled_after_a_second(host)
    host.clock += 29 * SECOND
    execution.tick()
    assert execution.outcome is None
    host.clock += 2 * SECOND
    execution.tick()
    assert outcome_of_run(host) == 32


def test_children_have_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(family, "MOST_CHILDREN", 3)

    async def program() -> Any:
        for _ in range(4):
            await children._spawn(current(), CANCELS, child("render"))

    host = Host(program)
    host.begin()
    assert outcome_of_run(host) == LimitExceeded.__name__
    assert len(host.pending) == 3


def test_recursion_has_an_end() -> None:
    async def program() -> Any:
        current().run = replace(current().run, depth=100)
        await run()

    host = Host(program)
    execution = host.begin()
    assert outcome_of_run(host) == InvalidRequest.__name__
    assert execution.outcome is not None
    assert execution.outcome.failure is not None
    assert "101 levels deep" in execution.outcome.failure.message


def test_many_children_wake_by_any() -> None:
    async def program() -> Any:
        return await asyncio.gather(*(run() for _ in range(21)))

    assert Host(program).begin().waiting_for() == ("c:*",)


def test_a_child_that_changed_code_starts_before_the_last_event_is_spawned_after_the_replay() -> None:
    new = False

    async def program() -> Any:
        if new:
            await children._spawn(current(), CANCELS, child("render"))
        await asyncio.sleep(1)
        await asyncio.sleep(1)

    host = Host(program)
    execution = host.begin()
    host.clock += SECOND
    execution.tick()
    host.commit_all()
    host.evict(execution)
    new = True
    host.begin()
    assert [type(operation) for operation in host.pending] == [SpawnChild]


def test_a_body_that_is_asked_for_behind_a_spawn_waits_for_it_after_a_replay_too() -> None:
    async def program() -> Any:
        await step("pay", lambda: 1)
        await children._spawn(current(), CANCELS, child("render"))
        await step("tell", lambda: 1)

    host = Host(program)
    execution = host.begin()
    (call,) = host.bodies
    execution.step_returned(call, 1)
    host.store([operation for operation in host.pending if not isinstance(operation, SpawnChild)])
    host.evict(execution)
    host.started.clear()
    again = host.begin()
    assert [type(operation) for operation in host.pending] == [SpawnChild]
    assert host.started == []
    host.send()
    host.acknowledge(again)
    assert host.started == [("tell", 1)]
