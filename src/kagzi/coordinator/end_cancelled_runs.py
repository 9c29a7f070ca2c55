"""End runs that were cancelled and have used up the time they had to clean up."""

from __future__ import annotations

from kagzi.store.protocol import Recovered, Store


async def run_once(store: Store, limit: int) -> list[Recovered]:
    return await store.end_cancelled_runs(limit)
