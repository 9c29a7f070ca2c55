"""The one store of the world."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from kagzi.api.operations import CancelRun, Write
from kagzi.store.protocol import Applied
from kagzi.store.sqlite.store import SqliteStore

if TYPE_CHECKING:
    from kagzi.testing.simulation.world import World


class WatchedStore:
    """The one store of the world. Looks at the rows after every transaction, before anybody hears of it."""

    def __init__(self, world: World, store: SqliteStore) -> None:
        self._world = world
        self._store = store
        self._apply = self._watched("apply")

    async def apply(self, writes: Sequence[Write]) -> Applied:
        for write in writes:
            if self._world.is_cancelled_at_its_end(write):
                await self._apply([CancelRun(namespace=write.namespace, run_id=write.run_id)])
        applied: Applied = await self._apply(writes)
        return applied

    def __getattr__(self, method: str) -> Any:
        call = self._watched(method)
        setattr(self, method, call)
        return call

    def _watched(self, method: str) -> Callable[..., Awaitable[Any]]:
        inner = getattr(self._store, method)

        async def call(*args: Any) -> Any:
            answer = await inner(*args)
            self._world.transaction(method, args, answer)
            return answer

        return call
