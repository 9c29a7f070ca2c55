"""Sets up processes that are ours alone, workers and servers: event loop, garbage collector, limit of open files,
how many of them suit this machine."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import logging
import math
import os
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Final

logger = logging.getLogger("kagzi.server")

_YOUNG_OBJECTS: Final = 20_000
_NO_MORE: Final = (errno.EMFILE, errno.ENFILE)


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Makes an event loop: uvloop's where it is installed (pip install "kagzi[speed]"), else asyncio's."""
    if sys.platform != "win32":
        with contextlib.suppress(ImportError):
            loop: asyncio.AbstractEventLoop = import_module("uvloop").new_event_loop()
            return loop
    return asyncio.new_event_loop()


@contextlib.contextmanager
def fewer_collections() -> Iterator[None]:
    """Has the garbage collector run seldom: workers and servers break the cycles of what they make themselves. Looking
    for garbage after every 700 objects, as Python does by default, costs a worker a tenth of its time."""
    thresholds = gc.get_threshold()
    gc.set_threshold(max(thresholds[0], _YOUNG_OBJECTS), *thresholds[1:])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)


def usable_cores(root: Path = Path("/")) -> int:
    """Returns how many cores this process may keep busy: those it may run on, within its container's share."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity is not None else os.cpu_count() or 1
    return max(1, min([cores, *(math.ceil(share) for share in _container_shares(root))]))


def _container_shares(root: Path) -> Iterator[float]:
    """Yields the limits of CPU time of the control groups around this process, in cores."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, place = line.split(":", 2)
        names: tuple[str, ...]
        if controllers == "":
            base, names = root / "sys/fs/cgroup", ("cpu.max",)
        elif "cpu" in controllers.split(","):
            base, names = root / "sys/fs/cgroup" / controllers, ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        else:
            continue
        group = base / place.lstrip("/")
        for directory in (group, *group.parents):
            with contextlib.suppress(OSError, ValueError):  # without a limit, or out of sight from inside the container
                quota, period = " ".join((directory / name).read_text() for name in names).split()
                if float(quota) > 0:
                    yield float(quota) / float(period)
            if directory == base:
                break


class OpenFiles:
    """Notices that the process may open no more files.

    A connection is one, too: who wants one waits, and nothing says so, since gRPC and the event loop try again in
    silence until others have ended. `look` costs a few microseconds: it opens a file that is always there.
    """

    def __init__(self) -> None:
        self._out = False

    def look(self) -> None:
        """Logs when there are none left, and when there are again."""
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
