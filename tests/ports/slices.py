"""How long an event loop computes in one go: the CPU time of its thread, callback by callback.

It is CPU time, which waiting for a core does not add to, and is held against what this machine needs for a known piece
of work, measured beside it.
"""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any, Final

import msgspec

BOUND_MS: Final = 5.0  # of a machine of the speed below
_KNOWN_MS: Final = 1.2  # what the known work takes there
_ALLOWANCE: Final = 1.5
_DOCUMENT: Final = msgspec.json.encode([{"name": f"n{number}", "values": [number, 1.5, None]} for number in range(500)])


def known_work() -> float:
    """Returns how many milliseconds of CPU a known piece of work takes here, done in Python and in C."""
    began = time.thread_time()
    total = 0
    for _ in range(3):
        for each in msgspec.json.decode(_DOCUMENT):
            total += len(f"{each['name']}-{total & 15}") + len(each["values"])
        for number in range(8_000):
            total += number & 7
    return (time.thread_time() - began) * 1000


def allowed_ms() -> float:
    """Returns how long one go may take on this machine, as it is now: half as long again as by the known work, since
    others that run beside it take from its caches what they like."""
    return BOUND_MS * max(1.0, _ALLOWANCE * median(known_work() for _ in range(5)) / _KNOWN_MS)


class Slices:
    """Watches callbacks on the thread that it was made on."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self.longest_ms = 0.0
        self.what = ""

    def reset(self) -> None:
        self.longest_ms, self.what = 0.0, ""

    def note(self, handle: Any, run: Callable[[Any], Any]) -> None:
        if threading.get_ident() != self._thread:
            run(handle)
            return
        began = time.thread_time()
        run(handle)
        taken = (time.thread_time() - began) * 1000
        if taken > self.longest_ms:
            self.longest_ms, self.what = taken, _named(handle)


def _named(handle: Any) -> str:
    task = getattr(handle._callback, "__self__", None)
    return repr(task.get_coro())[:200] if isinstance(task, asyncio.Task) else repr(handle._callback)[:200]


@contextmanager
def slices() -> Iterator[Slices]:
    """Has the callbacks of this thread's loop measured, without the garbage collector, which is nobody's in
    particular."""
    found, original = Slices(), asyncio.Handle._run

    def measured(handle: Any) -> None:
        found.note(handle, original)

    gc.collect()
    gc.disable()
    asyncio.Handle._run = measured  # type: ignore[method-assign, assignment]
    try:
        yield found
    finally:
        asyncio.Handle._run = original  # type: ignore[method-assign]
        gc.enable()
