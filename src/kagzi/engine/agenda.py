"""The agenda of the pulse: when it looks at the database next, and how other parts ask for an earlier look."""

from __future__ import annotations

import asyncio
from math import inf
from typing import Final

from kagzi.core.instant import SECOND, Span
from kagzi.engine.sleeper import Sleeper

_CLOSEST: Final = 0.002  # two looks are at least this far apart
# After so many checks in vain, half as many will do: an idle process stays below two queries a second.
_QUIET: Final = 10


class Agenda:
    """Holds two moments of the loop's clock: when the horizon is read, and when results are checked. `inf` is never."""

    def __init__(self, tick: Span) -> None:
        self._loop = asyncio.get_running_loop()
        self._sleeper = Sleeper()
        self._tick = tick / SECOND
        self._look_at = inf
        self._looked_at = -inf
        self._check_at = inf
        self._checked_at = -inf
        self._quiet = 0  # checks in a row that found nothing

    def look_soon(self, seconds: float = 0.0) -> None:
        """Asks for the horizon to be read within this time."""
        at = max(self._loop.time() + seconds, self._looked_at + _CLOSEST)
        if at < self._look_at:
            self._look_at = at
            self._sleeper.wake()

    def check_soon(self, seconds: float | None = None) -> None:
        """Asks for results to be checked within this time; by default at the ordinary pace."""
        if seconds is None and not self._quiet and self._check_at != inf:
            return  # which it is at
        self._quiet = 0
        wanted = self._loop.time() + (self._tick if seconds is None else seconds)
        at = max(wanted, self._checked_at + _CLOSEST)
        if at < self._check_at:
            self._check_at = at
            self._sleeper.wake()

    # For the pulse.

    async def sleep(self, until: float) -> None:
        """Returns when a look or a check is due, or at this moment."""
        await self._sleeper.sleep(min(self._look_at, self._check_at, until))

    def take_look(self) -> bool:
        """Returns whether the horizon is to be read now. It is then off the agenda until it is asked for again."""
        if self._look_at > self._loop.time():
            return False
        self._look_at = inf
        return True

    def looking(self) -> None:
        self._looked_at = self._loop.time()

    def look_again(self) -> None:
        self._look_at = min(self._look_at, self._loop.time() + self._tick)

    def take_check(self) -> bool:
        """Returns whether results are to be checked now. They are then off the agenda until a check is asked for
        again."""
        if self._check_at > self._loop.time():
            return False
        self._check_at = inf
        return True

    def checking(self) -> None:
        self._checked_at = self._loop.time()
        self._quiet += 1

    def check_found(self) -> None:
        self._quiet = 0

    def check_again(self) -> None:
        pause = self._tick if self._quiet < _QUIET else 2 * self._tick
        self._check_at = min(self._check_at, self._loop.time() + pause)

    def postpone(self, seconds: float) -> None:
        """Puts off both, because the database did not answer."""
        self._look_at = self._check_at = self._loop.time() + seconds
