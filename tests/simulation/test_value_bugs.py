"""Plant one bug about values at a time: the simulation must notice each within a bounded number of seeds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from kagzi.api.operations import Operation, SetValue
from kagzi.sdk.replay.execution import Execution
from kagzi.sdk.worker import attempt
from kagzi.sdk.worker.values import Values
from tests.simulation.hunting import hunt
from tests.simulation.mutants import say_instead

SEEDS = range(0, 240, 3)  # the worlds in which runs talk
Patch = pytest.MonkeyPatch


def a_stale_holder_sets_values(patch: Patch) -> None:
    say_instead(patch, "set_value", "r.token = ?3 AND r.status = 'RUNNING'", "?3 = ?3")
    say_instead(patch, "count_held_runs", "r.token = wanted.value AND r.status = 'RUNNING'", "true")


def numbers_do_not_rise(patch: Patch) -> None:
    join = Values.join

    def unnumbered(self: Values, operations: tuple[Operation, ...]) -> tuple[Operation, ...]:
        sent = join(self, operations)
        return tuple(replace(each, number=9 - each.number % 9) if isinstance(each, SetValue) else each for each in sent)

    patch.setattr(Values, "join", unnumbered)


def what_was_said_behind_the_last_event_is_not_said_again(patch: Patch) -> None:
    say = Execution.set_value

    def once(self: Execution, name: str, value: bytes) -> None:
        if not self.replaying:
            say(self, name, value)

    patch.setattr(Execution, "set_value", once)


def values_are_sent_only_alone(patch: Patch) -> None:
    """And not with the end of the run, behind which nothing is sent."""
    join = Values.join

    def alone(self: Values, operations: tuple[Operation, ...]) -> tuple[Operation, ...]:
        return operations or join(self, operations)

    patch.setattr(Values, "join", alone)


def durable_counts_values(patch: Patch) -> None:
    patch.setattr(attempt, "count_values", lambda _: 0)


BUGS: list[Callable[[Patch], None]] = [
    a_stale_holder_sets_values,
    numbers_do_not_rise,
    what_was_said_behind_the_last_event_is_not_said_again,
    values_are_sent_only_alone,
    durable_counts_values,
]
HINTS = {
    "a_stale_holder_sets_values": 3,
    "durable_counts_values": 3,
    "numbers_do_not_rise": 54,
    "values_are_sent_only_alone": 54,
    "what_was_said_behind_the_last_event_is_not_said_again": 114,
}


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("tidy")
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_found(bug: Callable[[Any], None], monkeypatch: Patch) -> None:
    bug(monkeypatch)
    hunt(bug.__name__, HINTS.get(bug.__name__, 0), SEEDS)
