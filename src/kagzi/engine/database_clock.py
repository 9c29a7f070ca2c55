"""The database's clock, estimated from the instants it sent."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from kagzi.core.instant import SECOND, Instant

_SAMPLES: Final = 8


class DatabaseClock:
    """Estimates the database's time; never ahead of it while clocks run evenly."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._offsets: deque[int] = deque(maxlen=_SAMPLES)
        self._offset = 0

    def now(self) -> Instant:
        """Returns the database's time, as far as it can be told from here."""
        return round(self._loop.time() * SECOND) + self._offset

    @property
    def known(self) -> bool:
        """Whether the database has told its time at least once."""
        return bool(self._offsets)

    def heard(self, now: Instant) -> None:
        """Takes note of the database's time in an answer."""
        # It is old by its way back, so every sample is too small and the largest is the best; but a clock
        # that was set back makes all older ones worthless.
        sample = now - round(self._loop.time() * SECOND)
        if sample < self._offset - SECOND:
            self._offsets.clear()
        self._offsets.append(sample)
        self._offset = max(self._offsets)
