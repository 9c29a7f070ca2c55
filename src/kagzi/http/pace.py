"""Begins a burst of requests a few at a time, because the loop that they share with gRPC has other work, too."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

_AT_ONCE: Final = 10  # in one turn of the loop; each takes a millisecond


class Pace:
    def __init__(self) -> None:
        self._begun = 0  # in this turn
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def wait(self) -> None:
        """Returns when it is time to begin, which it is at once unless many others have."""
        loop = asyncio.get_running_loop()
        if self._begun >= _AT_ONCE:
            begin: asyncio.Future[None] = loop.create_future()
            self._waiting.append(begin)
            await begin
            return
        self._begun += 1
        if self._begun == 1:
            loop.call_soon(self._next, loop)

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        self._begun = 0
        while self._waiting and self._begun < _AT_ONCE:
            begin = self._waiting.popleft()
            if not begin.done():  # its caller is still there
                begin.set_result(None)
                self._begun += 1
        if self._begun:
            loop.call_soon(self._next, loop)
