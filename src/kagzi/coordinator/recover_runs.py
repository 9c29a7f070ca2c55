"""Give runs whose lease has ended to somebody else."""

from __future__ import annotations

from collections.abc import Callable

from kagzi.core.instant import SECOND, Span
from kagzi.store.protocol import Recovered, Store

_LONGEST = 60 * SECOND


def crash_backoff(crashes: int, jitter: float = 0.5) -> Span:
    """How long a run waits after its n-th crash in a row: not at all the first time, which is nearly always a
    worker that died, then about 1 s, 2 s, 4 s … up to a minute, because it may be the run that kills them.

    About, by half either way (`jitter` is from 0 to 1): a worker that dies takes all its runs along. If they came
    back together, the one that kills would take the others down with it each time, until all count as poison.
    """
    if crashes <= 1:
        return 0
    return round(min(SECOND << min(crashes - 2, 6), _LONGEST) * (0.5 + jitter))


async def run_once(
    store: Store, limit: int, *, max_crashes: int, jitter: Callable[[], float] = lambda: 0.5
) -> list[Recovered]:
    return await store.recover_runs(limit, max_crashes, lambda crashes: crash_backoff(crashes, jitter()))
