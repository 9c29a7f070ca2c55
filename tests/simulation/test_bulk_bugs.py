"""Plant one bug about jobs or debounced starts at a time: the simulation must notice each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from kagzi.api.operations import RepeatRun
from kagzi.api.workflows import RunFilter
from kagzi.core.job import Job, JobAction, Skipped
from kagzi.core.run import Run
from kagzi.store.jobs import Batch, Move
from kagzi.store.sqlite import debounce, jobs
from tests.simulation.hunting import hunt
from tests.simulation.mutants import say_instead
from tests.simulation.seeds import BULK_SEEDS

FIRST = BULK_SEEDS[0]
# A seed of a world with jobs that has shown the bug, where the first does not.
HINTS = {
    "a_job_deletes_what_lives": 7,
    "a_job_moves_runs_of_every_version": 19,
    "a_job_moves_what_somebody_holds": 5,
    "a_job_that_was_cancelled_goes_on": 1,
    "a_job_repeats_what_was_repeated_before": 16,
    "a_job_wakes_only_what_sleeps": 26,
    "a_retry_by_a_job_keeps_nothing": 2,
    "a_start_joins_a_run_that_has_begun": 1,
    "a_start_that_comes_twice_is_counted_twice": 1,
    "a_start_that_comes_twice_says_its_input_again": 1,
    "deleting_leaves_steps_behind": 2,
    "keys_are_not_told_apart": 2,
    "starts_put_their_run_off_for_ever": 1,
}
Patch = pytest.MonkeyPatch


# Jobs.


def a_job_forgets_where_it_was(patch: Patch) -> None:
    """As when its place is saved in a transaction of its own, before which its coordinator has died."""
    say_instead(patch, "move_job", "SET cursor = ?3", "SET cursor = coalesce(cursor, ?3)")


def a_job_ends_with_its_first_batch(patch: Patch) -> None:
    begin = Batch.__init__

    def hasty(self: Batch, *args: Any) -> None:
        begin(self, *args)
        self._over = True

    patch.setattr(Batch, "__init__", hasty)


def a_job_goes_on_after_its_last_batch(patch: Patch) -> None:
    move = Batch.move

    def endless(self: Batch, now: int) -> Move:
        self._over = False
        return move(self, now)

    patch.setattr(Batch, "move", endless)


def a_job_meets_runs_that_came_after_it(patch: Patch) -> None:
    def all_runs(job: Job) -> RunFilter:
        return msgspec.json.decode(job.filter, type=RunFilter)

    begin = Batch.__init__

    def unbound(self: Batch, job: Job, found: Any, cursor: str, _: str, limit: int) -> None:
        begin(self, job, found, cursor, "ffffffff-ffff-ffff-ffff-ffffffffffff", limit)

    patch.setattr(jobs, "searched", all_runs)
    patch.setattr(Batch, "__init__", unbound)


def a_job_counts_its_last_batch_only(patch: Patch) -> None:
    say_instead(patch, "move_job", "skipped = skipped + ?6", "skipped = ?6")


def a_job_counts_what_it_skips_as_done(patch: Patch) -> None:
    move = Batch.move

    def proud(self: Batch, now: int) -> Move:
        self._done, self._skipped = self._done + self._skipped, 0
        return move(self, now)

    patch.setattr(Batch, "move", proud)


def a_job_repeats_children_beside_their_parents(patch: Patch) -> None:
    why_not = Batch._why_not
    patch.setattr(Batch, "_why_not", lambda self, run: why_not(self, replace(run, parent_policy=None)))


def a_job_repeats_what_was_repeated_before(patch: Patch) -> None:
    """As when it is started once more after it was cancelled."""
    patch.setattr(Batch, "pass_over", lambda *_: None)


def a_retry_by_a_job_keeps_nothing(patch: Patch) -> None:
    request = Batch.request

    def anew(self: Batch, *args: Any) -> Any:
        made = request(self, *args)
        return replace(made, keep_steps=False) if isinstance(made, RepeatRun) and made.fork is None else made

    patch.setattr(Batch, "request", anew)


def a_job_that_was_cancelled_goes_on(patch: Patch) -> None:
    say_instead(patch, "cancel_job", "next_at IS NOT NULL", "next_at = -1")


def nobody_works_on_jobs(patch: Patch) -> None:
    say_instead(patch, "next_job", "next_at <= ?1", "next_at <= ?1 AND 0")


def deleting_leaves_steps_behind(patch: Patch) -> None:
    say_instead(patch, "delete_steps", "WHERE", "WHERE kind = 'SLEEP' AND")


def a_job_deletes_what_lives(patch: Patch) -> None:
    _takes_on(patch, JobAction.DELETE, Skipped.LIVE)
    say_instead(patch, "delete_run", "AND finished_at IS NOT NULL", "")


def a_job_forks_what_lives(patch: Patch) -> None:
    _takes_on(patch, JobAction.FORK, Skipped.LIVE)


def a_fork_by_a_job_keeps_the_step_it_goes_on_from(patch: Patch) -> None:
    say_instead(patch, "number_of_step", "SELECT completed_seq", "SELECT completed_seq + 1")


def a_fork_by_a_job_stays_in_its_version(patch: Patch) -> None:
    request = Batch.request

    def as_it_was(self: Batch, *args: Any) -> Any:
        made = request(self, *args)
        fork = getattr(made, "fork", None)
        return made if fork is None else replace(made, fork=replace(fork, version=None))

    patch.setattr(Batch, "request", as_it_was)


def a_job_forks_from_the_beginning_what_has_no_such_step(patch: Patch) -> None:
    choose = jobs.step_to_fork_from

    def somehow(asked: str, named: list[str]) -> Any:
        found = choose(asked, named)
        return None if found is Skipped.NO_STEP else found

    patch.setattr(jobs, "step_to_fork_from", somehow)


def a_job_moves_what_somebody_holds(patch: Patch) -> None:
    _takes_on(patch, JobAction.MOVE, Skipped.HELD)
    say_instead(patch, "move_run", "AND status IN ('PENDING', 'SLEEPING')", "")


def a_job_moves_runs_of_every_version(patch: Patch) -> None:
    _takes_on(patch, JobAction.MOVE, Skipped.OTHER_VERSION)


def a_job_says_why_for_its_last_batch_only(patch: Patch) -> None:
    say_instead(patch, "move_job", "coalesce(?12, reasons)", "?12")
    begin = Batch.__init__

    def forgetful(self: Batch, job: Job, *args: Any) -> None:
        begin(self, replace(job, reasons={}), *args)

    patch.setattr(Batch, "__init__", forgetful)


def _takes_on(patch: Patch, action: JobAction, what: Skipped) -> None:
    """As if an action were for these runs, too."""
    why_not = Batch._why_not

    def greedy(self: Batch, run: Run) -> Skipped | None:
        reason = why_not(self, run)
        return None if (self.job.action, reason) == (action, what) else reason

    patch.setattr(Batch, "_why_not", greedy)


def a_job_wakes_only_what_sleeps(patch: Patch) -> None:
    say_instead(patch, "wake_run", "IN ('PENDING', 'SLEEPING')", "= 'SLEEPING'")


# Debounced starts.


def the_first_input_counts(patch: Patch) -> None:
    say_instead(patch, "join_run", "input = ?3", "input = coalesce(input, ?3)")


def a_large_input_is_kept(patch: Patch) -> None:
    patch.setattr(debounce, "_store_large", lambda *_: None)


def a_start_does_not_put_its_run_off(patch: Patch) -> None:
    say_instead(patch, "join_run", "available_at = ?9", "available_at = available_at")


def starts_put_their_run_off_for_ever(patch: Patch) -> None:
    """As if each of them were the first."""
    first = "created_at + coalesce(?8, 9223372036854775807 - created_at)"
    say_instead(patch, "find_joined", first, first.replace("created_at", "?6"))


def keys_are_not_told_apart(patch: Patch) -> None:
    say_instead(patch, "find_joined", "debounce_key = ?3", "debounce_key >= substr(?3, 1, 0)")


def a_start_joins_a_run_that_has_begun(patch: Patch) -> None:
    say_instead(patch, "find_joined", "started_at IS NULL AND finished_at IS NULL", "finished_at IS NULL")


def a_start_that_comes_twice_says_its_input_again(patch: Patch) -> None:
    say_instead(patch, "find_joined", "o.run_id = ?5", "o.run_id = ?5 AND 0")


def a_start_that_comes_twice_is_counted_twice(patch: Patch) -> None:
    say_instead(patch, "join_run", "joined_by IS ?11", "0")


def starts_that_join_are_not_counted(patch: Patch) -> None:
    say_instead(patch, "join_run", "coalesce(joins, 0) + 1", "1")


BUGS: list[Callable[[Patch], None]] = [
    a_job_forgets_where_it_was,
    a_job_ends_with_its_first_batch,
    a_job_goes_on_after_its_last_batch,
    a_job_meets_runs_that_came_after_it,
    a_job_counts_its_last_batch_only,
    a_job_counts_what_it_skips_as_done,
    a_job_repeats_children_beside_their_parents,
    a_job_repeats_what_was_repeated_before,
    a_retry_by_a_job_keeps_nothing,
    a_job_that_was_cancelled_goes_on,
    nobody_works_on_jobs,
    deleting_leaves_steps_behind,
    a_job_deletes_what_lives,
    a_job_wakes_only_what_sleeps,
    a_job_forks_what_lives,
    a_fork_by_a_job_keeps_the_step_it_goes_on_from,
    a_fork_by_a_job_stays_in_its_version,
    a_job_forks_from_the_beginning_what_has_no_such_step,
    a_job_moves_what_somebody_holds,
    a_job_moves_runs_of_every_version,
    a_job_says_why_for_its_last_batch_only,
    the_first_input_counts,
    a_large_input_is_kept,
    a_start_does_not_put_its_run_off,
    starts_put_their_run_off_for_ever,
    keys_are_not_told_apart,
    a_start_joins_a_run_that_has_begun,
    a_start_that_comes_twice_says_its_input_again,
    a_start_that_comes_twice_is_counted_twice,
    starts_that_join_are_not_counted,
]


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("tidy")
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_found(bug: Callable[[Patch], None], monkeypatch: Patch) -> None:
    bug(monkeypatch)
    hunt(bug.__name__, HINTS.get(bug.__name__, FIRST), BULK_SEEDS, bulk=True)
