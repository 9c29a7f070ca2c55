"""What a run says about itself, in an execution: no event, said again only where it may not have been stored."""

from __future__ import annotations

import asyncio
from typing import Any

from kagzi.api.operations import SetValue
from kagzi.core.instant import SECOND
from tests.sdk.replay.host import Host, current, said, step


def say(name: str, value: int) -> None:
    current().set_value(name, b"%d" % value)


async def chatty() -> Any:
    say("begun", 1)
    say("stage", 1)
    await step("one", lambda: 1)
    say("stage", 2)
    await step("two", lambda: 2)
    say("stage", 3)
    try:
        await asyncio.sleep(60)
    finally:
        say("over", 1)


def drive(host: Host) -> None:
    """Lets the bodies that were started return, one after the other."""
    execution = host.execution
    assert execution is not None
    while host.bodies:
        (call,) = host.bodies
        del host.bodies[call]
        execution.step_returned(call, call.fn())
        host.in_flight, host.pending = host.pending, []
        host.acknowledge(execution)


def test_bodies_start_before_what_was_said_is_stored() -> None:
    host = Host(chatty)
    execution = host.begin()
    assert [call.step_id for call in host.bodies] == ["one"]
    assert said(host.pending) == {"begun": b"1", "stage": b"1"}
    host.evict(execution)


def test_replay_says_what_came_behind_the_last_recorded_event() -> None:
    host = Host(chatty)
    host.evict(drive_to_the_sleep(host))
    again = Host(chatty, rows=host.rows)
    execution = again.begin()
    assert [type(operation) for operation in again.pending] == [SetValue]
    assert said(again.pending) == {"stage": b"3"}
    again.evict(execution)


def test_nothing_is_said_while_the_run_is_let_go_of() -> None:
    host = Host(chatty)
    execution = drive_to_the_sleep(host)
    host.evict(execution)
    assert "over" not in said(host.pending)


def test_a_run_that_continues_another_says_everything() -> None:
    host = Host(chatty)
    host.evict(drive_to_the_sleep(host))
    again = Host(chatty, rows=host.rows, origin="0190-origin")
    execution = again.begin()
    assert said(again.pending) == {"begun": b"1", "stage": b"3"}
    again.evict(execution)


def test_the_last_words_are_said() -> None:
    host = Host(chatty)
    execution = drive_to_the_sleep(host)
    host.clock += 61 * SECOND
    execution.tick()
    assert execution.outcome is not None
    assert said(host.pending)["over"] == b"1"


def drive_to_the_sleep(host: Host) -> Any:
    execution = host.begin()
    drive(host)
    assert execution.idle
    return execution
