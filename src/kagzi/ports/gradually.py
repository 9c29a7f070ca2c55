"""Results of long computations, one at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import TypeVar

T = TypeVar("T")


async def gradually(results: Iterable[T], at_once: int = 1) -> AsyncIterator[T]:
    """Yields what is computed step by step, and lets other calls run after so many steps: the next firing of an
    expression may lie decades ahead, and a hundred of them are as much work as a hundred calls."""
    for number, result in enumerate(results, 1):
        yield result
        if number % at_once == 0:
            await asyncio.sleep(0)
