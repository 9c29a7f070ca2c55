"""Plant one bug about children or failure handlers at a time: the simulation must notice each."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest

from kagzi.core.run import RunStatus
from kagzi.core.step import Step
from kagzi.sdk.replay import children as spawning
from kagzi.sdk.replay.children import Children
from kagzi.sdk.replay.execution import Execution
from kagzi.sdk.worker.attempt import Attempt
from kagzi.sdk.worker.slots import Slots
from kagzi.store.sqlite import children, chunks, claims, duties, ends
from kagzi.testing.simulation.restarts import has_parents
from tests.simulation.hunting import hunt
from tests.simulation.mutants import say_instead

# The worlds in which runs have children, and those in which such runs are repeated and forked.
SEEDS = sorted({*range(1, 250, 4), *filter(has_parents, range(250))})
FIRST = 1
# A seed that has shown the bug, where the first does not.
HINTS = {
    "a_retry_keeps_failed_children": 197,
    "a_retry_sets_all_children_aside": 221,
    "a_spawn_that_comes_twice_is_refused": 17,
    "cancelled_runs_call_handlers": 17,
    "cascades_are_forgotten_too_early": 109,
    "cascades_tell_nobody": 97,
    "children_follow_whatever_was_said": 209,
    "children_have_ids_by_chance": 105,
    "children_have_the_ids_of_the_attempt_before": 9,
    "children_of_handlers_have_handlers": 13,
    "copies_have_the_children_that_live": 67,
    "copies_keep_children_that_were_cancelled": 662,
    "copies_of_a_parent_give_their_children_its_ids": 67,
    "deadlines_call_no_handler": 13,
    "deadlines_leave_children_to_themselves": 113,
    "every_end_looks_as_if_it_went_well": 13,
    "finished_parents_are_told": 125,
    "handlers_call_handlers": 5,
    "handlers_start_in_a_second_transaction": 13,
    "parents_are_not_woken": 25,
    "parents_do_not_say_whom_they_wait_for": 45,
    "parents_keep_their_slot_while_they_wait": 17,
    "poison_calls_no_handler": 181,
}
Patch = pytest.MonkeyPatch


def parents_are_not_told(patch: Patch) -> None:
    patch.setattr(ends, "tell_parent", lambda *_: None)


def finished_parents_are_told(patch: Patch) -> None:
    say_instead(patch, "find_outcome", "AND p.finished_at IS NULL", "")


def parents_are_told_in_a_second_transaction(patch: Patch) -> None:
    tell = ends.tell_parent
    late: list[tuple[Any, ...]] = []

    def later(connection: Any, run: Any, now: int) -> Any:
        told = [tell(*before) for before in late]
        late[:] = [(connection, run, now)]
        return next((each for each in told if each is not None), None)

    patch.setattr(ends, "tell_parent", later)


def parents_are_not_woken(patch: Patch) -> None:
    patch.setattr(children, "awaits_child", lambda _: "nothing")
    patch.setattr(children, "ANY_CHILD", "nothing")


def every_end_looks_as_if_it_went_well(patch: Patch) -> None:
    say_instead(patch, "tell_outcome", "status = ?5", "status = coalesce('COMPLETED', ?5)")


def children_have_ids_by_chance(patch: Patch) -> None:
    patch.setattr(spawning, "derived_run_id", lambda *_: str(uuid4()))


def children_have_the_ids_of_the_attempt_before(patch: Patch) -> None:
    """A parent that is tried again meets those that have failed."""
    patch.setattr(Execution, "_family_id", lambda self: (self.run_id, "0"))


def copies_of_a_parent_give_their_children_its_ids(patch: Patch) -> None:
    patch.setattr(Execution, "_family_id", lambda self: (self.run.origin_run_id or self.run_id, str(self.run.attempts)))


def copies_have_the_children_that_live(patch: Patch) -> None:
    say_instead(patch, "copy_steps", "OR kind = 'SIGNAL'", "OR kind IN ('SIGNAL', 'CHILD_WORKFLOW')")


def copies_keep_children_that_were_cancelled(patch: Patch) -> None:
    say_instead(patch, "keep_of_run", "status IN ('FAILED', 'CANCELLED')", "status = 'FAILED'")


def a_spawn_that_comes_twice_is_refused(patch: Patch) -> None:
    say_instead(patch, "place_child", "ON CONFLICT DO NOTHING", "ON CONFLICT DO UPDATE SET status = 'RUNNING'")
    say_instead(patch, "is_own_child", "SELECT EXISTS", "SELECT NOT EXISTS")


def outcomes_keep_the_time_of_the_end(patch: Patch) -> None:
    """Instead of that of the event: a replay sees another time than the workflow has."""
    say_instead(patch, "take_outcome", "finished_at = ?6", "finished_at = coalesce(finished_at, ?6)")


def claims_come_without_outcomes(patch: Patch) -> None:
    read = claims.read_history

    def silent(connection: sqlite3.Connection, namespace: str, run_ids: Any) -> dict[str, tuple[Step, ...]]:
        return {
            run_id: tuple(step for step in steps if step.child_run_id is None or step.completed_seq is not None)
            for run_id, steps in read(connection, namespace, run_ids).items()
        }

    patch.setattr(claims, "read_history", silent)


def a_retry_keeps_failed_children(patch: Patch) -> None:
    say_instead(patch, "set_steps_aside", "status IN ('RUNNING', 'COMPLETED')", "status <> 'CANCELLED'")


def a_retry_sets_all_children_aside(patch: Patch) -> None:
    say_instead(patch, "set_steps_aside", "status IN ('RUNNING', 'COMPLETED')", "status = 'none'")


def parents_keep_their_slot_while_they_wait(patch: Patch) -> None:
    """Nobody takes it back then, either: what is not lent is not waited for."""
    lend = Slots.lend

    def keep(self: Slots, attempt: Any) -> bool:
        execution = attempt.execution
        return True if execution is not None and execution.awaits_children else lend(self, attempt)

    patch.setattr(Slots, "lend", keep)


def parents_do_not_say_whom_they_wait_for(patch: Patch) -> None:
    patch.setattr(Children, "waiting_for", lambda _: ())


def workers_say_that_no_run_has_a_family(patch: Patch) -> None:
    patch.setattr(Attempt, "_has_family", lambda _: False)


def cascades_are_forgotten_too_early(patch: Patch) -> None:
    say_instead(patch, "forget_cascades", "WHERE NOT EXISTS", "WHERE true OR NOT EXISTS")


def deadlines_leave_children_to_themselves(patch: Patch) -> None:
    """As if the trigger knew only the ends that a holder or a person brings about."""
    end_run = duties.end_run

    def quietly(connection: Any, run: Any, status: Any, *args: Any) -> Any:
        told = end_run(connection, run, status, *args)
        if status is RunStatus.TIMED_OUT:
            connection.execute("DELETE FROM cascades WHERE namespace = ? AND run_id = ?", run)
        return told

    patch.setattr(duties, "end_run", quietly)


def cascades_tell_nobody(patch: Patch) -> None:
    say_instead(patch, "find_cascades", "LIMIT ?1", "LIMIT 0 * ?1")


def children_follow_whatever_was_said(patch: Patch) -> None:
    for statement in ("find_cascades", "forget_cascades"):
        say_instead(patch, statement, "r.parent_policy = 'cancel'", "r.parent_policy IN ('cancel', 'abandon')")


def children_of_handlers_have_handlers(patch: Patch) -> None:
    say_instead(patch, "insert_child", "p.handles_run_id FROM", "NULL FROM")


def poison_calls_no_handler(patch: Patch) -> None:
    patch.setattr(duties, "ended", lambda *_: [])


def deadlines_call_no_handler(patch: Patch) -> None:
    patch.setattr(duties, "end_run", _without_handlers)


def _without_handlers(connection: Any, run: Any, status: Any, error: bytes, now: int) -> Any:
    ends.execute(connection, "end_run", (*run, status.value, error, now))
    ends.execute(connection, "forget_step_timeouts", run)
    return [told for told in [ends.tell_parent(connection, run, now)] if told is not None]


def cancelled_runs_call_handlers(patch: Patch) -> None:
    say_instead(patch, "read_failed_run", "('FAILED', 'TIMED_OUT')", "('FAILED', 'TIMED_OUT', 'CANCELLED')")


def runs_that_are_tried_again_call_handlers(patch: Patch) -> None:
    """For each failure, and not for the last one."""
    retry = chunks._retry_run

    def loudly(connection: Any, chunk: Any, *args: Any) -> None:
        retry(connection, chunk, *args)
        ends.start_handlers(connection, [(chunk.namespace, chunk.run_id)], args[-1])

    patch.setattr(chunks, "_retry_run", loudly)
    say_instead(patch, "read_failed_run", "('FAILED', 'TIMED_OUT')", "('FAILED', 'TIMED_OUT', 'PENDING')")
    for statement in ("read_failed_run", "start_handler", "keep_failed_input"):
        say_instead(patch, statement, "r.finished_at", "coalesce(r.finished_at, r.available_at)")


def handlers_call_handlers(patch: Patch) -> None:
    say_instead(patch, "read_failed_run", "AND r.handles_run_id IS NULL", "")


def handlers_start_in_a_second_transaction(patch: Patch) -> None:
    start, late = ends.start_handlers, []

    def later(connection: Any, runs: Any, now: int) -> Any:
        told = [each for before in late for each in start(connection, before, now)]
        late[:] = [list(runs)]
        return told

    patch.setattr(ends, "start_handlers", later)


BUGS: list[Callable[[Patch], None]] = [
    parents_are_not_told,
    finished_parents_are_told,
    parents_are_told_in_a_second_transaction,
    parents_are_not_woken,
    every_end_looks_as_if_it_went_well,
    children_have_ids_by_chance,
    children_have_the_ids_of_the_attempt_before,
    copies_of_a_parent_give_their_children_its_ids,
    copies_have_the_children_that_live,
    copies_keep_children_that_were_cancelled,
    a_spawn_that_comes_twice_is_refused,
    outcomes_keep_the_time_of_the_end,
    claims_come_without_outcomes,
    a_retry_keeps_failed_children,
    a_retry_sets_all_children_aside,
    parents_keep_their_slot_while_they_wait,
    parents_do_not_say_whom_they_wait_for,
    workers_say_that_no_run_has_a_family,
    deadlines_leave_children_to_themselves,
    cascades_are_forgotten_too_early,
    cascades_tell_nobody,
    children_follow_whatever_was_said,
    children_of_handlers_have_handlers,
    poison_calls_no_handler,
    deadlines_call_no_handler,
    cancelled_runs_call_handlers,
    runs_that_are_tried_again_call_handlers,
    handlers_call_handlers,
    handlers_start_in_a_second_transaction,
]


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("tidy")
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_found(bug: Callable[[Patch], None], monkeypatch: Patch) -> None:
    bug(monkeypatch)
    hunt(bug.__name__, HINTS.get(bug.__name__, FIRST), SEEDS)
