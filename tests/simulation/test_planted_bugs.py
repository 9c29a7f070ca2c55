"""Plant one bug at a time: the simulation must notice each within a bounded number of seeds.

The patches are planted here and nowhere else. That the same seeds pass without them is shown by `test_worlds`, which
runs them all.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.sdk.replay import test_mutants as kernel
from tests.simulation import mutants
from tests.simulation.hunting import first_seed_that_fails
from tests.simulation.seeds import BATCHES, SEEDS_IN_A_BATCH

Patch = pytest.MonkeyPatch
Mutant = Callable[[Patch], None]

MUTANTS: list[Mutant] = [
    *mutants.MUTANTS,
    kernel.two_events_in_one_drain,
    kernel.number_after_the_workflow_went_on,
    kernel.number_when_the_body_returns,
    kernel.start_bodies_at_once,
    kernel.wait_for_the_newest_acknowledgement_only,
    kernel.ticks_are_no_events,
    kernel.derive_ticks_from_timestamps,
    kernel.a_tick_fires_one_timer,
    kernel.a_tick_with_nothing_due_is_recorded,
    kernel.time_of_the_worker,
    kernel.start_time_of_the_worker,
    kernel.replay_starts_bodies,
    kernel.late_results_are_recorded,
    kernel.cancelled_bodies_are_not_told,
    kernel.cancelled_bodies_are_not_waited_for,
    kernel.errors_are_not_rebuilt,
    kernel.tasks_are_hashed_by_chance,
    kernel.tasks_are_named_by_a_counter_of_the_process,
    kernel.retry_before_the_failure_is_durable,
    kernel.failed_attempts_are_forgotten,
    kernel.evict_without_a_flag,
    kernel.cancellations_are_not_recorded,
    kernel.cancellations_are_replayed_last,
]
MOST_SEEDS = BATCHES * SEEDS_IN_A_BATCH
# Tried first, because it shows the bug soonest. Nobody has to look for a better one while the bug shows in one of the
# first few, as most do; a search through all of them would take longer than all the other planted bugs together.
FIRST_FEW = 8
HINTS = {
    "acknowledge_what_is_locked": 12,
    "lose_what_is_locked": 84,
    "a_tick_fires_one_timer": 20,
    "apply_an_operation_after_a_refused_one": 27,
    "cancellations_are_not_recorded": 18,
    "cancellations_are_replayed_last": 11,
    "cancelled_bodies_are_not_told": 1,
    "cancelled_bodies_are_not_waited_for": 33,
    "claim_before_the_time": 5,
    "claim_under_the_token_of_the_poll": 102,
    "count_renewed_leases_from_the_answer": 372,
    "derive_ticks_from_timestamps": 16,
    "drain_by_failing_steps": 14,
    "drop_the_fence": 3,
    "end_before_the_last_events": 2,
    "errors_are_not_rebuilt": 4,
    "evict_without_a_flag": 1,
    "failed_attempts_are_forgotten": 5,
    "fire_timers_by_the_latest_time": 4,
    "late_results_are_recorded": 24,
    "number_when_the_body_returns": 1,
    "overwrite_results": 41,
    "recover_before_the_lease_ends": 11,
    "replay_starts_bodies": 3,
    "restart_sleeps_on_replay": 38,
    "retry_before_the_failure_is_durable": 3,
    "several_chunks_in_flight": 1,
    "start_bodies_behind_a_park": 163,
    "start_time_of_the_worker": 38,
    "tasks_are_hashed_by_chance": 38,
    "tasks_are_named_by_a_counter_of_the_process": 5,
    "ticks_are_no_events": 10,
    "time_of_the_worker": 39,
    "two_events_in_one_drain": 44,
    "wait_for_the_newest_acknowledgement_only": 1,
    "wake_only_by_notification": 7,
}


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("tidy")
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_planted_bug_is_noticed(mutant: Mutant, monkeypatch: Patch) -> None:
    mutant(monkeypatch)
    hint = HINTS.get(mutant.__name__)
    seed = first_seed_that_fails(range(MOST_SEEDS) if hint is None else [hint, *range(MOST_SEEDS)])

    assert seed is not None, f"{mutant.__name__} was not noticed in {MOST_SEEDS} seeds"
    expected = sorted({hint or 0, *range(FIRST_FEW)})
    assert seed in expected, f"{mutant.__name__} shows in seed {seed}, not in {expected}: write that into HINTS"
