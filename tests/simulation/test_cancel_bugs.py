"""Plant one bug about cancelling at a time: the simulation must notice each within a bounded number of seeds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from kagzi.api.operations import CompleteRun, ParkRun
from kagzi.engine.aftermath import Aftermath
from kagzi.sdk.replay.execution import Execution
from kagzi.sdk.worker.attempt import Attempt
from kagzi.store.sqlite import cancels, chunks, duties
from tests.simulation.hunting import hunt
from tests.simulation.mutants import say_instead

SEEDS = range(250)
# The seed that shows the bug soonest.
HINTS = {
    "a_termination_undoes_an_end": 0,
    "heartbeats_do_not_tell": 1,
    "holders_complete_past_it": 7,
    "holders_park_past_it": 5,
    "sleepers_are_not_woken": 6,
    "terminated_runs_keep_their_token": 18,
    "the_inbox_does_not_grow": 1,
    "workers_do_not_listen": 19,
    "workers_forget_to_tell_what_has_returned": 7,
}
Patch = pytest.MonkeyPatch


def heartbeats_do_not_tell(patch: Patch) -> None:
    """Nor do the calls in which workers wait for news, which tell the same."""
    say_instead(patch, "find_leases_of_worker", "poll, inbox_seq, cancel_requested", "poll, 0, 0")
    patch.setattr(Aftermath, "_tell_worker", lambda *_: None)


def sleepers_are_not_woken(patch: Patch) -> None:
    say_instead(
        patch,
        "request_cancel",
        "= ?4, claim_key = ?5",
        "= coalesce(available_at, ?4), claim_key = coalesce(claim_key, ?5)",
    )


def the_inbox_does_not_grow(patch: Patch) -> None:
    say_instead(patch, "request_cancel", "inbox_seq = inbox_seq + 1, ", "")


def holders_park_past_it(patch: Patch) -> None:
    transition = chunks._transition

    def always(rows: Any, chunk: Any, operation: Any, lease: Any, now: int) -> bool:
        if isinstance(operation, ParkRun):
            lease.inbox_seq = operation.inbox_seq
        return transition(rows, chunk, operation, lease, now)

    patch.setattr(chunks, "_transition", always)


def holders_complete_past_it(patch: Patch) -> None:
    transition = chunks._transition

    def always(rows: Any, chunk: Any, operation: Any, lease: Any, now: int) -> bool:
        if isinstance(operation, CompleteRun):
            operation = replace(operation, unless_cancelled=False)
        return transition(rows, chunk, operation, lease, now)

    patch.setattr(chunks, "_transition", always)


def workers_forget_to_tell_what_has_returned(patch: Patch) -> None:
    """They complete it all the same, as those may who cannot tell it."""
    patch.setattr(
        Attempt, "_tell_late", lambda self, execution: self._end(CompleteRun(output=execution.outcome.output or b""))
    )


def workers_do_not_listen(patch: Patch) -> None:
    begin = Execution.begin
    patch.setattr(
        Execution,
        "begin",
        lambda self, *args, cancel=False, **kwargs: begin(self, *args, **kwargs),  # noqa: ARG005
    )


def terminated_runs_keep_their_token(patch: Patch) -> None:
    say_instead(patch, "end_run", "token = NULL, ", "")


def a_termination_undoes_an_end(patch: Patch) -> None:
    for module in (cancels, duties):
        patch.setattr(module, "end_run", _late_end(cancels.end_run))


def _late_end(end: Callable[..., Any]) -> Callable[..., Any]:
    def late(connection: Any, *args: Any) -> Any:
        told, now = end(connection, *args), args[-1]
        connection.execute("DROP TRIGGER IF EXISTS finished_is_final")
        connection.execute("UPDATE workflow_runs SET error = x'00' WHERE finished_at < ?", (now,))
        return told

    return late


BUGS: list[Callable[[Patch], None]] = [
    heartbeats_do_not_tell,
    sleepers_are_not_woken,
    the_inbox_does_not_grow,
    holders_park_past_it,
    holders_complete_past_it,
    workers_forget_to_tell_what_has_returned,
    workers_do_not_listen,
    terminated_runs_keep_their_token,
    a_termination_undoes_an_end,
]


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("tidy")
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_found(bug: Callable[[Patch], None], monkeypatch: Patch) -> None:
    bug(monkeypatch)
    hunt(bug.__name__, HINTS[bug.__name__], SEEDS)
