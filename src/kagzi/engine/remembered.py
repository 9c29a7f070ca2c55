"""Remembers answers that cost the database much.

An answer about many rows counts for a few seconds. Within half a minute after that, those who ask get it at once while
the database is asked anew: nobody waits while rows are counted. A small answer was cheap and is not kept beyond
`least`. Everybody who asks at the same time shares one question.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

LARGE: Final = 5_000  # rows
_FRESH_SECONDS: Final = 5.0  # how long a large answer counts
_OLD_SECONDS: Final = 30.0  # beyond which it is no answer any more
_REMEMBERED: Final = 1000


class Remembered(Generic[K, V]):
    """Asks once for all callers that ask at the same time, and keeps costly answers. `rows` tells how many rows an
    answer is about; `least`: how many seconds every answer counts. Times are those of the event loop."""

    def __init__(self, rows: Callable[[V], int], *, least: float = 0.0) -> None:
        self._rows = rows
        self._least = least
        self._loop = asyncio.get_running_loop()
        self._known: dict[K, tuple[float, V]] = {}  # when it was asked for, and the answer
        self._asking: dict[K, asyncio.Task[V]] = {}

    async def get(self, key: K, ask: Callable[[], Awaitable[V]]) -> V:
        known = self._known.get(key)
        if known is not None:
            at, answer = known
            age = self._loop.time() - at
            large = self._rows(answer) >= LARGE
            if age < (_FRESH_SECONDS if large else self._least):
                return answer
            if large and age < _OLD_SECONDS:
                self._ask(key, ask)
                return answer
        return await asyncio.shield(self._ask(key, ask))

    def forget(self) -> None:
        """Forgets all answers, because something was changed here; those under way may have missed it, and do not
        count."""
        self._known.clear()
        self._asking.clear()

    def _ask(self, key: K, ask: Callable[[], Awaitable[V]]) -> asyncio.Task[V]:
        task = self._asking.get(key)
        if task is None:
            task = self._asking[key] = self._loop.create_task(self._answer(key, ask), name="kagzi-count")
            task.add_done_callback(lambda done: self._over(key, done))
        return task

    async def _answer(self, key: K, ask: Callable[[], Awaitable[V]]) -> V:
        begun = self._loop.time()
        answer = await ask()
        if self._asking.get(key) is asyncio.current_task():
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[key] = (begun, answer)
        return answer

    def _over(self, key: K, task: asyncio.Task[V]) -> None:
        if self._asking.get(key) is task:
            del self._asking[key]
        if not task.cancelled():
            task.exception()  # those who waited have it
