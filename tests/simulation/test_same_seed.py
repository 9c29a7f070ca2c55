"""A seed is a world: the same to the letter, whatever the hash seed of the interpreter and where its objects lie."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from kagzi.testing.simulation.coverage import REQUIRED, missing
from kagzi.testing.simulation.faults import Fault
from kagzi.testing.simulation.world import World


def log_of(hash_seed: str, *world: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "kagzi.testing.simulation", *world, "--log"],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


@pytest.mark.parametrize("world", ["--seed 3", "--seed 17", "--seed 101", "--seed 1 --bulk"])
def test_one_log_under_two_hash_seeds(world: str) -> None:
    first, second = log_of("1", *world.split()), log_of("2", *world.split())

    assert len(first.splitlines()) > 100
    assert first == second


def test_one_log_in_one_process() -> None:
    logs = []
    ballast = []  # moves what comes after it to other addresses
    for _ in range(2):
        world = World(5)
        world.run()
        logs.append(world.lines())
        ballast.append([object() for _ in range(10_000)])

    assert logs[0] == logs[1]


def test_different_seeds_are_different_worlds() -> None:
    first, second = World(1), World(2)

    first.run()
    second.run()

    assert first.lines() != second.lines()


def test_a_batch_in_which_something_never_happened_does_not_count() -> None:
    everything = dict.fromkeys(REQUIRED, 1)

    assert missing(everything) == []
    everything[f"fault: {Fault.PAUSE}"] = 0
    del everything["transition: RUNNING to SLEEPING"]
    assert missing(everything) == ["transition: RUNNING to SLEEPING", f"fault: {Fault.PAUSE}"]
