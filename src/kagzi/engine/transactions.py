"""Transactions of steps, for workers in this process: those of the store, with the aftermath of their commits."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from kagzi.api.operations import Chunk, ChunkAnswer
from kagzi.api.transactions import BeginTransaction
from kagzi.core.instant import Span
from kagzi.engine.answers import Settled
from kagzi.engine.checks import check_chunk
from kagzi.engine.settings import EngineSettings
from kagzi.store.protocol.store import Store
from kagzi.store.protocol.transactions import StoreTransaction


class Transactions:
    """`api.transactions.Transactions` over a store. `settled` hears of commits, as it does of batches."""

    def __init__(self, store: Store, settled: Settled, settings: EngineSettings) -> None:
        self._transactions = store.transactions
        self._settled = settled
        self._lease = settings.lease
        self._payload_bytes = settings.payload_bytes

    @property
    def exclusive(self) -> bool:
        return self._transactions.exclusive

    @property
    def longest(self) -> Span | None:
        # Heartbeats cannot be written meanwhile. They come three times in a lease, so two thirds of it are left when
        # the transaction begins, and one third when it ends.
        return self._lease // 3 if self.exclusive else None

    async def begin(self, wanted: BeginTransaction, ready: Callable[[], Awaitable[None]]) -> Transaction:
        # One that does nothing for two leases belongs to a process that was stopped or cut off, and holds up others.
        longest = self.longest or 2 * self._lease
        return Transaction(await self._transactions.begin(wanted, ready, longest), self._settled, self._payload_bytes)


class Transaction:
    def __init__(self, inner: StoreTransaction, settled: Settled, payload_bytes: int) -> None:
        self.connection: Any = inner.connection
        self.prepare = inner.prepare
        self.interrupt = inner.interrupt
        self.roll_back = inner.roll_back
        self._commit = inner.commit
        self._settled = settled
        self._payload_bytes = payload_bytes

    async def commit(self, chunk: Chunk) -> ChunkAnswer:
        try:
            check_chunk(chunk, self._payload_bytes)
        except BaseException:
            await self.roll_back()
            raise
        applied = await self._commit(chunk)
        (answer,) = applied.answers
        assert isinstance(answer, ChunkAnswer)
        self._settled([chunk], applied)
        return answer
