"""Ending the coroutines of a run that is let go of.

They are sent Evicted rather than closed: close() ends an `await generator.aclose()` without ending the generator (until
Python 3.13), which the collector would then do.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
from collections.abc import AsyncGenerator
from typing import Any, Final

from kagzi.sdk.replay.unawaited import unstarted

logger = logging.getLogger("kagzi.workflow")

_MOST_ROUNDS: Final = 8  # how often a coroutine is told to end


class Evicted(BaseException):
    """Raised by every durable call while a run is being let go of. Never recorded, never shown."""


def unwind(coroutine: Any) -> None:
    """Ends a coroutine where it waits, or keeps one that does not end."""
    close_unstarted(coroutine)
    try:
        for _ in range(_MOST_ROUNDS):
            coroutine.throw(Evicted())
    except BaseException:
        return
    abandon(coroutine)


def untie(future: asyncio.Future[Any]) -> None:
    """Forgets the callbacks of this future, whose end never comes."""
    for callback, _ in future._callbacks or ():
        future.remove_done_callback(callback)


def unwind_generator(generator: AsyncGenerator[Any, Any]) -> None:
    """Ends a generator that was left half-way, or keeps one that does not end."""
    closing: Any = generator.aclose()
    try:
        closing.send(None)
        for _ in range(_MOST_ROUNDS):
            closing.throw(Evicted())
    except BaseException:
        return
    abandon(generator)


def abandon(stubborn: object) -> None:
    """Keeps what does not end for good. Collecting it would run its code once more, anywhere and perhaps for ever, even
    when the interpreter cleans up at exit. So one reference is never given back."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(stubborn))
    logger.warning("%r does not end when its run is let go of, and stays in memory", stubborn)


def close_unstarted(holder: Any) -> None:
    """Closes coroutines that a frame has made and not awaited yet: they would be reported as "never awaited" when the
    frame goes."""
    for coroutine in unstarted(holder):
        coroutine.close()
