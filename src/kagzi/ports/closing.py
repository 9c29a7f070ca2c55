"""The closing of a server: it ends calls that wait, so that their callers hear of it at once and in order."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from kagzi.ports.interruption import Interruptible

T = TypeVar("T")
D = TypeVar("D")


class Closing(asyncio.Event):
    def __init__(self) -> None:
        super().__init__()
        self._waits: set[Interruptible] = set()

    def set(self) -> None:
        super().set()
        for wait in self._waits:
            wait.interrupt()

    async def until(self, work: Callable[[], Awaitable[T]], otherwise: D) -> T | D:
        """Does the work, unless the server closes first: then the work is cancelled."""
        if self.is_set():
            return otherwise
        with Interruptible() as wait:
            self._waits.add(wait)
            try:
                return await work()
            finally:
                self._waits.discard(wait)
        return otherwise
