"""Signals in an execution: the order of delivery, and what is taken."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from kagzi.api.operations import TakeSignal
from kagzi.core.instant import SECOND
from kagzi.core.signal import Signal
from kagzi.core.step import StepKind
from kagzi.sdk.replay.calls import wait_signal
from tests.sdk.replay.host import START, Host, current


def signal(seq: int, value: Any, *, name: str = "go", after: float = 0.0) -> Signal:
    return Signal(
        key=f"k{seq}", seq=seq, name=name, value=json.dumps(value).encode(), sent_at=START + round(after * SECOND)
    )


async def go(name: str = "go") -> Any:
    return await wait_signal(current(), name, json.loads)


async def go_within(seconds: float) -> Any:
    try:
        async with asyncio.timeout(seconds):
            return await go()
    except TimeoutError:
        return "late"


def outcome_of(host: Host) -> Any:
    execution = host.execution
    assert execution is not None
    assert execution.outcome is not None
    return json.loads(execution.outcome.output or b"null")


@pytest.mark.parametrize(("after", "expected"), [(30, "in time"), (59.9, "in time"), (60, "in time"), (61, "late")])
def test_signals_and_timers_are_delivered_as_they_came_about(after: float, expected: str) -> None:
    host = Host(lambda: go_within(60))
    execution = host.begin()
    host.clock = START + 3600 * SECOND  # nobody has driven the run for an hour
    execution.receive([signal(1, "in time", after=after)])
    assert outcome_of(host) == expected


def test_waits_of_one_name_are_served_in_the_order_of_their_calls() -> None:
    async def program() -> Any:
        return await asyncio.gather(go(), go("other"), go())

    host = Host(program)
    execution = host.begin()
    assert execution.inbox.unserved_names() == ("go", "other")
    assert execution.inbox.waiting_for() == ("s:go", "s:other")
    execution.receive([signal(1, "a"), signal(2, "b")])
    execution.receive([signal(2, "b"), signal(3, "c", name="other")])  # one of them is known
    assert outcome_of(host) == ["a", "c", "b"]
    taken = [operation for operation in host.pending if isinstance(operation, TakeSignal)]
    assert [(operation.signal, operation.completed_seq) for operation in taken] == [("k1", 1), ("k2", 2), ("k3", 3)]


def test_a_cancelled_wait_takes_nothing() -> None:
    async def program() -> Any:
        first = await go_within(1)
        return [first, await go()]

    host = Host(program)
    execution = host.begin()
    host.clock += 2 * SECOND
    execution.tick()
    execution.receive([signal(1, "a", after=1.5)])
    assert outcome_of(host) == ["late", "a"]


def test_replay_gives_recorded_signals_back() -> None:
    async def program() -> Any:
        first = await go()
        await asyncio.sleep(60)
        return [first, await go()]

    host = Host(program)
    execution = host.begin()
    execution.receive([signal(1, "a")])
    host.commit_all()
    host.evict(execution)
    again = host.begin()
    assert [row.kind for row in host.rows.values()] == [StepKind.SIGNAL]
    host.clock += 61 * SECOND
    again.tick()
    assert again.inbox.unserved_names() == ("go",)
    again.receive([signal(5, "b", after=70)])
    assert outcome_of(host) == ["a", "b"]


def test_many_names_wake_by_any_signal() -> None:
    async def program() -> Any:
        return await asyncio.gather(*(go(f"n{number}") for number in range(21)))

    assert Host(program).begin().inbox.waiting_for() == ("s:*",)
