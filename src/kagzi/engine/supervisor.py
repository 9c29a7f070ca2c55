"""Background loops that cannot die silently: one that ends, however it ends, is logged and started again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

log = logging.getLogger("kagzi.engine")

_FIRST_PAUSE: Final = 1.0
_LONGEST_PAUSE: Final = 30.0


class Supervisor:
    def __init__(self, jitter: Callable[[], float]) -> None:
        self._jitter = jitter
        self._loop = asyncio.get_running_loop()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._stopping: list[asyncio.Task[None]] = []

    def start(self, name: str, run: Callable[[], Awaitable[None]]) -> None:
        if name not in self._tasks:
            self._tasks[name] = self._loop.create_task(self._keep(name, run), name=f"kagzi-{name}")

    def stop(self, name: str) -> None:
        task = self._tasks.pop(name, None)
        if task is not None:
            task.cancel()
            self._stopping = [other for other in self._stopping if not other.done()] + [task]

    async def close(self) -> None:
        for name in list(self._tasks):
            self.stop(name)
        for task in self._stopping:
            await asyncio.wait([task])

    async def _keep(self, name: str, run: Callable[[], Awaitable[None]]) -> None:
        pause = _FIRST_PAUSE
        while True:
            began = self._loop.time()
            try:
                await run()
                log.debug("background loop %s ended; starting it again", name)
            except Exception as error:
                log.warning("background loop %s failed; starting it again: %s", name, error, exc_info=True)
            if self._loop.time() - began > _LONGEST_PAUSE:
                pause = _FIRST_PAUSE
            await asyncio.sleep(pause * (0.5 + self._jitter()))
            pause = min(pause * 2, _LONGEST_PAUSE)
