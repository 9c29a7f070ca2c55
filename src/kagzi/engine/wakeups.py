"""Watched queues: when each is due, and waking whoever watches it.

Everything here is a hint. A poll subscribes before it looks, so what arrives in between is seen; and whatever was
missed all the same (a lost notification, a row that was locked when we looked, a process that died before it could
announce) is found by the pulse, which reads the horizon once a second.

Due times known here (runs parked or delayed in this process, the earliest of each queue from the horizon) are in one
heap under one timer. They are the database's instants.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from typing import Final, Protocol

from kagzi.core.instant import SECOND, Instant
from kagzi.engine.announcements import Announcements
from kagzi.engine.database_clock import DatabaseClock
from kagzi.store.protocol.changes import Queue
from kagzi.store.protocol.overview import Horizon

_MOST_DUE_TIMES: Final = 10_000  # beyond this, the horizon finds them


class Watcher(Protocol):
    """Is woken when something may be due in a queue it watches."""

    def wake(self) -> None: ...


class Wakeups:
    """Watched queues and their due times. `look_soon` asks for the horizon within so many seconds."""

    def __init__(self, clock: DatabaseClock, announcements: Announcements, look_soon: Callable[[float], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._clock = clock
        self._announcements = announcements
        self._look_soon = look_soon
        self._watchers: dict[Queue, dict[Watcher, None]] = {}
        self._due: list[tuple[Instant, Queue]] = []
        self._due_known: set[tuple[Instant, Queue]] = set()
        self._fired: dict[Queue, Instant] = {}  # the latest due time each watched queue was woken for
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at: Instant = 0
        self._closed = False

    def add(self, watcher: Watcher, queues: Iterable[Queue]) -> None:
        for queue in queues:
            self._watchers.setdefault(queue, {})[watcher] = None
        # Nobody here knew these queues' due times until now.
        self._look_soon(0.0)

    def remove(self, watcher: Watcher, queues: Iterable[Queue]) -> None:
        for queue in queues:
            watching = self._watchers[queue]
            del watching[watcher]
            if not watching:
                del self._watchers[queue]
                self._fired.pop(queue, None)

    def watched_queues(self) -> list[Queue]:
        return list(self._watchers)

    def is_watched(self, queue: Queue) -> bool:
        return queue in self._watchers

    def wake(self, queue: Queue) -> None:
        """Wakes the watchers of this queue, because another process or the horizon says that something may be due."""
        watching = self._watchers.get(queue)
        if watching is not None:
            for watcher in watching:
                watcher.wake()

    def available(self, queue: Queue, at: Instant = 0) -> None:
        """Notes that a run of this queue, changed by this process, may be claimed from this time on."""
        if at <= self._clock.now() or not self._clock.known:
            self.wake(queue)
            self._announcements.add_work(queue)
        elif queue in self._watchers:
            self._arm(queue, at)

    def claimed(self, queues: Iterable[Queue], now: Instant) -> None:
        """Notes that a claim was made at this instant of the database. If our clock was ahead of it, due times that
        seemed to have passed have not: they count again."""
        self._clock.heard(now)
        for queue in queues:
            fired = self._fired.get(queue)
            if fired is not None and fired > now:
                self._arm(queue, fired)

    def read(self, horizon: Horizon) -> None:
        self._clock.heard(horizon.now)
        for queue, at in horizon.due.items():
            if at <= horizon.now:
                self.wake(queue)
            elif queue in self._watchers:
                self._arm(queue, at)

    def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, queue: Queue, at: Instant) -> None:
        at += -at % 1000  # to the millisecond, later rather than earlier: many runs park for the same moment
        if (at, queue) in self._due_known or len(self._due) >= _MOST_DUE_TIMES:
            return
        self._due_known.add((at, queue))
        heappush(self._due, (at, queue))
        if self._timer is None or at < self._timer_at:
            self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._due and not self._closed:
            self._timer_at = self._due[0][0]
            # At most an hour ahead: the loop's clock and the database's drift apart.
            seconds = min(max(0.0, (self._timer_at - self._clock.now()) / SECOND), 3600.0)
            self._timer = self._loop.call_later(seconds, self._fire)

    def _fire(self) -> None:
        self._timer = None
        now = self._clock.now()
        fired: dict[Queue, Instant] = {}
        while self._due and self._due[0][0] <= now:
            entry = heappop(self._due)
            self._due_known.discard(entry)
            if entry[1] in self._watchers:
                fired[entry[1]] = entry[0]
        for queue, at in fired.items():
            self._fired[queue] = at
            self.wake(queue)
        if fired:
            # The next due time of these queues may be known to the database alone.
            self._look_soon(0.05)
        self._set_timer()
