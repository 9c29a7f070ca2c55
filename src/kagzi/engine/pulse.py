"""Once a second, look at the database: the safety net under every notification.

One query reads the horizon (what is due in the queues watched here, and when the coordinator has something to
do); another re-checks the runs somebody here waits for, unless they are driven here, too. Without watches,
waiters and coordinator there is no query at all. Either may be asked for sooner.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from math import inf
from typing import Final

from kagzi.core.instant import SECOND
from kagzi.engine.driven import Driven
from kagzi.engine.settings import EngineSettings
from kagzi.engine.sleeper import Sleeper
from kagzi.engine.wakeups import Wakeups
from kagzi.errors import KagziError
from kagzi.store.protocol import Horizon, Store

log = logging.getLogger("kagzi.engine")

_CLOSEST: Final = 0.002  # two looks are at least this far apart
_LONGEST_PAUSE: Final = 2.5  # a database that is back is noticed within 5 seconds, whatever the jitter
_MOST_CHECKED: Final = 1000
# After so many checks in vain, half as many will do: an idle process stays below two queries a second.
_QUIET: Final = 10
_LISTENER_KEPT: Final = 30.0  # after nobody needs it any more


class Pulse:
    def __init__(
        self,
        store: Store,
        wakeups: Wakeups,
        driven: Driven,
        settings: EngineSettings,
        *,
        jitter: Callable[[], float],
        listen: Callable[[bool], None],
        watched: Callable[[], bool] = lambda: False,
        on_horizon: Callable[[Horizon], None] | None = None,
    ) -> None:
        self._store = store
        self._wakeups = wakeups
        self._driven = driven
        self._tick = settings.tick / SECOND
        self._jitter = jitter
        self._listen = listen
        self._watched = watched
        self._listening = False
        self._idle_since = inf
        self._on_horizon = on_horizon
        self._loop = asyncio.get_running_loop()
        self._look_at = self._loop.time() if on_horizon is not None else inf
        self._looked_at = -inf
        self._check_at = inf
        self._checked_at = -inf
        self._quiet = 0  # checks in a row that found nothing
        self._checked = 0  # where the round through the waiters goes on
        self._failures = 0
        self._heard_at = self._loop.time()
        self._sleeper = Sleeper()
        wakeups.look_soon = self.look_soon
        wakeups.check_soon = self.check_soon

    def look_soon(self, seconds: float = 0.0) -> None:
        """Read the horizon within this time."""
        at = max(self._loop.time() + seconds, self._looked_at + _CLOSEST)
        if at < self._look_at:
            self._look_at = at
            self._sleeper.wake()

    def check_soon(self, seconds: float | None = None) -> None:
        """Re-check results within this time; by default at the ordinary pace."""
        if seconds is None and not self._quiet and self._check_at != inf:
            return  # which it is at
        self._quiet = 0
        wanted = self._loop.time() + (self._tick if seconds is None else seconds)
        at = max(wanted, self._checked_at + _CLOSEST)
        if at < self._check_at:
            self._check_at = at
            self._sleeper.wake()

    def look_at_everything(self) -> None:
        """Anything may have changed."""
        if self._wakeups.watched_queues():
            self.look_soon()
        if self._wakeups.expected_runs():
            self.check_soon(0.0)

    def silence(self) -> float:
        """Seconds since the database last answered, or since it should have been asked again."""
        return max(0.0, self._loop.time() - self._heard_at - self._tick)

    async def run(self) -> None:
        while True:
            self._tend_listener()
            await self._sleeper.sleep(min(self._look_at, self._check_at, self._idle_since + _LISTENER_KEPT))
            try:
                if self._look_at <= self._loop.time():
                    await self._look()
                if self._check_at <= self._loop.time():
                    await self._check()
                self._failures = 0
            except Exception as error:
                self._back_off(error)

    def _tend_listener(self) -> None:
        """Other processes are listened to only while somebody here waits for something."""
        if self._wakeups.watched_queues() or self._wakeups.expected_runs() or self._watched():
            self._idle_since = inf
            if not self._listening:
                self._listening = True
                self._listen(True)
        elif self._listening:
            self._idle_since = min(self._idle_since, self._loop.time())
            if self._loop.time() >= self._idle_since + _LISTENER_KEPT:  # as it is slept for: floats round
                self._idle_since = inf
                self._listening = False
                self._listen(False)

    async def _look(self) -> None:
        self._wakeups.forget_unused()
        queues = self._wakeups.watched_queues()
        self._look_at = inf
        if not queues and self._on_horizon is None:
            return
        self._looked_at = self._loop.time()
        horizon = await self._store.horizon(queues)
        self._heard_at = self._loop.time()
        self._look_at = min(self._look_at, self._loop.time() + self._tick)
        self._wakeups.read(horizon)
        if self._on_horizon is not None:
            self._on_horizon(horizon)

    async def _check(self) -> None:
        self._wakeups.expire()
        waiting = self._wakeups.expected_runs()
        self._check_at = inf
        if not waiting:
            return
        runs = [run for run in waiting if not self._driven.surely(run[1])]
        if len(runs) > _MOST_CHECKED:
            # A bounded query; the others have their turn a second later.
            start = self._checked = self._checked % len(runs)
            self._checked += _MOST_CHECKED
            runs = (runs[start:] + runs[:start])[:_MOST_CHECKED]
        self._checked_at = self._loop.time()
        self._quiet += 1
        if runs:
            for namespace, run_id in await self._store.finished_of(runs):
                self._quiet = 0
                self._wakeups.maybe_finished(namespace, run_id)
        pause = self._tick if self._quiet < _QUIET else 2 * self._tick
        self._check_at = min(self._check_at, self._loop.time() + pause)

    def _back_off(self, error: Exception) -> None:
        self._failures += 1
        if self._failures == 1 or not isinstance(error, KagziError):
            log.warning("looking for due work failed: %s", error, exc_info=not isinstance(error, KagziError))
        pause = min(self._tick * 2 ** min(self._failures, 10), _LONGEST_PAUSE) * (0.5 + self._jitter())
        self._look_at = self._loop.time() + pause
        self._check_at = self._loop.time() + pause
