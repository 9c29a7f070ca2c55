"""Plant one bug about runs that change at a time: the simulation must notice each."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kagzi.core.conflict import OnConflict
from kagzi.sdk.replay.execution import Execution
from kagzi.testing.simulation.restarts import has_restarts
from tests.simulation.hunting import hunt
from tests.simulation.mutants import say_instead

SEEDS = [seed for seed in range(250) if has_restarts(seed)]
FIRST = SEEDS[0]
# A seed that has shown the bug, where the first does not.
HINTS = {
    "a_patch_is_decided_once_for_all": 186,
    "a_patch_is_on_where_the_old_code_was": 33,
    "beginning_anew_takes_all_signals": 16,
    "forks_keep_the_step_they_begin_with": 16,
    "moved_runs_are_hurried": 43,
    "repeats_keep_one_event_less": 16,
    "restarts_take_the_place_of_what_went_well": 33,
}
Patch = pytest.MonkeyPatch


def beginning_anew_counts_claims_from_0(patch: Patch) -> None:
    """Then tokens come twice."""
    say_instead(patch, "continue_run", "executions_before = executions", "executions = 0, executions_before = 0")


def beginning_anew_gives_taken_signals_back(patch: Patch) -> None:
    say_instead(patch, "settle_taken_signals", "SET taken_seq = 0", "SET taken_seq = NULL")


def beginning_anew_takes_all_signals(patch: Patch) -> None:
    say_instead(patch, "settle_taken_signals", "AND taken_seq > 0", "")


def beginning_anew_keeps_events(patch: Patch) -> None:
    say_instead(patch, "set_incarnation_aside", "completed_seq = NULL, ", "")


def beginning_anew_keeps_the_clock(patch: Patch) -> None:
    say_instead(patch, "continue_run", "started_at = ?6", "started_at = coalesce(started_at, ?6)")


def a_patch_is_decided_once_for_all(patch: Patch) -> None:
    """The first answer counts for every later round."""
    ask = Execution.patched

    def remembered(self: Execution, step_id: str) -> bool:
        if not hasattr(self, "decided"):
            self.decided = ask(self, step_id)  # type: ignore[attr-defined]
        return self.decided  # type: ignore[attr-defined, no-any-return]

    patch.setattr(Execution, "patched", remembered)


def a_patch_is_on_where_the_old_code_was(patch: Patch) -> None:
    ask = Execution.patched

    def careless(self: Execution, step_id: str) -> bool:
        self._on_old_ground = False
        return ask(self, step_id)

    patch.setattr(Execution, "patched", careless)


def forks_keep_the_step_they_begin_with(patch: Patch) -> None:
    say_instead(patch, "number_of_step", "SELECT completed_seq FROM", "SELECT completed_seq + 1 FROM")


def repeats_keep_one_event_less(patch: Patch) -> None:
    say_instead(patch, "copy_steps", "completed_seq <= ?4", "completed_seq < ?4")


def restarts_take_the_place_of_what_went_well(patch: Patch) -> None:
    patch.setattr(OnConflict, "restarts", lambda _self, status: status.finished)


def moved_runs_are_hurried(patch: Patch) -> None:
    say_instead(patch, "move_run", "SET version = ?3", "SET version = ?3, available_at = 0")


BUGS: list[Callable[[Patch], None]] = [
    beginning_anew_counts_claims_from_0,
    beginning_anew_gives_taken_signals_back,
    beginning_anew_takes_all_signals,
    beginning_anew_keeps_events,
    beginning_anew_keeps_the_clock,
    a_patch_is_decided_once_for_all,
    a_patch_is_on_where_the_old_code_was,
    forks_keep_the_step_they_begin_with,
    repeats_keep_one_event_less,
    restarts_take_the_place_of_what_went_well,
    moved_runs_are_hurried,
]


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("tidy")
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_found(bug: Callable[[Patch], None], monkeypatch: Patch) -> None:
    bug(monkeypatch)
    hunt(bug.__name__, HINTS.get(bug.__name__, FIRST), SEEDS)
