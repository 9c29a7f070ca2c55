"""Worlds in which runs kill their workers, and bugs planted there that the simulation must notice."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kagzi.sdk.worker.attempt import Attempt
from kagzi.sdk.worker.suspects import Suspects
from kagzi.testing.simulation.poisoned import PoisonedWorld
from tests.campaigns import length

SEEDS = range(length(6, 300))
Patch = pytest.MonkeyPatch


def drive_suspects_together(patch: Patch) -> None:
    patch.setattr(Suspects, "sift", lambda _, attempts: attempts)


def begin_before_hand_backs_are_stored(patch: Patch) -> None:
    sift = Suspects.sift

    def hasty(self: Suspects, attempts: list[Attempt]) -> list[Attempt]:
        begin = sift(self, attempts)
        waiting, self._next = self._next, []
        return begin + waiting

    patch.setattr(Suspects, "sift", hasty)


@pytest.mark.parametrize("seed", SEEDS)
def test_only_runs_that_kill_their_workers_fail(seed: int) -> None:
    PoisonedWorld(seed, keep_log=False).run()


@pytest.mark.parametrize("plant", [drive_suspects_together, begin_before_hand_backs_are_stored])
def test_a_planted_bug_is_noticed(plant: Callable[[Patch], None], monkeypatch: Patch) -> None:
    plant(monkeypatch)
    for seed in SEEDS:
        try:
            PoisonedWorld(seed, keep_log=False).run()
        except AssertionError:
            return
    pytest.fail(f"{plant.__name__} was not noticed")
