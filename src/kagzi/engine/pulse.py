"""The pulse: looks at the database once a second, as the safety net under every notification.

One query reads the horizon (what is due in the queues watched here, and when the coordinator has something to do);
another re-checks the runs somebody here waits for, unless they are driven here, too. Without watchers, waiters and
coordinator there is no query at all. Either may be asked for sooner, through the agenda.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from math import inf
from typing import Final

from kagzi.core.instant import SECOND
from kagzi.engine.agenda import Agenda
from kagzi.engine.known_runs import KnownRuns
from kagzi.engine.results import Results
from kagzi.engine.settings import EngineSettings
from kagzi.engine.wakeups import Wakeups
from kagzi.errors import KagziError, Locked
from kagzi.store.protocol.overview import Horizon
from kagzi.store.protocol.store import Store

log = logging.getLogger("kagzi.engine")

_LONGEST_PAUSE: Final = 2.5  # a database that is back is noticed within 5 seconds, whatever the jitter
_MOST_CHECKED: Final = 1000
_LISTENER_KEPT: Final = 30.0  # after nobody needs it any more


class Pulse:
    """Reads the horizon and checks results when the agenda says so.

    `listen` begins or ends listening to other processes, `watched` says whether somebody watches events, `before_look`
    is called before each look, `on_horizon` with its answer.
    """

    def __init__(
        self,
        store: Store,
        agenda: Agenda,
        wakeups: Wakeups,
        results: Results,
        known: KnownRuns,
        settings: EngineSettings,
        *,
        jitter: Callable[[], float],
        listen: Callable[[bool], None],
        watched: Callable[[], bool],
        before_look: Callable[[], None],
        on_horizon: Callable[[Horizon], None] | None = None,
    ) -> None:
        self._store = store
        self._agenda = agenda
        self._wakeups = wakeups
        self._results = results
        self._known = known
        self._tick = settings.tick / SECOND
        self._jitter = jitter
        self._listen = listen
        self._watched = watched
        self._before_look = before_look
        self._on_horizon = on_horizon
        self._listening = False
        self._idle_since = inf
        self._loop = asyncio.get_running_loop()
        self._checked = 0  # where the round through the waiters goes on
        self._failures = 0
        self._locked = False  # the last look waited for a lock
        self._heard_at = self._loop.time()
        if on_horizon is not None:
            agenda.look_soon()

    def look_at_everything(self) -> None:
        """Looks at the horizon and at results soon, because anything may have changed."""
        if self._wakeups.watched_queues():
            self._agenda.look_soon()
        if self._results.expected_runs():
            self._agenda.check_soon(0.0)

    def silence(self) -> float:
        """Returns the seconds since the database last answered, or since it should have been asked again."""
        return max(0.0, self._loop.time() - self._heard_at - self._tick)

    async def run(self) -> None:
        while True:
            self._tend_listener()
            await self._agenda.sleep(self._idle_since + _LISTENER_KEPT)
            try:
                if self._agenda.take_look():
                    await self._look()
                if self._agenda.take_check():
                    await self._check()
                self._failures = 0
                self._locked = False
            except Exception as error:
                self._back_off(error)

    def _tend_listener(self) -> None:
        """Listens to other processes only while something here waits for them."""
        if self._wakeups.watched_queues() or self._results.expected_runs() or self._watched():
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
        self._before_look()
        queues = self._wakeups.watched_queues()
        if not queues and self._on_horizon is None:
            return
        self._agenda.looking()
        horizon = await self._store.overview.horizon(queues)
        self._heard_at = self._loop.time()
        self._agenda.look_again()
        self._wakeups.read(horizon)
        if self._on_horizon is not None:
            self._on_horizon(horizon)

    async def _check(self) -> None:
        self._results.expire()
        waiting = self._results.expected_runs()
        if not waiting:
            return
        runs = [run for run in waiting if not self._known.end_will_pass_here(run[1])]
        if len(runs) > _MOST_CHECKED:
            # A bounded query; the others have their turn a second later.
            start = self._checked = self._checked % len(runs)
            self._checked += _MOST_CHECKED
            runs = (runs[start:] + runs[:start])[:_MOST_CHECKED]
        self._agenda.checking()
        if runs:
            for namespace, run_id in await self._store.runs.finished_of(runs):
                self._agenda.check_found()
                self._results.maybe_finished(namespace, run_id)
        self._agenda.check_again()

    def _back_off(self, error: Exception) -> None:
        self._failures += 1
        locked, self._locked = self._locked, isinstance(error, Locked)
        if self._locked:
            # The database answers: something is locked in it. It is asked again at the usual pace.
            self._heard_at = self._loop.time()
            self._failures = 0 if locked else 1
        if self._failures == 1 or not isinstance(error, KagziError):
            log.warning("looking for due work failed: %s", error, exc_info=not isinstance(error, KagziError))
        pause = min(self._tick * 2 ** min(self._failures, 10), _LONGEST_PAUSE) * (0.5 + self._jitter())
        self._agenda.postpone(self._tick if self._locked else pause)
