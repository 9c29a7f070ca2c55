"""Work that a cancelled caller sees through to its end first."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def seen_through(work: Coroutine[Any, Any, T]) -> T:
    """Returns what comes of work that is not to be left half done. A caller that is cancelled meanwhile ends when the
    work has ended."""
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
