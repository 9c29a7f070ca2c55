"""Sets up processes that are ours alone, workers and servers: event loop, garbage collector, limit of open files."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import logging
import os
import sys
from collections.abc import Iterator
from importlib import import_module
from typing import Final

logger = logging.getLogger("kagzi.server")

_YOUNG_OBJECTS: Final = 20_000
_NO_MORE: Final = (errno.EMFILE, errno.ENFILE)


def new_event_loop() -> asyncio.AbstractEventLoop:
    """uvloop's where it is installed (pip install "kagzi[speed]"), else asyncio's."""
    if sys.platform != "win32":
        with contextlib.suppress(ImportError):
            loop: asyncio.AbstractEventLoop = import_module("uvloop").new_event_loop()
            return loop
    return asyncio.new_event_loop()


@contextlib.contextmanager
def fewer_collections() -> Iterator[None]:
    """Workers and servers break the cycles of what they make themselves. Looking for garbage after every 700 objects,
    as Python does by default, costs a worker a tenth of its time."""
    thresholds = gc.get_threshold()
    gc.set_threshold(max(thresholds[0], _YOUNG_OBJECTS), *thresholds[1:])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)


class OpenFiles:
    """Notices that the process may open no more files.

    A connection is one, too: who wants one waits, and nothing says so, since gRPC and the event loop try again in
    silence until others have ended. `look` costs a few microseconds: it opens a file that is always there.
    """

    def __init__(self) -> None:
        self._out = False

    def look(self) -> None:
        """Says in the log when there are no more, and when there are again."""
        try:
            os.close(os.open(os.devnull, os.O_RDONLY))
        except OSError as error:
            if error.errno in _NO_MORE and not self._out:
                self._out = True
                logger.error(
                    "out of file descriptors (%s): new connections wait until others end; raise the limit (ulimit -n, "
                    "LimitNOFILE= of systemd), or find out who opens so many",
                    error.strerror,
                )
        else:
            if self._out:
                self._out = False
                logger.info("there are file descriptors again")
