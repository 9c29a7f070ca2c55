"""What all services share: the engine they speak for, time and ids, and the moment the server closes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

import grpc

from kagzi.api.engine import HostedEngine
from kagzi.clock import Clock
from kagzi.core.instant import SECOND, Span
from kagzi.ids import IdSource
from kagzi.rpc.limits import ANSWER_SECONDS, LONGEST_WAIT_SECONDS

T = TypeVar("T")


class Call(Protocol):
    """The part of grpc.aio.ServicerContext that services use."""

    def time_remaining(self) -> float | None: ...

    def invocation_metadata(self) -> grpc.aio.Metadata | None: ...

    def peer(self) -> str: ...


class Host:
    def __init__(self, engine: HostedEngine, *, clock: Clock, ids: IdSource) -> None:
        self.engine = engine
        self.clock = clock
        self.ids = ids
        self.closing = asyncio.Event()
        self._left: set[asyncio.Task[Any]] = set()

    def wait_span(self, wanted: Span, call: Call) -> Span:
        """How long a call may wait: at most what its caller asked for, and never until the caller gives up."""
        seconds = LONGEST_WAIT_SECONDS
        remaining = call.time_remaining()
        if remaining is not None:
            seconds = min(seconds, max(0.0, remaining - ANSWER_SECONDS))
        return max(0, min(wanted, round(seconds * SECOND)))

    async def until_closing(
        self, work: Coroutine[Any, Any, T], otherwise: T, abandoned: Callable[[T], Coroutine[Any, Any, None]]
    ) -> T:
        """Do the work, unless the server closes first. If the caller goes away or the server closes while the work is
        being done, it goes on to its end, and `abandoned` is told what came of it."""
        task = asyncio.ensure_future(work)
        closing = asyncio.ensure_future(self.closing.wait())
        try:
            await asyncio.wait((task, closing), return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
        finally:
            closing.cancel()
            if not task.done():
                self._leave(task, abandoned)
        return otherwise

    def _leave(self, task: asyncio.Future[T], abandoned: Callable[[T], Coroutine[Any, Any, None]]) -> None:
        async def wait() -> None:
            try:
                await abandoned(await task)
            except Exception:
                # The engine is going down or its database is away: what was claimed comes back with its lease.
                return

        left = asyncio.ensure_future(wait())
        self._left.add(left)
        left.add_done_callback(self._left.discard)

    async def close(self) -> None:
        self.closing.set()
        for task in list(self._left):
            task.cancel()
        if self._left:
            await asyncio.wait(list(self._left))
