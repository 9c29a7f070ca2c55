"""One suspect at a time: a run that kills its workers must not take others along until all count as poison."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from kagzi.core.instant import SECOND, Instant, Span
from kagzi.sdk.worker.attempt import Attempt
from kagzi.sdk.worker.suspects import APART, TRIAL, Suspects


class Held:
    """An attempt that does nothing but remember what it was told."""

    def __init__(self, name: str, crashes: int) -> None:
        self.name = name
        self.claim = SimpleNamespace(crashes=crashes)
        self.gone = False
        self.progress = False
        self.handed_back: list[Instant | None] = []

    def now(self) -> Instant:
        return 1_000 * SECOND

    def jitter(self) -> float:
        return 0.5

    def has_progressed(self) -> bool:
        return self.progress

    def hand_back(self, available_at: Instant | None = None) -> None:
        self.handed_back.append(available_at)


class Bench:
    def __init__(self) -> None:
        self.now: Span = 5 * SECOND
        self.begun: list[str] = []
        self._suspects = Suspects(lambda attempt: self._begin(attempt), lambda: self.now)

    def _begin(self, attempt: Any) -> None:
        self.begun.append(attempt.name)

    def claim(self, *attempts: Held) -> list[str]:
        """What begins at once."""
        return [cast(Any, attempt).name for attempt in self._suspects.sift(cast(list[Attempt], list(attempts)))]

    def claims_nothing(self) -> bool:
        return self._suspects.trial_goes_on()

    def leave(self, attempt: Held) -> None:
        attempt.gone = True
        self._suspects.left(cast(Attempt, attempt))


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_runs_that_crashed_once_are_no_suspects(bench: Bench) -> None:
    runs = [Held("new", 0), Held("once", 1), Held("once too", 1)]
    assert bench.claim(*runs) == ["new", "once", "once too"]
    assert [run.handed_back for run in runs] == [[], [], []]
    assert not bench.claims_nothing()


def test_of_several_suspects_the_least_suspicious_begins_when_the_others_are_handed_back(bench: Bench) -> None:
    worst, least, other, innocent = Held("worst", 3), Held("least", 2), Held("other", 2), Held("innocent", 0)
    assert bench.claim(worst, least, other, innocent) == ["innocent"]
    now = least.now()
    assert other.handed_back == [now + APART]
    assert worst.handed_back == [now + 2 * APART]
    assert (least.handed_back, innocent.handed_back) == ([], [])
    bench.leave(worst)
    assert bench.begun == []  # it may kill the worker before the other one is safe
    assert bench.claims_nothing()
    bench.leave(other)
    assert bench.begun == ["least"]
    assert bench.claims_nothing()
    bench.leave(innocent)
    assert bench.begun == ["least"]


def test_a_single_suspect_begins_at_once_and_others_do_not_while_it_is_on_trial(bench: Bench) -> None:
    first, second = Held("first", 2), Held("second", 2)
    assert bench.claim(first) == ["first"]
    assert bench.claim(second, Held("innocent", 1)) == ["innocent"]
    assert len(second.handed_back) == 1
    bench.leave(second)
    assert bench.begun == []


def test_suspects_that_come_while_one_waits_to_begin_are_waited_for_too(bench: Bench) -> None:
    first, second, third = Held("first", 2), Held("second", 2), Held("third", 2)
    assert bench.claim(first, second) == []
    bench.now += 2 * TRIAL  # it has not begun, so it has not shown anything either
    assert bench.claim(third) == []
    assert len(third.handed_back) == 1
    bench.leave(second)
    assert bench.begun == []
    bench.leave(third)
    assert bench.begun == ["first"]


@pytest.mark.parametrize("end", ["it leaves", "it records something", "it has lived for a while"])
def test_a_trial_ends(bench: Bench, end: str) -> None:
    first = Held("first", 2)
    assert bench.claim(first) == ["first"]
    assert bench.claims_nothing()
    if end == "it leaves":
        bench.leave(first)
    elif end == "it records something":
        first.progress = True
    else:
        bench.now += TRIAL
    assert not bench.claims_nothing()
    assert bench.claim(Held("second", 2)) == ["second"]


def test_one_that_is_lost_before_it_could_begin_makes_room(bench: Bench) -> None:
    first, second = Held("first", 2), Held("second", 2)
    assert bench.claim(first, second) == []
    bench.leave(first)
    bench.leave(second)
    assert bench.begun == []
    assert bench.claim(Held("third", 2)) == ["third"]


def test_what_is_gone_already_is_not_tried(bench: Bench) -> None:
    gone = Held("gone", 2)
    gone.gone = True
    assert bench.claim(gone, Held("second", 2)) == ["second"]
    assert gone.handed_back == []
