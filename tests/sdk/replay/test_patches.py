"""Switches in workflow code: on where nobody has been, off where somebody has, and never both for one call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import kagzi
from kagzi import InvalidRequest
from kagzi.core.step import StepKind
from kagzi.sdk.replay.execution import Execution
from kagzi.sdk.replay.journal import Journal
from kagzi.sdk.replay.recorded import Recorded
from tests.sdk.replay.host import Host, Rows, demand, step
from tests.sdk.replay.host import store as store_rows
from tests.sdk.replay.test_changed_code import crash
from tests.sdk.replay.workflows import finish, value

ROUNDS = 3


async def old() -> Any:
    return [await step(f"old-{number}", value(number)) for number in range(ROUNDS)]


async def new() -> Any:
    return [
        await step(f"new-{number}" if kagzi.patched("fee") else f"old-{number}", value(number))
        for number in range(ROUNDS)
    ]


def markers(rows: Rows) -> list[str]:
    return [row.step_id for row in rows.values() if row.kind is StepKind.SIGNAL and row.completed_seq is None]


def test_a_new_run_takes_the_new_way_and_notes_it_once() -> None:
    outcome, host = finish(new)
    assert outcome == ("completed", b"[0, 1, 2]")
    assert [step_id for step_id, _ in host.started] == ["new-0", "new-1", "new-2"]
    assert markers(host.rows) == ["@@@fee"]
    assert finish(new, rows=host.rows)[1].started == []


@pytest.mark.parametrize("events", [1, 2])
def test_an_old_run_ends_what_it_has_begun_and_turns_with_its_next_round(events: int) -> None:
    rows = crash(old, events)
    _, host = finish(new, rows=rows, visited=True)
    # The round behind the last event may have begun.
    begun = [f"old-{events}"]
    assert [step_id for step_id, _ in host.started] == begun + [f"new-{number}" for number in range(events + 1, ROUNDS)]
    assert markers(host.rows) == ([f"@@@fee#{events + 2}"] if events + 1 < ROUNDS else [])
    assert finish(new, rows=host.rows, visited=True)[1].started == []


def test_an_old_run_without_any_event_may_have_begun_too() -> None:
    assert [step_id for step_id, _ in finish(new, visited=True)[1].started] == ["old-0", "new-1", "new-2"]


def test_a_switch_that_was_removed_is_passed_over() -> None:
    rows = finish(new)[1].rows

    async def later() -> Any:
        return [await step(f"new-{number}", value(number)) for number in range(ROUNDS)]

    assert finish(later, rows=rows)[1].started == []


def test_each_branch_has_a_switch_of_its_own() -> None:
    async def branch(number: int) -> Any:
        return await step("new" if kagzi.patched("fee") else "old", value(number))

    async def both() -> Any:
        return await asyncio.gather(branch(1), branch(2))

    outcome, host = finish(both)
    assert outcome == ("completed", b"[1, 2]")
    assert sorted(markers(host.rows)) == ["branch#2/@@@fee", "branch/@@@fee"]


def check_crashes() -> None:
    """Crashes everywhere, and once more there: whichever way a body went, nobody ever goes the other way."""
    for seed in range(40):
        rows, before = ({}, set()) if seed % 2 else (crash(old, 1), {"old-0", "old-1"})
        points: list[tuple[Rows, set[str]]] = []

        def remember(
            host: Host, _: Any, points: list[tuple[Rows, set[str]]] = points, before: set[str] = before
        ) -> None:
            began = before | {step_id for step_id, _ in host.started}
            points.append((dict(host.rows), began))
            if host.in_flight:  # committed, and nobody has heard of it
                stored = dict(host.rows)
                store_rows(stored, host.in_flight)
                points.append((stored, began))

        host = Host(new, rows=rows, seed=seed, visited=not seed % 2, on_event=remember)
        host.live()
        for durable, began in points:
            again = finish(new, rows=durable, visited=True)[1]
            bodies = began | {step_id for step_id, _ in again.started}
            for number in range(ROUNDS):
                demand(not {f"old-{number}", f"new-{number}"} <= bodies, f"round {number} went both ways")


def test_nobody_goes_both_ways() -> None:
    check_crashes()


def remembered_by_id(patch: pytest.MonkeyPatch) -> None:
    """As if one answer counted for the whole run."""

    def has_patch(self: Recorded, step_id: str) -> bool:
        return step_id.partition("#")[0] in self.patches

    patch.setattr(Recorded, "has_patch", has_patch)


def on_in_a_parked_segment(patch: pytest.MonkeyPatch) -> None:
    patched = Execution.patched

    def careless(self: Execution, step_id: str) -> bool:
        if not self._recorded.events:
            self._on_old_ground = False
        return patched(self, step_id)

    patch.setattr(Execution, "patched", careless)


def not_waited_for(patch: pytest.MonkeyPatch) -> None:
    submit = Journal.submit

    def uncounted(self: Journal, operation: Any) -> None:
        submit(self, operation)
        if operation.kind is StepKind.SIGNAL and operation.completed_seq is None:
            self.submitted -= 1

    patch.setattr(Journal, "submit", uncounted)


@pytest.mark.parametrize("bug", [remembered_by_id, on_in_a_parked_segment, not_waited_for])
def test_a_planted_bug_is_found(bug: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    bug(monkeypatch)
    with pytest.raises(AssertionError):
        check_crashes()


def test_outside_of_kagzi_the_new_way_is_taken() -> None:
    assert kagzi.patched("fee")
    for bad in ("", 3, "x" * 256, "a\0b"):
        with pytest.raises(InvalidRequest, match="patch id"):
            kagzi.patched(bad)  # type: ignore[arg-type]
