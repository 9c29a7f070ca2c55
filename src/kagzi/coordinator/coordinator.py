"""The loop that runs the duties, and its timing. No rules, no leader: every duty is safe in any number.

The pulse reads the horizon once a second and passes it on here; a duty runs when the horizon says that
something of its kind is due, at that very moment rather than at the next tick. If the horizon should be
wrong, each duty also runs at a long interval by itself. A duty that handled as many rows as it may runs again
at once; one that fails is logged and tried again later, and the others go on meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from kagzi.coordinator import end_cancelled_runs, enforce_timeouts, expire_workers, prune_history, recover_runs
from kagzi.core.instant import SECOND, Instant
from kagzi.core.page import Cursor
from kagzi.engine.settings import EngineSettings
from kagzi.engine.sleeper import Sleeper
from kagzi.engine.wakeups import Wakeups
from kagzi.errors import KagziError
from kagzi.store.protocol import Horizon, Recovered, Store

log = logging.getLogger("kagzi.coordinator")

_FIRST_PAUSE: Final = 1.0
_LONGEST_PAUSE: Final = 30.0


class Duty:
    """A tick and when it runs next, by the loop's clock. The tick says whether there is more to do at
    once."""

    def __init__(self, name: str, tick: Callable[[], Awaitable[bool]], every: float, first: float) -> None:
        self.name = name
        self.tick = tick
        self.every = every
        self.due = first
        self.failures = 0


class Coordinator:
    def __init__(
        self, store: Store, wakeups: Wakeups, settings: EngineSettings, *, jitter: Callable[[], float]
    ) -> None:
        self._store = store
        self._wakeups = wakeups
        self._settings = settings
        self._limit = settings.duty_batch
        self._batches = max(1, settings.duty_limit // settings.duty_batch)
        self._jitter = jitter
        self._loop = asyncio.get_running_loop()
        self._sleeper = Sleeper()
        self._prune_from: Cursor | None = None
        self._recover = self._duty("recover runs", self._recover_runs)
        self._steps = self._duty("time out steps", self._time_out_steps)
        self._deadlines = self._duty("time out runs", self._time_out_runs)
        self._cancels = self._duty("end cancelled runs", self._end_cancelled_runs)
        self._workers = self._duty("expire workers", self._expire_workers)
        prune_every = settings.prune_interval / SECOND
        # Processes are often started together; they should not prune together.
        prune = Duty("prune history", self._prune, prune_every, self._loop.time() + prune_every * jitter())
        self._duties = [self._recover, self._steps, self._deadlines, self._cancels, self._workers, prune]

    def read(self, horizon: Horizon) -> None:
        """Something will be due at these moments."""
        steps = None if horizon.step_timeout is None else horizon.step_timeout + self._settings.step_grace
        stale = None if horizon.heartbeat is None else horizon.heartbeat + self._settings.worker_stale
        self._expect(self._recover, horizon.lease, horizon.now)
        self._expect(self._steps, steps, horizon.now)
        self._expect(self._deadlines, horizon.deadline, horizon.now)
        self._expect(self._cancels, horizon.cancel, horizon.now)
        self._expect(self._workers, stale, horizon.now)
        self._sleeper.wake()

    async def run(self) -> None:
        while True:
            for duty in self._duties:
                if duty.due <= self._loop.time():
                    await self._run(duty)
            due = min(duty.due for duty in self._duties)
            if due <= self._loop.time():
                # Never hold the loop: a duty with much to do lets others have a turn.
                await asyncio.sleep(0)
            else:
                await self._sleeper.sleep(due)

    def _duty(self, name: str, tick: Callable[[], Awaitable[bool]]) -> Duty:
        every = self._settings.duty_interval / SECOND
        return Duty(name, tick, every, self._loop.time() + every)

    def _expect(self, duty: Duty, at: Instant | None, now: Instant) -> None:
        if at is not None and duty.failures == 0:
            # A millisecond late rather than a moment early, when the duty would find nothing.
            due = self._loop.time() + max(0.0, (at - now) / SECOND) + 0.001
            # Leases and heartbeats are renewed, so a newer horizon may also put a duty off.
            duty.due = min(due, self._loop.time() + duty.every)

    async def _run(self, duty: Duty) -> None:
        # From here on a horizon may ask for the next tick.
        duty.due = self._loop.time() + duty.every
        try:
            more, batches = True, 0
            while more and batches < self._batches:
                more = await duty.tick()
                batches += 1
        except Exception as error:
            duty.failures += 1
            if duty.failures == 1 or not isinstance(error, KagziError):
                log.warning("%s failed: %s", duty.name, error, exc_info=not isinstance(error, KagziError))
            pause = min(_FIRST_PAUSE * 2 ** min(duty.failures - 1, 10), _LONGEST_PAUSE)
            duty.due = self._loop.time() + pause * (0.5 + self._jitter())
        else:
            duty.failures = 0
            if more:
                duty.due = self._loop.time()

    async def _recover_runs(self) -> bool:
        return self._changed(
            await recover_runs.run_once(
                self._store, self._limit, max_crashes=self._settings.max_crashes, jitter=self._jitter
            ),
            "the lease of run %s ended; it is %s now",
        )

    async def _time_out_steps(self) -> bool:
        return self._changed(
            await enforce_timeouts.time_out_steps(self._store, self._limit, grace=self._settings.step_grace),
            "a step of run %s took too long; the run is %s now",
        )

    async def _time_out_runs(self) -> bool:
        return self._changed(
            await enforce_timeouts.time_out_runs(self._store, self._limit),
            "run %s passed its deadline; it is %s now",
        )

    async def _end_cancelled_runs(self) -> bool:
        return self._changed(
            await end_cancelled_runs.run_once(self._store, self._limit),
            "run %s was cancelled and did not end in time; it is %s now",
        )

    async def _expire_workers(self) -> bool:
        lost = await expire_workers.run_once(self._store, self._limit, after=self._settings.worker_stale)
        for worker_id in lost:
            log.warning("worker %s has not been heard of and counts as lost", worker_id, extra={"worker_id": worker_id})
        return len(lost) >= self._limit

    async def _prune(self) -> bool:
        # Most of what this one looks at stays, so it may look at more at once.
        limit = self._settings.duty_limit
        deleted, self._prune_from = await prune_history.run_once(self._store, limit, self._prune_from)
        if deleted:
            log.info("%d finished runs were past their retention and are deleted", deleted)
        if self._prune_from is not None:
            return True
        workers = await prune_history.prune_workers(self._store, limit)
        entries = await prune_history.prune_audit(self._store, limit)
        return max(workers, entries) >= limit

    def _changed(self, runs: list[Recovered], message: str) -> bool:
        for run in runs:
            log.warning(message, run.run_id, run.status.value, extra={"namespace": run.namespace, "run_id": run.run_id})
        self._wakeups.changed(runs)
        return len(runs) >= self._limit
