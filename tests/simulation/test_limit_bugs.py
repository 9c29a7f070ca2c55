"""Plant one bug about limits at a time: the simulation must notice each."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from kagzi.core.rate import RateLimit
from kagzi.core.run import CANCEL_GRACE, HELD_GRACE
from kagzi.engine.limits import Limits
from kagzi.store import lines as deciding
from kagzi.store.lines import HELD, Room
from kagzi.store.sqlite import claims, lines, starts
from kagzi.store.sqlite import limits as store_of_limits
from kagzi.testing.simulation.limited import has_limits
from tests.simulation.hunting import hunt
from tests.simulation.mutants import say_instead

SEEDS = [seed for seed in range(250) if has_limits(seed)]
FIRST = SEEDS[0]
# A seed that has shown the bug, where the first does not.
HINTS = {
    "a_claim_does_not_count_what_it_takes": 150,
    "a_rate_counts_from_the_past": 9,
    "a_rate_lets_all_pass_that_go_on_where_another_was": 468,
    "a_turn_is_not_remembered": 9,
    "every_claim_takes_a_turn_but_the_first": 14,
    "grace_passes_while_held": 3052,
    "held_runs_are_never_let_go": 185,
    "held_runs_have_no_place": 14,
    "keys_are_not_counted": 14,
    "news_moves_held_runs": 100,
    "nothing_is_counted": 14,
    "one_key_is_let_go": 32,
    "parked_runs_count_as_running": 150,
    "queues_are_never_full": 15,
    "repeats_lose_their_key": 43,
    "shared_names_are_not_shared": 14,
    "those_let_in_have_no_grace": 9,
    "what_is_paused_is_handed_out": 15,
}
Patch = pytest.MonkeyPatch


def births_ignore_limits(patch: Patch) -> None:
    patch.setattr(starts, "is_limited", lambda *_: False)


def nothing_is_counted(patch: Patch) -> None:
    patch.setattr(Room, "_reached", lambda *_: None)


def a_claim_does_not_count_what_it_takes(patch: Patch) -> None:
    patch.setattr(Room, "take", lambda *_: None)


def keys_are_not_counted(patch: Patch) -> None:
    reached = Room._reached
    patch.setattr(Room, "_reached", lambda self, run: reached(self, replace(run, limit_key="")))


def shared_names_are_not_shared(patch: Patch) -> None:
    patch.setattr(Room, "_name", lambda _self, workflow_type, _name: workflow_type)


def queues_are_never_full(patch: Patch) -> None:
    patch.setattr(Room, "full", lambda *_: False)


def what_is_paused_is_handed_out(patch: Patch) -> None:
    limit_of = claims.limit_of
    patch.setattr(claims, "limit_of", lambda row: replace(limit_of(row), paused_at=None))


def parked_runs_count_as_running(patch: Patch) -> None:
    """Nobody is let go of then while others sleep."""
    say_instead(patch, "count_limited", "INDEXED BY workflow_runs_leased", "")
    say_instead(patch, "count_limited", "status = 'RUNNING'", "status IN ('RUNNING', 'SLEEPING')")


def held_runs_have_no_place(patch: Patch) -> None:
    say_instead(patch, "hold_runs", "SET held_key = coalesce(held_key, ", "SET held_key = iif(1, NULL, ")


def held_runs_are_never_let_go(patch: Patch) -> None:
    patch.setattr(Limits, "_turn", _no_turn)


async def _no_turn(_self: Limits, _namespace: str) -> bool:
    return False


def one_key_is_let_go(patch: Patch) -> None:
    free = deciding.free
    patch.setattr(lines, "free", lambda *args: [each for each in free(*args) if each.line.limit_key in ("", "a")])


def news_moves_held_runs(patch: Patch) -> None:
    """As if their place in the line were the time of their waking."""
    say_instead(
        patch,
        "find_inbox_of_run",
        "available_at, ",
        f"CASE WHEN claim_key = {HELD} THEN claim_key ELSE available_at END, ",
    )


def grace_passes_while_held(patch: Patch) -> None:
    say_instead(patch, "hold_runs", f"cancel_deadline + {HELD_GRACE}", "cancel_deadline")


def those_let_in_have_no_grace(patch: Patch) -> None:
    say_instead(patch, "claim_runs", f"?6 + {CANCEL_GRACE}", "?6")
    say_instead(patch, "free_line", f"coalesce(?9, ?7) + {CANCEL_GRACE}", "?7")


def a_rate_counts_from_the_past(patch: Patch) -> None:
    """Tokens of a lull are kept for ever."""

    def taken(self: RateLimit, turn: int, now: int) -> int:
        return turn + self.interval

    patch.setattr(RateLimit, "taken", taken)


def every_claim_takes_a_turn_but_the_first(patch: Patch) -> None:
    say_instead(patch, "find_due_limited", "executions = 0", "executions > 0")


def a_rate_lets_all_pass_that_go_on_where_another_was(patch: Patch) -> None:
    """The time zero of a run that repeats another one is that of the first."""
    say_instead(patch, "find_due_limited", "executions = 0", "started_at IS NULL")


def a_turn_is_not_remembered(patch: Patch) -> None:
    say_instead(patch, "write_turn", "DO UPDATE SET turn = excluded.turn", "DO NOTHING")


def what_workers_declare_is_not_kept(patch: Patch) -> None:
    patch.setattr(store_of_limits, "smallest", lambda _workers: {})


def repeats_lose_their_key(patch: Patch) -> None:
    say_instead(patch, "repeat_run", "limit_key\nFROM workflow_runs", "NULL\nFROM workflow_runs")


BUGS: list[Callable[[Patch], None]] = [
    births_ignore_limits,
    nothing_is_counted,
    a_claim_does_not_count_what_it_takes,
    keys_are_not_counted,
    shared_names_are_not_shared,
    queues_are_never_full,
    what_is_paused_is_handed_out,
    parked_runs_count_as_running,
    held_runs_have_no_place,
    held_runs_are_never_let_go,
    one_key_is_let_go,
    news_moves_held_runs,
    grace_passes_while_held,
    those_let_in_have_no_grace,
    a_rate_counts_from_the_past,
    every_claim_takes_a_turn_but_the_first,
    a_rate_lets_all_pass_that_go_on_where_another_was,
    a_turn_is_not_remembered,
    what_workers_declare_is_not_kept,
    repeats_lose_their_key,
]


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("tidy")
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_found(bug: Callable[[Patch], None], monkeypatch: Patch) -> None:
    bug(monkeypatch)
    hunt(bug.__name__, HINTS.get(bug.__name__, FIRST), SEEDS)
