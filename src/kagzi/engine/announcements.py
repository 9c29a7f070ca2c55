"""Announcements to other processes: queues with new work, runs that ended, and news for runs they drive.

They go out at once, and then at most one round trip every few milliseconds. They are hints: others look once a second
anyway.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from kagzi.core.instant import SECOND, Span
from kagzi.store.protocol.changes import Queue, RunKey

log = logging.getLogger("kagzi.engine")

Announce = Callable[[Sequence[Queue], Sequence[RunKey], Sequence[RunKey]], Awaitable[None]]

_MOST_ANNOUNCED: Final = 10_000
# Ends that somebody here has waited for are no news to most, so they are told together, and at most so many.
_AWAITED_SECONDS: Final = 0.25
_MOST_AWAITED: Final = 500


class Announcements:
    def __init__(self, announce: Announce, every: Span) -> None:
        self._announce = announce
        self._every = every / SECOND
        self._loop = asyncio.get_running_loop()
        self._work: dict[Queue, None] = {}
        self._finished: dict[RunKey, None] = {}
        self._news: dict[RunKey, None] = {}
        self._awaited: list[RunKey] = []
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def add_work(self, queue: Queue) -> None:
        self._work[queue] = None
        if self._task is None:
            self._start()

    def add_finished(self, run: RunKey) -> None:
        if len(self._finished) < _MOST_ANNOUNCED:
            self._finished[run] = None
        if self._task is None:
            self._start()

    def add_news(self, run: RunKey) -> None:
        """Announces that something has arrived for a run that another process drives."""
        if len(self._news) < _MOST_ANNOUNCED:
            self._news[run] = None
        if self._task is None:
            self._start()

    def add_awaited(self, run: RunKey) -> None:
        """Announces the end of a run that had a waiter here: soon, together with others."""
        if len(self._awaited) < _MOST_AWAITED:
            self._awaited.append(run)
            if self._timer is None and not self._closed:
                self._timer = self._loop.call_later(_AWAITED_SECONDS, self._tell_awaited)

    async def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def _tell_awaited(self) -> None:
        self._timer = None
        awaited, self._awaited = self._awaited, []
        for run in awaited:
            self.add_finished(run)

    def _start(self) -> None:
        if not self._closed:
            self._task = self._loop.create_task(self._send(), name="kagzi-announce")

    async def _send(self) -> None:
        try:
            while self._work or self._finished or self._news:
                work, finished, news = list(self._work), list(self._finished), list(self._news)
                self._work.clear()
                self._finished.clear()
                self._news.clear()
                pause = self._every
                try:
                    await self._announce(work, finished, news)
                except Exception as error:
                    log.debug("announcing failed: %s", error)
                    pause = 1.0
                await asyncio.sleep(pause)
        finally:
            self._task = None
