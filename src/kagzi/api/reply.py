"""An answer on its way."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Iterable
from typing import Any, Final, Generic, TypeVar

from msgspec import Struct

from kagzi.errors import Unavailable

T = TypeVar("T")

_PENDING: Final[Any] = object()


class Reply(Struct, Generic[T], eq=False):
    """Await it, or have a function called with it.

    A future gives each callback a turn of the event loop of its own, which for a worker with a hundred runs is a good
    part of all it does. Whoever settles many replies at once calls everybody back in one go instead, from a plain
    callback of the loop and never from inside a task (see `sdk.replay.loop` for why).
    """

    _answer: T | Exception = _PENDING
    _callback: Callable[[T | Exception], None] | None = None
    _future: asyncio.Future[T] | None = None
    shared: bool = False  # it is told together with others, which wait for it

    def then(self, callback: Callable[[T | Exception], None]) -> None:
        """Have one function called with the answer or the error. Never from within this call."""
        if self._answer is _PENDING:
            self._callback = callback
        else:
            asyncio.get_running_loop().call_soon(callback, self._answer)

    def settle(self, answer: T | Exception) -> None:
        self._answer = answer
        if self._callback is not None:
            self._callback(answer)
        future = self._future
        if future is not None and not future.done():
            if isinstance(answer, Exception):
                future.set_exception(answer)
                future.exception()  # Counts as retrieved: a caller that has gone is no reason for noise.
            else:
                future.set_result(answer)

    def done(self) -> bool:
        return self._answer is not _PENDING

    @property
    def answer(self) -> T | Exception:
        """Once it is done."""
        assert self._answer is not _PENDING
        return self._answer

    def __await__(self) -> Generator[Any, None, T]:
        if self._answer is _PENDING:
            if self._future is None or self._future.done():
                self._future = asyncio.get_running_loop().create_future()
            return (yield from self._future)
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


def settled(answer: T | Exception) -> Reply[T]:
    """A reply that is there already."""
    reply: Reply[T] = Reply()
    reply.settle(answer)
    return reply


def reply_of(awaitable: Awaitable[T]) -> Reply[T]:
    """What becomes of an awaitable, which is begun at once."""
    reply: Reply[T] = Reply()

    def deliver(future: asyncio.Future[T]) -> None:
        if future.cancelled():
            reply.settle(Unavailable("the call was given up; trying again is safe"))
        elif (error := future.exception()) is None:
            reply.settle(future.result())
        else:
            reply.settle(error if isinstance(error, Exception) else Unavailable(f"the call ended with {error!r}"))

    asyncio.ensure_future(awaitable).add_done_callback(deliver)
    return reply


async def gather(replies: Iterable[Reply[T]]) -> list[T | Exception]:
    """All answers and errors, in order."""
    awaited = list(replies)
    left = len(awaited)
    everybody: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def count(_: T | Exception) -> None:
        nonlocal left
        left -= 1
        if left == 0 and not everybody.done():
            everybody.set_result(None)

    shared = left > 1
    for reply in awaited:
        reply.then(count)
        reply.shared = shared
    if awaited:
        await everybody
    return [reply.answer for reply in awaited]
