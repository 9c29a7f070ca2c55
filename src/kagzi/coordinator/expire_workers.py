"""Mark workers that have not been heard of as OFFLINE.

For people to see only: runs are recovered by their own leases, whatever their worker's row says.
"""

from __future__ import annotations

from kagzi.core.instant import Span
from kagzi.store.protocol import Store


async def run_once(store: Store, limit: int, *, after: Span) -> list[str]:
    return await store.expire_workers(limit, after)
