"""One look at the health of the installation for all who ask at about the same time: probes come often."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from math import inf

from kagzi.core.health import Health
from kagzi.http.limits import HEALTH_SECONDS


class Checkups:
    def __init__(self, check: Callable[[], Awaitable[Health]]) -> None:
        self._check = check
        self._checked_at = -inf
        self._health: Health | None = None
        self._lock = asyncio.Lock()

    async def health(self) -> Health:
        loop = asyncio.get_running_loop()
        async with self._lock:
            if self._health is None or loop.time() - self._checked_at > HEALTH_SECONDS:
                self._health = await self._check()
                self._checked_at = loop.time()
            return self._health
