"""End what has taken too long: steps whose worker did not, and runs past their deadline."""

from __future__ import annotations

from kagzi.core.instant import Span
from kagzi.store.protocol import Recovered, Store


async def run_once(store: Store, limit: int, *, grace: Span) -> list[Recovered]:
    return await time_out_steps(store, limit, grace=grace) + await time_out_runs(store, limit)


async def time_out_steps(store: Store, limit: int, *, grace: Span) -> list[Recovered]:
    return await store.time_out_steps(limit, grace)


async def time_out_runs(store: Store, limit: int) -> list[Recovered]:
    return await store.time_out_runs(limit)
