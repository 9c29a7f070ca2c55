"""A clock that stands still until a test moves it."""

from __future__ import annotations

from typing import Final

from kagzi.core.instant import Instant, Span

# Some day: far enough from zero that subtracting a month leaves a valid date.
BEGINNING: Final[Instant] = 1_750_000_000_000_000


class VirtualClock:
    """A `Clock` under the test's control. Time goes forward, unless it is set back.

    >>> clock = VirtualClock()
    >>> clock.advance(30 * SECOND)
    """

    def __init__(self, now: Instant = BEGINNING) -> None:
        self._now = now
        self._started_at = now

    def now(self) -> Instant:
        return self._now

    def monotonic(self) -> Span:
        return self._now - self._started_at

    def advance(self, length: Span) -> Instant:
        """Let time pass; returns the new time."""
        return self.set(self._now + length)

    def step_back(self, length: Span) -> Instant:
        """As somebody does who sets the clock of a host; how much time has passed counts from anew."""
        self._now -= length
        self._started_at -= length
        return self._now

    def set(self, now: Instant) -> Instant:
        """Jump to an instant that is not in the past."""
        if now < self._now:
            raise ValueError(f"time cannot go back by {self._now - now} µs")
        self._now = now
        return now
