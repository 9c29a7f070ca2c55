"""Interruptible work of a task, with interruption told apart from cancellation.

It is the part of asyncio.timeout that every call of a server can afford: no timer for each of them.

>>> with Interruptible() as waiting:
...     return await something()
... return "interrupted"                # by waiting.interrupt()
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any, Self


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
        """Leaves the block, as if its task were cancelled; the task goes on behind it."""
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
