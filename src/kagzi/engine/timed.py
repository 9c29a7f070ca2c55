"""A store that says how long it takes and how often it fails."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

from kagzi.api.operations import Write
from kagzi.core.instant import SECOND, Span
from kagzi.errors import KagziError
from kagzi.metrics.counters import Metrics
from kagzi.store.protocol import Applied, Changed, Store

# Every call of the database, but for those that are no question: opening, closing, and listening for ever.
OPERATIONS: Final = frozenset(name for name, member in vars(Store).items() if inspect.iscoroutinefunction(member)) - {
    "open",
    "close",
    "listen",
    "missing_migrations",
    "missing_indexes",
    "build_indexes",
}


class _TimedStore:
    """Passes everything on. Which method that is, is looked up at each call: tests put others in their place."""

    def __init__(self, store: Store, metrics: Metrics) -> None:
        self._store = store
        self._metrics = metrics
        self._time = asyncio.get_running_loop().time

    async def apply(self, writes: Sequence[Write]) -> Applied:
        self._metrics.batch_size.observe(len(writes))
        return cast("Applied", await self._timed("apply", writes))

    async def recover_runs(self, limit: int, max_crashes: int, backoff: Callable[[int], Span]) -> Changed:
        changed: Changed = await self._timed("recover_runs", limit, max_crashes, backoff)
        for run in changed.runs:
            self._metrics.leases_expired.add((run.namespace,))
        return changed

    def __getattr__(self, name: str) -> Any:
        if name not in OPERATIONS:
            return getattr(self._store, name)

        async def timed(*args: Any, **kwargs: Any) -> Any:
            return await self._timed(name, *args, **kwargs)

        self.__dict__[name] = timed
        return timed

    async def _timed(self, op: str, *args: Any, **kwargs: Any) -> Any:
        begun = self._time()
        try:
            answer = await getattr(self._store, op)(*args, **kwargs)
        except Exception as error:
            self._metrics.store_errors.add((op, error.code if isinstance(error, KagziError) else "UNEXPECTED"))
            raise
        self._metrics.store_seconds[(op,)].observe(int((self._time() - begun) * SECOND))
        return answer


def timed(store: Store, metrics: Metrics) -> Store:
    """Returns this store, measured."""
    return cast("Store", _TimedStore(store, metrics))
