"""Plant one bug about schedules at a time: the simulation must notice each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from kagzi.coordinator import coordinator
from kagzi.coordinator.duties import Duty, duties
from kagzi.core import schedule as core
from kagzi.core.schedule import Template
from kagzi.store.sqlite import firings
from tests.simulation.hunting import hunt
from tests.simulation.mutants import say_instead

SEEDS = range(2, 250, 5)  # the worlds that have schedules
FIRST = 2
# A seed that has shown the bug, where the first does not.
HINTS = {
    "a_firing_moves_nothing": 87,
    "ends_are_counted_twice": 7,
    "everything_is_caught_up_on": 217,
    "finished_runs_count_as_live": 42,
    "nobody_looks_at_the_clock": 222,
    "paused_schedules_fire": 7,
    "repeats_count_as_firings": 37,
    "repeats_forget_which_instant_they_are_for": 37,
    "the_end_of_the_run_before_is_not_noticed": 52,
    "the_newest_is_caught_up_on_first": 37,
    "the_run_before_is_not_cancelled": 22,
}
Patch = pytest.MonkeyPatch


def the_watermark_stays(patch: Patch) -> None:
    say_instead(patch, "move_schedule", "fired_until = ?3", "fired_until = max(fired_until, 0 * ?3)")


def a_firing_moves_nothing(patch: Patch) -> None:
    """As if it were moved in a transaction of its own, before which the coordinator dies."""
    say_instead(patch, "move_template", "next_fire_at = ?3", "next_fire_at = coalesce(next_fire_at, ?3)")


def what_was_skipped_is_not_recorded(patch: Patch) -> None:
    patch.setattr(firings, "note_skips", lambda *_: None)


def everything_is_caught_up_on(patch: Patch) -> None:
    kept = core._kept

    def all_of_them(times: Any, template: Template, now: int, counted: int) -> Any:
        return kept(times, replace(template, max_catchup=100), now, counted)

    patch.setattr(core, "_kept", all_of_them)


def the_newest_is_caught_up_on_first(patch: Patch) -> None:
    kept = core._kept

    def backwards(*args: Any) -> Any:
        due, *rest = kept(*args)
        return [due[::-1], *rest]

    patch.setattr(core, "_kept", backwards)


def finished_runs_count_as_live(patch: Patch) -> None:
    say_instead(patch, "find_due_schedules", "AND r.finished_at IS NULL", "")


def live_runs_do_not_count(patch: Patch) -> None:
    say_instead(patch, "find_due_schedules", "AND r.finished_at IS NULL", "AND false")


def the_run_before_is_not_cancelled(patch: Patch) -> None:
    say_instead(patch, "find_live_firings", "AND finished_at IS NULL", "AND false")


def the_end_of_the_run_before_is_not_noticed(patch: Patch) -> None:
    say_instead(patch, "hurry_template", "WHERE namespace", "WHERE false AND namespace")


def ends_are_counted_twice(patch: Patch) -> None:
    say_instead(patch, "delete_schedule_ends", "WHERE namespace", "WHERE false AND namespace")


def paused_schedules_fire(patch: Patch) -> None:
    say_instead(
        patch,
        "update_template",
        "SET status = ?3, next_fire_at = ?4, available_at = ?4",
        "SET status = coalesce('SCHEDULED', ?3), next_fire_at = coalesce(?4, next_fire_at), available_at = ?4",
    )


def nobody_looks_at_the_clock(patch: Patch) -> None:
    """Schedules are looked at now and then, as other duties are."""

    def slow(*args: Any, **kwargs: Any) -> tuple[Duty, ...]:
        return tuple(
            Duty(duty.name, duty.tick, 60_000_000) if duty.name == "fire schedules" else duty
            for duty in duties(*args, **kwargs)
        )

    patch.setattr(coordinator, "duties", slow)


def firings_are_counted_once_more_when_they_were_there(patch: Patch) -> None:
    say_instead(patch, "count_firings", "total_runs + ?3", "total_runs + ?3 + 1")


_COPIED = "coalesce(workflow_runs.scheduled_for, "


def repeats_count_as_firings(patch: Patch) -> None:
    say_instead(patch, "repeat_run", "started_at, origin_run_id, ", "started_at, origin_run_id, schedule_group_id, ")
    say_instead(patch, "repeat_run", _COPIED, "schedule_group_id, " + _COPIED)


def repeats_forget_which_instant_they_are_for(patch: Patch) -> None:
    say_instead(patch, "repeat_run", _COPIED, "coalesce(NULL, ")


BUGS: list[Callable[[Patch], None]] = [
    the_watermark_stays,
    a_firing_moves_nothing,
    what_was_skipped_is_not_recorded,
    everything_is_caught_up_on,
    the_newest_is_caught_up_on_first,
    finished_runs_count_as_live,
    live_runs_do_not_count,
    the_run_before_is_not_cancelled,
    the_end_of_the_run_before_is_not_noticed,
    ends_are_counted_twice,
    paused_schedules_fire,
    nobody_looks_at_the_clock,
    firings_are_counted_once_more_when_they_were_there,
    repeats_count_as_firings,
    repeats_forget_which_instant_they_are_for,
]


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("tidy")
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_found(bug: Callable[[Patch], None], monkeypatch: Patch) -> None:
    bug(monkeypatch)
    hunt(bug.__name__, HINTS.get(bug.__name__, FIRST), SEEDS)
