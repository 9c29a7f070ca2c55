"""Patience with a database that is out of reach, for what is asked of it without the batcher.

Starts and chunks wait out an outage where they are written (`batcher.py`). What people change by other calls
(schedules, versions, repeats) waits as long, by being made again: each of them is safe to repeat, also if the answer to
the first try was lost, because its ids come with the request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any, Final, TypeVar, cast

from kagzi.core.instant import SECOND, Span
from kagzi.errors import LimitExceeded, Unavailable

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Awaitable[Any]])

_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 2.0


class Patience:
    def __init__(self, most: Span, jitter: Callable[[], float]) -> None:
        self._most = most / SECOND
        self._jitter = jitter
        self._loop = asyncio.get_running_loop()

    def end(self) -> None:
        """Makes nothing again from now on, because the engine is being closed."""
        self._most = 0.0

    async def __call__(self, ask: Callable[[], Awaitable[T]]) -> T:
        begun = self._loop.time()
        pause = _FIRST_PAUSE
        while True:
            try:
                return await ask()
            except LimitExceeded:
                raise
            except Unavailable:
                if self._loop.time() - begun >= self._most:
                    raise
            await asyncio.sleep(pause * (0.5 + self._jitter()))
            pause = min(pause * 2, _LONGEST_PAUSE)


def patient(method: F) -> F:
    """Makes a method that is called again while the database is out of reach, as `patience` of its object says."""

    @wraps(method)
    async def repeated(self: Any, *args: Any, **kwargs: Any) -> Any:
        return await self.patience(lambda: method(self, *args, **kwargs))

    return cast("F", repeated)
