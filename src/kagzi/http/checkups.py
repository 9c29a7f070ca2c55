"""Shares one look at the health of an installation among all who ask at about the same time: probes come often, and
wait little."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from math import inf

from kagzi.core.health import ComponentHealth, Health, HealthStatus
from kagzi.http import limits

_SILENT = Health((ComponentHealth("database", HealthStatus.UNHEALTHY, "it does not answer"),))


class Checkups:
    def __init__(self, check: Callable[[], Awaitable[Health]]) -> None:
        self._check = check
        self._checked_at = -inf
        self._health = _SILENT
        self._checking: asyncio.Task[None] | None = None

    async def health(self) -> Health:
        """Returns the health, at most a few seconds old. A look that takes longer than probes wait goes on for those
        who ask later."""
        if asyncio.get_running_loop().time() - self._checked_at > limits.HEALTH_SECONDS:
            if self._checking is None:
                self._checking = asyncio.create_task(self._look(), name="kagzi-checkup")
            looking = self._checking
            done, _ = await asyncio.wait([looking], timeout=limits.PROBE_SECONDS)
            if not done:
                return _SILENT
            looking.result()
        return self._health

    async def close(self) -> None:
        if self._checking is not None:
            self._checking.cancel()
            await asyncio.wait([self._checking])

    async def _look(self) -> None:
        try:
            self._health = await self._check()
            self._checked_at = asyncio.get_running_loop().time()
        finally:
            self._checking = None
