"""Code that changes under a live run."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

import pytest

from kagzi.core.instant import SECOND
from kagzi.sdk.replay.calls import call_step
from tests.sdk.replay.host import Host, Rows, current, step
from tests.sdk.replay.workflows import Workflow, finish, value


def crash(workflow: Workflow, events: int) -> Rows:
    """The rows of a run that was let go of when so many of its events were recorded."""
    host = Host(workflow, seed=1)
    execution = host.begin()
    while sum(row.completed_seq is not None for row in host.rows.values()) < events:
        host.step(execution)
        if execution.outcome is not None:
            host.commit_all()
    if execution.outcome is None:
        host.evict(execution)
    return host.rows


def test_changed_code_added_step() -> None:
    async def old() -> Any:
        return [await step("a", value(1)), await step("c", value(3))]

    async def new() -> Any:
        return [await step("a", value(10)), await step("b", value(20)), await step("c", value(30))]

    rows = crash(old, 2)
    outcome, host = finish(new, rows=rows)
    assert outcome == ("completed", b"[1, 20, 3]")
    assert host.started == [("b", 1)]
    assert finish(new, rows=rows)[1].started == []


def test_changed_code_removed_step() -> None:
    async def old() -> Any:
        return [await step("a", value(1)), await step("b", value(2)), await step("c", value(3))]

    async def new() -> Any:
        return [await step("a", value(10)), await step("c", value(30)), await step("d", value(40))]

    outcome, host = finish(new, rows=crash(old, 3))
    assert outcome == ("completed", b"[1, 3, 40]")
    assert host.started == [("d", 1)]


def test_changed_code_reordered_steps() -> None:
    async def old() -> Any:
        return [await step("a", value(1)), await step("b", value(2))]

    async def new() -> Any:
        return [await step("b", value(20)), await step("a", value(10)), await asyncio.sleep(5)]

    rows = crash(old, 2)
    outcome, host = finish(new, rows=rows)
    assert outcome == ("completed", b"[2, 1, null]")
    assert host.started == []
    assert finish(new, rows=rows)[0] == outcome


def test_changed_code_may_come_to_the_name_of_an_old_tick() -> None:
    """The store never writes over a recorded event, so the new tick needs a row of its own."""

    async def old() -> None:
        await asyncio.sleep(1)
        await asyncio.sleep(1000)

    async def new() -> Any:
        await step("new", value())
        await asyncio.sleep(50)
        return "ended"

    host = Host(old)
    execution = host.begin()
    host.clock += SECOND
    execution.tick()
    host.commit_all()
    host.evict(execution)
    rows = host.rows
    assert list(rows) == [("@begin", 1), ("@sleep", 1)]
    outcome, _ = finish(new, rows=rows)
    assert outcome == ("completed", b'"ended"')
    assert set(rows) == {("@begin", 1), ("@sleep", 1), ("@sleep", 2), ("new", 1)}
    again, host = finish(new, rows=rows)
    assert again == outcome
    assert host.started == []


def gathered(*names: str) -> Workflow:
    async def workflow() -> Any:
        return await asyncio.gather(*(step(name, value(name)) for name in names))

    return workflow


def in_turn(*names: str) -> Workflow:
    async def workflow() -> Any:
        return [await step(name, value(name)) for name in names]

    return workflow


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (in_turn("a", "b"), in_turn("a", "c"), [("b", "c")]),
        (gathered("a", "b"), gathered("c", "b"), [("a", "c")]),
        (gathered("a", "b"), gathered("c", "d"), [("a", "c, d"), ("b", "c, d")]),
        (in_turn("a", "b"), in_turn("a", "b", "c"), []),
        (in_turn("a", "b"), in_turn("b", "c"), []),
        (in_turn("a", "b"), in_turn("b", "a"), []),
        (in_turn("a", "b"), in_turn("a"), []),
    ],
    ids=["renamed", "renamed beside another", "two renamed", "added", "removed", "reordered", "removed at the end"],
)
def test_a_new_step_in_the_place_of_a_recorded_one_is_told_of(
    caplog: pytest.LogCaptureFixture, old: Workflow, new: Workflow, told: list[tuple[str, str]]
) -> None:
    rows = crash(old, 2)
    for expected in (told, []):  # the second time everything is recorded
        caplog.clear()
        finish(new, rows=rows)
        lines = [record for record in caplog.records if "not called" in record.msg]
        assert sorted((line.args[0], line.args[2]) for line in lines) == expected  # type: ignore[index]


def called_with(number: int) -> Workflow:
    async def workflow() -> Any:
        return await step("a", lambda x: x, number)

    return workflow


def test_other_arguments_warn(caplog: pytest.LogCaptureFixture) -> None:
    rows = crash(called_with(1), 1)
    with caplog.at_level(logging.WARNING):
        outcome, _ = finish(called_with(2), rows=rows)
    assert outcome == ("completed", b"1")
    assert "other arguments" in caplog.text


def test_other_arguments_fail_in_strict_mode() -> None:
    rows = crash(called_with(1), 1)
    outcome, _ = finish(called_with(2), rows=rows, strict=True)
    assert outcome[:2] == ("failed", "kagzi.errors.NonDeterminismError")


def test_arguments_recorded_by_their_repr_are_not_compared(caplog: pytest.LogCaptureFixture) -> None:
    class ReprCodec:
        seal = None

        def settle_input(self, args: Any, kwargs: Any) -> tuple[bytes, int, Any, Any]:
            return repr(args).encode(), 0, args, kwargs

        def copy_input(self, data: bytes) -> Any:
            raise AssertionError

        def settle_result(self, value: Any, context: Any = None) -> tuple[bytes, Any]:
            return b"1", 1

        def decode_result(self, data: bytes, context: Any = None) -> Any:
            return 1

    def workflow() -> Coroutine[Any, Any, Any]:
        async def run() -> Any:
            return await call_step(
                current(),
                name="a",
                fn=lambda _: 1,
                codec=ReprCodec(),
                policy=None,
                timeout=None,
                args=(object(),),
                kwargs={},
            )

        return run()

    keep = object()
    rows = crash(workflow, 1)
    assert finish(workflow, rows=rows)[0] == ("completed", b"1")
    assert "other arguments" not in caplog.text
    del keep
