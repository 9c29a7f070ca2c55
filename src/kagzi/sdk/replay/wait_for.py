"""`asyncio.wait_for` means the same in workflow code on every Python.

Up to Python 3.11 it runs a coroutine in a task of its own, from 3.12 on in the task of its caller. That shows: in the
names of the steps that the coroutine calls, and in the order in which tasks have their turns. So a run that moves to a
worker of another Python would do steps again, or give one the result of another. What 3.12 does holds for all.

The function itself is changed, because `from asyncio import wait_for` has often happened before Kagzi is imported. What
is not workflow code gets the function as it was.
"""

from __future__ import annotations

import asyncio
import sys
from types import FunctionType
from typing import Any

from kagzi.sdk.replay.loop import WorkflowLoop


def unify() -> None:
    """Changes `asyncio.wait_for` of this process if its Python is older than 3.12."""
    if sys.version_info < (3, 12):
        # The new code looks up names where the old one did. That one is kept there for a second copy of this module.
        names = vars(asyncio.tasks)
        names.setdefault("_plain_wait_for", FunctionType(asyncio.wait_for.__code__, names, "wait_for"))
        names["_kagzi_wait_for"] = _kagzi_wait_for
        asyncio.wait_for.__code__ = _wait_for.__code__


async def _wait_for(fut: Any, timeout: float | None) -> Any:
    return await _kagzi_wait_for(fut, timeout)


async def _kagzi_wait_for(fut: Any, timeout: float | None) -> Any:
    # One that is late before it begins is given to a task on every Python.
    if (timeout is not None and timeout <= 0) or not isinstance(asyncio.get_running_loop(), WorkflowLoop):
        return await vars(asyncio.tasks)["_plain_wait_for"](fut, timeout)
    async with asyncio.timeout(timeout):
        return await fut
