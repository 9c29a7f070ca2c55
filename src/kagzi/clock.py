"""Clocks. The only place that reads the time; everything else in Kagzi is given it."""

from __future__ import annotations

import time
from functools import partial
from typing import Protocol, runtime_checkable

from kagzi.core.instant import Instant, Span


@runtime_checkable
class Clock(Protocol):
    def now(self) -> Instant:
        """Microseconds since 1970 by the wall clock."""
        ...

    def monotonic(self) -> Span:
        """Microseconds since some moment, never going back, and going on while the host is suspended."""
        ...


class SystemClock:
    """The real time of this host.

    A lease goes on running while a laptop sleeps, so lengths are measured with CLOCK_BOOTTIME where there is one:
    time.monotonic() stands still during suspension, and a worker would wake believing that its lease is fresh.
    """

    def now(self) -> Instant:
        return time.time_ns() // 1000

    def monotonic(self) -> Span:
        return _monotonic_ns() // 1000


_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", None)
_monotonic_ns = time.monotonic_ns if _BOOTTIME is None else partial(time.clock_gettime_ns, _BOOTTIME)
