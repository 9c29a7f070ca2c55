"""How long a worker that had nothing to do puts off its next poll.

What it does first is waited for more than that poll: somebody has just started the run. So its first commit goes ahead.
A server that takes in a poll while it writes the commit also answers it later, so the poll waits for the answer, too,
though not for long. Steps that take their time hold up nothing. And where more is due than the last poll asked for,
nothing waits: runs are claimed while others are committed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from kagzi.sdk.worker.attempt import Attempt

_TURNS: Final = 8  # of the event loop: by then there is a first commit, if no step waits for anything
_SECONDS: Final = 0.005


class Headstart:
    def __init__(self) -> None:
        self._over: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def of(self, attempts: Sequence[Attempt]) -> None:
        """Returns when these runs, which have just been begun and are all there is, have had their head start."""
        loop = asyncio.get_running_loop()
        self._over = loop.create_future()
        loop.call_soon(self._look, attempts, _TURNS)
        try:
            await self._over
        finally:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    def _look(self, attempts: Sequence[Attempt], turns: int) -> None:
        loop = asyncio.get_running_loop()
        if self._over is None or self._over.done():
            return
        if any(attempt.unanswered for attempt in attempts):
            self._timer = loop.call_later(_SECONDS, self.end)
        elif turns:
            loop.call_soon(self._look, attempts, turns - 1)
        else:
            self.end()

    def end(self) -> None:
        """Ends the head start: there is nothing more to wait for."""
        if self._over is not None and not self._over.done():
            self._over.set_result(None)
