"""The seeds of the suite. The planted bugs are looked for in worlds that pass without them: in these."""

from __future__ import annotations

from tests.campaigns import length

BATCHES = length(2, 8)
SEEDS_IN_A_BATCH = 125


# Worlds in which something occurs that few have: a rerun, a held run that is cancelled, an outcome that is given back,
# copies that have other children. Every batch has them.
RARE = (16, 100, 221, 662)


# Worlds of another kind, with jobs over many runs and debounced starts.
BULK_SEEDS = range(length(20, 150))


def batch(number: int) -> list[int]:
    return sorted({*range(number * SEEDS_IN_A_BATCH, (number + 1) * SEEDS_IN_A_BATCH), *RARE})
