"""Work of a task that somebody else may interrupt, told apart from being cancelled.

It is the part of asyncio.timeout that every call of a server can afford: no timer for each of them.

>>> with Interruptible() as waiting:
...     return await something()
... return "interrupted"                # by waiting.interrupt()
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

T = TypeVar("T")


class Interruptible:
    __slots__ = ("_cancelled_before", "_task", "interrupted")

    _task: asyncio.Task[Any]

    def __init__(self) -> None:
        self.interrupted = False

    def __enter__(self) -> Self:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._cancelled_before = task.cancelling()
        return self

    def interrupt(self) -> None:
        """Have the block left, as if its task were cancelled; the task goes on behind it."""
        if not self.interrupted:
            self.interrupted = True
            self._task.cancel()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if not self.interrupted:
            return False
        # Both may have happened: then the task is cancelled all the same.
        return self._task.uncancel() <= self._cancelled_before and kind is asyncio.CancelledError


async def seen_through(work: Coroutine[Any, Any, T]) -> T:
    """What comes of work that is not to be left half done: whoever is cancelled meanwhile is so when it has ended."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # is nobody's any more
        raise
