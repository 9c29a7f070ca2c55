"""The moment a server closes. It ends what waits, so that callers hear of it at once and in order."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


class Closing(asyncio.Event):
    def __init__(self) -> None:
        super().__init__()
        self._waits: set[asyncio.Timeout] = set()

    def set(self) -> None:
        super().set()
        waits, self._waits = self._waits, set()
        for wait in waits:
            wait.reschedule(asyncio.get_running_loop().time())

    async def until(self, work: Callable[[], Awaitable[T]], otherwise: T) -> T:
        """Do the work, unless the server closes first: then it is cancelled."""
        if self.is_set():
            return otherwise
        wait = asyncio.timeout(None)
        try:
            async with wait:
                self._waits.add(wait)
                try:
                    return await work()
                finally:
                    self._waits.discard(wait)
        except TimeoutError:
            if not wait.expired():
                raise
            return otherwise
