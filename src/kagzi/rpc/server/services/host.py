"""What all services share: the engine they speak for, time and ids, and the moment the server closes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol, TypeVar

import grpc

from kagzi import tracing
from kagzi.api.engine import HostedEngine
from kagzi.clock import Clock
from kagzi.core.instant import SECOND, Span
from kagzi.errors import InvalidRequest, KagziError
from kagzi.ids import IdSource
from kagzi.ports.closing import Closing
from kagzi.rpc.limits import ANSWER_SECONDS, LONGEST_WAIT_SECONDS
from kagzi.rpc.status import about_to_stop, not_ready

T = TypeVar("T")

log = logging.getLogger("kagzi.rpc")

_CLEAN_UP_SECONDS = 2.0


class Call(Protocol):
    """The part of grpc.aio.ServicerContext that services use."""

    def time_remaining(self) -> float | None: ...

    def invocation_metadata(self) -> grpc.aio.Metadata | None: ...

    def peer(self) -> str: ...

    @property
    def actor(self) -> str:
        """Who calls, as the audit log names it; empty where nobody is asked for a key."""
        ...

    @property
    def peer_name(self) -> str: ...


class Host:
    """`ready` says whether the database can be reached; without it nothing can be done for callers but tell them."""

    def __init__(
        self, engine: HostedEngine, *, clock: Clock, ids: IdSource, ready: Callable[[], bool] = lambda: True
    ) -> None:
        self.engine = engine
        self.ready = ready
        self.clock = clock
        self.ids = ids
        self.tracer = tracing.tracer()
        self.closing = Closing()
        self._left: set[asyncio.Task[Any]] = set()

    def check_ready(self) -> None:
        """Refuses a call that this server cannot carry out at present, so that its caller asks another one at once."""
        if not self.ready():
            raise not_ready()

    def wait_span(self, wanted: Span, call: Call) -> Span:
        """Returns how long a call may wait: at most as long as its caller asked for, and never until the caller gives
        up."""
        if wanted < 0:
            raise InvalidRequest(f"wait_us must not be negative, but is {wanted}")
        seconds = LONGEST_WAIT_SECONDS
        remaining = call.time_remaining()
        if remaining is not None:
            seconds = min(seconds, max(0.0, remaining - ANSWER_SECONDS))
        return max(0, min(wanted, round(seconds * SECOND)))

    async def unless_closing(self, work: Callable[[], Awaitable[T]]) -> T:
        """Does the work. If the server closes first, the caller hears that, and asks another one: an answer that says
        nothing would be followed by the same question, here and at once."""
        answer = await self.closing.until(work, None)
        if answer is None:
            raise about_to_stop()
        return answer

    async def hand_out(
        self, work: Callable[[], Awaitable[T]], otherwise: T, abandoned: Callable[[], Coroutine[Any, Any, None]]
    ) -> T:
        """Does the work, unless the server closes first. If it, or the caller, goes away before the answer is there,
        `abandoned` cleans up after it."""
        answered = False

        async def answering() -> T:
            nonlocal answered
            answer = await work()
            answered = True
            return answer

        try:
            return await self.closing.until(answering, otherwise)
        finally:
            if not answered:
                self._clean_up(abandoned)

    def _clean_up(self, abandoned: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async def after() -> None:
            try:
                await abandoned()
            except KagziError as error:
                # The engine is closing or its database is away. What was claimed comes back when its lease ends.
                log.debug("could not clean up after an abandoned call: %s", error)

        left = asyncio.ensure_future(after())
        self._left.add(left)
        left.add_done_callback(self._left.discard)

    async def close(self) -> None:
        self.closing.set()
        if self._left:
            _, slow = await asyncio.wait(list(self._left), timeout=_CLEAN_UP_SECONDS)
            for task in slow:
                task.cancel()
