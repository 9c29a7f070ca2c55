"""Reading what gauges show, so that asking often does not cost more."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from math import inf
from typing import Final

from kagzi.core.load import Load
from kagzi.errors import KagziError

_FRESH_SECONDS: Final = 2.0
# However slow the query becomes, the database is busy with it for at most one part in so many.
_SHARE: Final = 20
_PATIENCE_SECONDS: Final = 5.0


class LoadReader:
    """Reads the load once for all who ask at the same time, and not again while the last answer is fresh."""

    def __init__(self, read: Callable[[], Awaitable[Load]]) -> None:
        self._read = read
        self._loop = asyncio.get_running_loop()
        self._reading = asyncio.Lock()
        self._until = -inf
        self._load: Load | None = None

    async def __call__(self) -> Load | None:
        """Returns the load; None if the database does not answer."""
        async with self._reading:
            begun = self._loop.time()
            if begun >= self._until:
                self._load = None
                try:
                    async with asyncio.timeout(_PATIENCE_SECONDS):
                        self._load = await self._read()
                except (KagziError, TimeoutError):
                    pass  # the scrape says so
                now = self._loop.time()
                self._until = now + max(_FRESH_SECONDS, (now - begun) * _SHARE)
            return self._load
