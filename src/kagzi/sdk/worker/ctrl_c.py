"""Ctrl-C while a worker inside another program drains.

asyncio.run makes a CancelledError of the first one, which leaves the block of the worker, so that it drains. The
second one would end the event loop under it, and what it holds would wait until its leases are over.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType


@contextlib.contextmanager
def ctrl_c_calls(hurry: Callable[[], None]) -> Iterator[str]:
    """Has Ctrl-C call `hurry` until the block is left, and then do what it usually does, unless it has done so before.

    Yields what to press, for people; nothing where signals do not come here, or are the program's own business. Pressed
    once more, it does at once what it usually does.
    """
    usual = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not _is_pythons_own(usual):
        yield ""
        return
    assert callable(usual)
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    again = task is not None and task.cancelling() > 0
    pressed = False

    def on_signal(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        if pressed:
            usual(number, frame)
        pressed = True
        loop.call_soon_threadsafe(hurry)

    signal.signal(signal.SIGINT, on_signal)
    try:
        yield "Ctrl-C again" if again else "Ctrl-C"
    finally:
        if signal.getsignal(signal.SIGINT) is on_signal:
            signal.signal(signal.SIGINT, usual)
    if pressed and not again:
        signal.raise_signal(signal.SIGINT)


def _is_pythons_own(handler: object) -> bool:
    """Returns whether Ctrl-C is handled by Python or asyncio.run, and not by the program."""
    if isinstance(handler, functools.partial):
        return getattr(handler.func, "__func__", None) is getattr(asyncio.Runner, "_on_sigint", None)
    return handler is signal.default_int_handler
