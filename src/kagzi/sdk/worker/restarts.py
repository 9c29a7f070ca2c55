"""Decides when a worker process that has died is started again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kagzi.core.instant import SECOND, Span

_LONG: Final[Span] = 60 * SECOND  # who lived for this long was well
_LONGEST_PAUSE: Final[Span] = 60 * SECOND
_MOST_SHORT_LIVES: Final = 5


class Restarts:
    """Counts the deaths of one process. After the fifth in a row that came within a minute of its start it is left
    alone: it would go on dying, and its place is better known to be empty."""

    def __init__(self, jitter: Callable[[], float]) -> None:
        self._jitter = jitter
        self._short_lives = 0

    def pause(self, lived: Span) -> Span | None:
        """Returns how long to wait before it is started again, None if it is not."""
        if lived >= _LONG:
            self._short_lives = 0
            pause = SECOND
        else:
            self._short_lives += 1
            if self._short_lives >= _MOST_SHORT_LIVES:
                return None
            pause = min(SECOND << (self._short_lives - 1), _LONGEST_PAUSE)
        # Processes that died of the same thing do not come back in the same moment.
        return round(pause * (0.75 + self._jitter() / 2))
