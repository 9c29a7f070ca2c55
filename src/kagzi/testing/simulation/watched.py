"""The one store of the world."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from kagzi.api.operations import CancelRun, Write
from kagzi.api.workers import Heartbeat
from kagzi.store.protocol.changes import Applied, Changed
from kagzi.store.protocol.nouns import NOUNS, call_name, method_named
from kagzi.store.protocol.workers import HeartbeatResult
from kagzi.store.sqlite.store import SqliteStore

if TYPE_CHECKING:
    from kagzi.testing.simulation.world import World


class WatchedStore:
    """The one store of the world. Looks at the rows after every transaction, before anybody hears of it."""

    def __init__(self, world: World, store: SqliteStore) -> None:
        for noun in NOUNS:
            setattr(self, noun, _Noun(world, store, noun))
        self.work = _Work(world, store, "work")
        self.workers = _Workers(world, store, "workers")
        self.duties = _Duties(world, store, "duties")

    def __getattr__(self, noun: str) -> Any:
        raise AttributeError(f"the watched store has no {noun}")


class _Noun:
    def __init__(self, world: World, store: SqliteStore, noun: str) -> None:
        self._world = world
        self._store = store
        self._noun = noun

    def __getattr__(self, verb: str) -> Any:
        call = self._watched(call_name(self._noun, verb))
        setattr(self, verb, call)
        return call

    def _watched(self, name: str) -> Callable[..., Awaitable[Any]]:
        inner = method_named(self._store, name)

        async def call(*args: Any) -> Any:
            answer = await inner(*args)
            self._world.transaction(name, args, answer)
            return answer

        return call


class _Work(_Noun):
    def __init__(self, world: World, store: SqliteStore, noun: str) -> None:
        super().__init__(world, store, noun)
        self._apply = self._watched("apply")

    async def apply(self, writes: Sequence[Write]) -> Applied:
        for write in writes:
            if self._world.is_cancelled_at_its_end(write):
                await self._apply([CancelRun(namespace=write.namespace, run_id=write.run_id)])
        return await self._world.held.apply(self._apply, writes)

    apply_patiently = apply


class _Workers(_Noun):
    def __init__(self, world: World, store: SqliteStore, noun: str) -> None:
        super().__init__(world, store, noun)

        async def send(beats: Sequence[Heartbeat]) -> list[HeartbeatResult]:
            return await store.workers.heartbeats(beats)

        self._send = send

    async def heartbeats(self, beats: Sequence[Heartbeat]) -> list[HeartbeatResult]:
        beaten = await self._world.held.heartbeats(self._send, beats)
        self._world.transaction("workers.heartbeats", (beats,), beaten)
        return beaten


class _Duties(_Noun):
    async def recover_runs(self, *args: Any) -> Changed:
        changed: Changed = await self._world.held.recover(lambda: self._store.duties.recover_runs(*args))
        self._world.transaction("duties.recover_runs", args, changed)
        return changed
