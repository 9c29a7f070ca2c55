"""Transactions of the caller's own, and of steps."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from kagzi.api.operations import Chunk, Started, StartRun
from kagzi.api.transactions import BeginTransaction
from kagzi.core.instant import Span
from kagzi.store.protocol.changes import Applied


class StoreTransaction(Protocol):
    """See `api.transactions.StepTransaction`."""

    connection: Any

    async def prepare(self) -> None: ...

    async def commit(self, chunk: Chunk) -> Applied: ...

    async def interrupt(self) -> None: ...

    async def roll_back(self) -> None: ...


class Transactions(Protocol):
    """Takes part in transactions of the caller's, and lends some to steps."""

    @property
    def exclusive(self) -> bool:
        """Whether nobody else can write while a step has a transaction."""
        ...

    async def start_in(self, connection: object, start: StartRun) -> Started:
        """Start a run, without a birth, in the transaction of this connection: it is there when the caller commits.
        Suspends only if the connection is an async one, so that blocking code can drive it. InvalidRequest if the
        connection is of no use, and then nothing was written."""
        ...

    async def begin(
        self, wanted: BeginTransaction, ready: Callable[[], Awaitable[None]], longest: Span
    ) -> StoreTransaction:
        """Begin the transaction of a step; see `api.transactions`. It may lie idle, or on SQLite be open, for
        `longest`."""
        ...
