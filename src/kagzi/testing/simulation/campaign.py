"""Running many seeds, one after the other."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterable

from msgspec import Struct

from kagzi.testing.simulation.coverage import BULK_REQUIRED, REQUIRED, missing
from kagzi.testing.simulation.world import World

_SEEDS_BETWEEN_COLLECTIONS = 8


class Failed(Struct, frozen=True):
    seed: int
    error: BaseException
    lines: list[str]


class Campaign:
    """A batch of seeds: what occurred in them, and which went wrong."""

    def __init__(self, *, bulk: bool = False) -> None:
        self._bulk = bulk
        self.seeds = 0
        self.virtual_seconds = 0.0
        self.bodies = 0
        self.seen: Counter[str] = Counter()
        self.failed: list[Failed] = []

    def run(
        self, seeds: Iterable[int], *, progress: Callable[[Campaign], None] | None = None, most_failures: int = 1
    ) -> Campaign:
        """Run until the seeds or the patience with failures are used up."""
        gc.collect()
        gc.freeze()  # what was there before is not looked at again and again
        try:
            for seed in seeds:
                self.one(seed)
                if self.seeds % _SEEDS_BETWEEN_COLLECTIONS == 0:
                    gc.collect()
                if progress is not None:
                    progress(self)
                if len(self.failed) >= most_failures:
                    break
        finally:
            gc.unfreeze()
        return self

    def one(self, seed: int) -> None:
        # Without its log a seed runs faster; one that fails is run again to have it.
        world = World(seed, bulk=self._bulk, keep_log=False)
        try:
            world.run()
        except Exception as error:
            self.failed.append(Failed(seed, error, trace(seed, bulk=self._bulk)))
        self.seeds += 1
        self.virtual_seconds += world.host.time()
        self.bodies += world.ledger.bodies
        self.seen.update(world.seen())

    def again(self, seed: int) -> str:
        """What to say on the command line to have this world once more."""
        return f"--seed {seed}{' --bulk' if self._bulk else ''}"

    def missing(self) -> list[str]:
        return missing(self.seen, BULK_REQUIRED if self._bulk else REQUIRED)


def trace(seed: int, *, bulk: bool = False) -> list[str]:
    """The log of a seed, as far as it goes."""
    world = World(seed, bulk=bulk)
    try:
        world.run()
    except Exception as error:
        return [*world.lines(), f"{type(error).__name__}: {error}"]
    return world.lines()
