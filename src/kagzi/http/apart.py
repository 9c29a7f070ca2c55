"""Work on large payloads, apart from the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

LIGHT_BYTES: Final = 32 * 1024  # that are read in a few milliseconds, whatever they are


async def apart(size: int, work: Callable[P, T], *args: P.args, **more: P.kwargs) -> T:
    """Does work on so many bytes, in a thread if they are many: a payload of 2 MiB is read in milliseconds, in which
    no other call would be answered."""
    return work(*args, **more) if size <= LIGHT_BYTES else await asyncio.to_thread(work, *args, **more)
