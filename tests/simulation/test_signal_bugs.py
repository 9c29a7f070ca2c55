"""Plant one bug about signals at a time: the simulation must notice each within a bounded number of seeds."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
from msgspec.structs import replace

from kagzi.api.operations import ParkRun, SendSignal
from kagzi.core.step import StepKind
from kagzi.sdk.replay.execution import Execution
from kagzi.sdk.replay.inbox import SignalInbox
from kagzi.sdk.replay.loop import WorkflowLoop
from kagzi.sdk.worker import attempt
from kagzi.store.sqlite import chunks, claims, signals, work
from tests.simulation.hunting import hunt
from tests.simulation.mutants import say_instead

SEEDS = range(125)
# The seed that shows the bug soonest.
HINTS = {
    "a_race_waits_for_one_of_its_names": 7,
    "a_repeat_is_stored_again": 0,
    "a_retry_keeps_what_was_taken": 26,
    "claims_forget_signals": 3,
    "outcomes_overtake_signals": 911_953,
    "runs_are_woken_by_any_signal": 2,
    "signals_are_marked_and_not_recorded": 0,
    "signals_are_taken_and_not_marked": 0,
    "signals_overtake_timers": 86,
    "sleepers_are_not_woken": 2,
    "the_inbox_does_not_grow": 0,
    "the_newest_is_read_first": 2,
    "workers_park_past_a_signal": 5,
}
Patch = pytest.MonkeyPatch


def runs_are_woken_by_any_signal(patch: Patch) -> None:
    say_instead(
        patch,
        "raise_inbox",
        "available_at = ?4, claim_key = ?5",
        "available_at = iif(status = 'SLEEPING', 0, ?4), claim_key = iif(status = 'SLEEPING', 0, ?5)",
    )


def sleepers_are_not_woken(patch: Patch) -> None:
    patch.setattr(signals, "awaits_signal", lambda _: "nothing")


def workers_park_past_a_signal(patch: Patch) -> None:
    def careless(*, inbox_seq: int, **fields: Any) -> ParkRun:
        return ParkRun(inbox_seq=inbox_seq + 1000, **fields)

    patch.setattr(attempt, "ParkRun", careless)


def signals_are_taken_and_not_marked(patch: Patch) -> None:
    patch.setattr(chunks, "take_signal", lambda *_: None)


def signals_are_marked_and_not_recorded(patch: Patch) -> None:
    execute_rows = chunks.execute_rows

    def forgetful(connection: Any, statement: str, rows: Any) -> Any:
        if statement == "write_steps":
            rows = [row for row in rows if row[3] != StepKind.SIGNAL or row[6] is None]
        return execute_rows(connection, statement, rows)

    patch.setattr(chunks, "execute_rows", forgetful)


def a_race_waits_for_one_of_its_names(patch: Patch) -> None:
    waiting_for = SignalInbox.waiting_for
    patch.setattr(SignalInbox, "waiting_for", lambda self: waiting_for(self)[-1:])


def the_inbox_does_not_grow(patch: Patch) -> None:
    say_instead(patch, "raise_inbox", "inbox_seq = ?3, ", "inbox_seq = inbox_seq + 0 * ?3, ")


def a_repeat_is_stored_again(patch: Patch) -> None:
    send, numbers = signals.send_signal, count()

    def again(connection: Any, signal: SendSignal, now: int) -> Any:
        return send(connection, replace(signal, key=f"{signal.key} {next(numbers)}"), now)

    patch.setattr(work, "send_signal", again)


def the_newest_is_read_first(patch: Patch) -> None:
    say_instead(patch, "read_inbox", "ORDER BY seq", "ORDER BY seq DESC")


def a_retry_keeps_what_was_taken(patch: Patch) -> None:
    say_instead(patch, "give_signals_back", "taken_seq > ?3", "taken_seq > ?3 + 1000")


def signals_overtake_timers(patch: Patch) -> None:
    """A timeout that was over when the signal came does not count."""
    take_next, first_due = Execution._take_next, WorkflowLoop.first_due

    def hastily(self: Execution) -> bool:
        patch.setattr(WorkflowLoop, "first_due", lambda *_: None)
        try:
            return take_next(self)
        finally:
            patch.setattr(WorkflowLoop, "first_due", first_due)

    patch.setattr(Execution, "_take_next", hastily)


def outcomes_overtake_signals(patch: Patch) -> None:
    """Those that come with a claim, while the signals before them are still to be read."""
    patch.setattr(Execution, "_unread", property(lambda _: False, lambda *_: None), raising=False)


def claims_forget_signals(patch: Patch) -> None:
    """They say that all have been taken."""
    patch.setattr(claims, "read_all", lambda *_: ())


BUGS: list[Callable[[Patch], None]] = [
    runs_are_woken_by_any_signal,
    sleepers_are_not_woken,
    workers_park_past_a_signal,
    signals_are_taken_and_not_marked,
    signals_are_marked_and_not_recorded,
    a_race_waits_for_one_of_its_names,
    the_inbox_does_not_grow,
    a_repeat_is_stored_again,
    the_newest_is_read_first,
    a_retry_keeps_what_was_taken,
    signals_overtake_timers,
    outcomes_overtake_signals,
    claims_forget_signals,
]


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("tidy")
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_found(bug: Callable[[Patch], None], monkeypatch: Patch) -> None:
    bug(monkeypatch)
    hunt(bug.__name__, HINTS[bug.__name__], SEEDS)
