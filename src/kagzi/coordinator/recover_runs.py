"""Give runs whose lease has ended to somebody else."""

from __future__ import annotations

from kagzi.core.instant import SECOND, Span
from kagzi.store.protocol import Recovered, Store

_LONGEST = 60 * SECOND


def crash_backoff(crashes: int) -> Span:
    """How long a run waits after its n-th crash in a row: not at all the first time, which is nearly always a
    worker that died, then 1 s, 2 s, 4 s … up to a minute, because it may be the run that kills them."""
    if crashes <= 1:
        return 0
    return min(SECOND << min(crashes - 2, 6), _LONGEST)


async def run_once(store: Store, limit: int, *, max_crashes: int) -> list[Recovered]:
    return await store.recover_runs(limit, max_crashes, crash_backoff)
