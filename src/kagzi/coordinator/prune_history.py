"""Delete finished runs and workers that have gone, past their namespace's retention, and old entries of the audit log;
a few at a time."""

from __future__ import annotations

from kagzi.core.page import Cursor
from kagzi.store.protocol import Store


async def run_once(store: Store, limit: int, after: Cursor | None = None) -> tuple[int, Cursor | None]:
    """How many were deleted, and where the next tick goes on (None: the end was reached)."""
    return await store.prune_runs(limit, after)


async def prune_workers(store: Store, limit: int) -> int:
    """How many rows were deleted; as many as the limit means that there may be more."""
    return await store.prune_workers(limit)


async def prune_audit(store: Store, limit: int) -> int:
    """Like `prune_workers`."""
    return await store.prune_audit(limit)
