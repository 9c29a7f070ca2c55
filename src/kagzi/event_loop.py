"""The event loop of processes that are ours alone: workers and servers."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from importlib import import_module


def new_event_loop() -> asyncio.AbstractEventLoop:
    """uvloop's where it is installed (pip install "kagzi[speed]"), else asyncio's."""
    if sys.platform != "win32":
        with contextlib.suppress(ImportError):
            loop: asyncio.AbstractEventLoop = import_module("uvloop").new_event_loop()
            return loop
    return asyncio.new_event_loop()
