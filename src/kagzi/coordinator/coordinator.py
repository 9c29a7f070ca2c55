"""The loop that runs the duties, and its timing. No rules, no leader: every duty is safe in any number.

The pulse reads the horizon once a second and passes it on here; a duty runs when the horizon says that something of its
kind is due, at that very moment rather than at the next tick. If the horizon should be wrong, each duty also runs at a
long interval by itself. A duty that handled as many rows as it may runs again at once; one that fails is logged and
tried again later, and the others go on meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from kagzi.api.operations import Write
from kagzi.coordinator.duties import Duty, duties
from kagzi.core.instant import SECOND, Instant
from kagzi.engine.local import HeldRuns, UnservedRuns
from kagzi.engine.settings import EngineSettings
from kagzi.engine.sleeper import Sleeper
from kagzi.errors import KagziError
from kagzi.store.protocol.changes import Changed
from kagzi.store.protocol.overview import Horizon
from kagzi.store.protocol.schedules import Fired
from kagzi.store.protocol.store import Store

log = logging.getLogger("kagzi.coordinator")

_FIRST_PAUSE: Final = 1.0
_LONGEST_PAUSE: Final = 30.0


class _Turn:
    """When a duty runs next, by the loop's clock, and how often it has failed in a row."""

    def __init__(self, duty: Duty, first: float) -> None:
        self.duty = duty
        self.every = duty.every / SECOND
        self.due = first
        self.failures = 0


class Coordinator:
    """Runs the duties. `changed` hears which runs they have changed, `fired` what schedules have started;
    `submit` makes a write durable."""

    def __init__(
        self,
        store: Store,
        changed: Callable[[Changed], None],
        settings: EngineSettings,
        *,
        jitter: Callable[[], float],
        new_run_id: Callable[[], str],
        fired: Callable[[Fired], None],
        submit: Callable[[Write], Awaitable[Any]],
        limits: HeldRuns,
        unserved: UnservedRuns,
    ) -> None:
        self._batches = max(1, settings.duty_limit // settings.duty_batch)
        self._jitter = jitter
        self._loop = asyncio.get_running_loop()
        self._sleeper = Sleeper()
        table = duties(store, settings, changed, jitter, new_run_id, fired, submit, limits, unserved)
        self._turns = [self._first_turn(duty) for duty in table]

    def read(self, horizon: Horizon) -> None:
        """Something will be due at these moments."""
        for turn in self._turns:
            if turn.duty.when is not None:
                self._expect(turn, turn.duty.when(horizon), horizon.now)
        self._sleeper.wake()

    async def run(self) -> None:
        while True:
            for turn in self._turns:
                if turn.due <= self._loop.time():
                    await self._run(turn)
            due = min(turn.due for turn in self._turns)
            if due <= self._loop.time():
                # Never hold the loop: a duty with much to do lets others have a turn.
                await asyncio.sleep(0)
            else:
                await self._sleeper.sleep(due)

    def _first_turn(self, duty: Duty) -> _Turn:
        every = duty.every / SECOND
        # Processes are often started together; what no moment calls for they should not do together.
        return _Turn(duty, self._loop.time() + every * (self._jitter() if duty.when is None else 1))

    def _expect(self, turn: _Turn, at: Instant | None, now: Instant) -> None:
        if at is not None and turn.failures == 0:
            # A millisecond late rather than a moment early, when the duty would find nothing.
            due = self._loop.time() + max(0.0, (at - now) / SECOND) + 0.001
            # Leases and heartbeats are renewed, so a newer horizon may also put a duty off.
            turn.due = min(due, self._loop.time() + turn.every)

    async def _run(self, turn: _Turn) -> None:
        # From here on a horizon may ask for the next tick.
        turn.due = self._loop.time() + turn.every
        try:
            more, batches = True, 0
            while more and batches < self._batches:
                more = await turn.duty.tick()
                batches += 1
        except Exception as error:
            turn.failures += 1
            if turn.failures == 1 or not isinstance(error, KagziError):
                log.warning("%s failed: %s", turn.duty.name, error, exc_info=not isinstance(error, KagziError))
            pause = min(_FIRST_PAUSE * 2 ** min(turn.failures - 1, 10), _LONGEST_PAUSE)
            turn.due = self._loop.time() + pause * (0.5 + self._jitter())
        else:
            turn.failures = 0
            if more:
                turn.due = self._loop.time()
