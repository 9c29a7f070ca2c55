"""Looking for a planted bug, world by world."""

from __future__ import annotations

import gc
from collections.abc import Iterable

from kagzi.testing.simulation.world import World


def first_seed_that_fails(seeds: Iterable[int], *, bulk: bool = False) -> int | None:
    for seed in seeds:
        try:
            World(seed, bulk=bulk, keep_log=False).run()
        except Exception:
            return seed
        if seed % 8 == 7:
            gc.collect()
    return None


def hunt(name: str, hint: int, seeds: Iterable[int], *, bulk: bool = False) -> None:
    """Fails unless the bug shows in the world of its hint, which is tried first."""
    seed = first_seed_that_fails([hint, *seeds], bulk=bulk)
    assert seed is not None, f"{name} was not noticed"
    assert seed == hint, f"{name} does not show in seed {hint} any more but in {seed}: write that into HINTS"
