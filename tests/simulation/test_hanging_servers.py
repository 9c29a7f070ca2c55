"""Worlds in which servers hang, and bugs planted there that the simulation must notice."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kagzi.engine.local import LocalEngine
from kagzi.rpc.client.failover import Choice
from kagzi.testing.simulation.hanging import HangingWorld
from tests.campaigns import length

SEEDS = range(length(3, 150))
FEW = 4  # worlds in which each bug must have shown
Patch = pytest.MonkeyPatch


def stay_with_a_server_that_hangs(patch: Patch) -> None:
    patch.setattr(Choice, "leave", lambda *_: None)


def take_calls_without_a_database(patch: Patch) -> None:
    patch.setattr(LocalEngine, "silence", lambda _: 0.0)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", SEEDS)
def test_everybody_is_answered_while_servers_hang(seed: int) -> None:
    HangingWorld(seed, keep_log=False).run()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("plant", [stay_with_a_server_that_hangs, take_calls_without_a_database])
def test_a_planted_bug_is_noticed(plant: Callable[[Patch], None], monkeypatch: Patch) -> None:
    plant(monkeypatch)
    for seed in range(FEW):
        try:
            HangingWorld(seed, keep_log=False).run()
        except AssertionError:
            return
    pytest.fail(f"{plant.__name__} was not noticed")
