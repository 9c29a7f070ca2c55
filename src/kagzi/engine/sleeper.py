"""Sleeps until a time of the loop, or until another part wakes it because something is due earlier."""

from __future__ import annotations

import asyncio
from math import inf


class Sleeper:
    """Lets one task sleep. The task asks again when it is awake, so a `wake` that finds it awake is not remembered."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._woken: asyncio.Future[None] | None = None

    async def sleep(self, until: float) -> None:
        """Returns at once, without a turn of the loop, if that time has come; `inf` waits for `wake` alone."""
        seconds = until - self._loop.time()
        if seconds <= 0:
            return
        self._woken = self._loop.create_future()
        timer = None if seconds == inf else self._loop.call_later(seconds, self.wake)
        try:
            await self._woken
        finally:
            self._woken = None
            if timer is not None:
                timer.cancel()

    def wake(self) -> None:
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)
