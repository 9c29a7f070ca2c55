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
    "copies_do_not_count_their_signals": 50,
    "copies_forget_what_was_not_taken": 50,
    "copies_take_once_more_what_they_keep": 50,
    "finished_runs_are_superseded_once_more": 230,
    "forks_keep_the_step_they_begin_with": 16,
    "moved_runs_are_hurried": 43,
    "repeats_count_time_from_now": 16,
    "repeats_draw_other_chances": 16,
    "repeats_keep_one_event_less": 16,
    "repeats_that_come_later_are_runs_of_their_own": 230,
    "restarts_take_the_place_of_what_went_well": 33,
    "runs_are_moved_under_their_holder": 50,
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


def copies_forget_what_was_not_taken(patch: Patch) -> None:
    say_instead(patch, "copy_signals", "taken_seq IS NOT 0", "taken_seq IS NOT 0 AND taken_seq IS NOT NULL")


def copies_take_once_more_what_they_keep(patch: Patch) -> None:
    say_instead(patch, "copy_signals", "THEN taken_seq END", "THEN NULL END")


def copies_do_not_count_their_signals(patch: Patch) -> None:
    say_instead(patch, "count_copied_signals", "max(seq)", "min(0)")


def repeats_that_come_later_are_runs_of_their_own(patch: Patch) -> None:
    """The run that has taken the place is not looked for."""
    say_instead(patch, "find_run_to_repeat", "r.superseded_by, s.status", "NULL, s.status")


def finished_runs_are_superseded_once_more(patch: Patch) -> None:
    """The newest repeat counts, and has the id only if nobody else has it."""
    say_instead(
        patch, "find_run_to_repeat", "r.external_id, r.superseded_by", "coalesce(r.external_id, r.former_id), NULL"
    )
    say_instead(patch, "give_up_id", "former_id = external_id", "former_id = coalesce(external_id, former_id)")
    say_instead(patch, "give_up_id", "external_id IS NOT NULL AND", "")
    nobody = (
        "SELECT 1 FROM workflow_runs AS o JOIN workflow_runs AS h ON h.external_id = o.former_id WHERE o.run_id = ?3"
    )
    say_instead(patch, "take_id", "run_id = ?2", f"run_id = ?2 AND NOT EXISTS ({nobody})")


def repeats_count_time_from_now(patch: Patch) -> None:
    say_instead(patch, "repeat_run", "THEN started_at END", "THEN ?4 END")


def repeats_draw_other_chances(patch: Patch) -> None:
    say_instead(patch, "repeat_run", "THEN coalesce(origin_run_id, run_id) END", "THEN ?3 END")


def runs_are_moved_under_their_holder(patch: Patch) -> None:
    say_instead(
        patch, "waiting_page", "status IN ('PENDING', 'SLEEPING')", "status IN ('PENDING', 'SLEEPING', 'RUNNING')"
    )
    say_instead(patch, "move_run", "status IN ('PENDING', 'SLEEPING')", "finished_at IS NULL")


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
    copies_forget_what_was_not_taken,
    copies_take_once_more_what_they_keep,
    copies_do_not_count_their_signals,
    repeats_that_come_later_are_runs_of_their_own,
    finished_runs_are_superseded_once_more,
    repeats_count_time_from_now,
    repeats_draw_other_chances,
    runs_are_moved_under_their_holder,
]


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("tidy")
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_found(bug: Callable[[Patch], None], monkeypatch: Patch) -> None:
    bug(monkeypatch)
    hunt(bug.__name__, HINTS.get(bug.__name__, FIRST), SEEDS)
