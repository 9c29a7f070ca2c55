"""Events: tells watchers what happens to runs and schedules.

Changes made through this process are noticed where their commits are answered; ends of runs and new work elsewhere are
heard from other processes. No query is made for any of it, and while nobody watches nothing is noted down at all.

A reader that does not keep up costs a bounded buffer: when that is full it is emptied, and the reader is told to look
again. The last few events are kept for a while, so that a reader whose connection broke goes on where it was. Each
namespace numbers its own events: the ids must not tell how much happens in the others.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Final

from kagzi.api.events import Change, Numbered, QueueChanged, Resync, RunChanged, ScheduleChange, ScheduleChanged
from kagzi.core.instant import Instant
from kagzi.core.run import RunStatus
from kagzi.store.protocol.changes import Recovered

_BUFFER: Final = 1_000  # events a reader may be behind
_KEPT: Final = 5_000  # events for readers that come back
_KEPT_SECONDS: Final = 30.0  # after the last reader has gone
_RESYNC_SECONDS: Final = 1.0  # two Resyncs of one reader are at least this far apart
# Whatever was missed without anybody noticing is found this much later.
_LOOK_AGAIN_SECONDS: Final = 60.0


class Events:
    """`api.events.EventService`. `epoch` gives a name that no other process has, and this one until nobody watches any
    more: numbers under another name mean nothing here. `tend` is called when the first reader comes."""

    def __init__(self, epoch: Callable[[], str], now: Callable[[], Instant], tend: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._new_epoch = epoch
        self._epoch = epoch()
        self._now = now
        self._tend = tend
        self._numbers: Counter[str] = Counter()  # of the last event in each namespace
        self._kept: deque[Numbered] = deque(maxlen=_KEPT)
        self._readers: set[_Reader] = set()
        self._runs: Counter[str] = Counter()
        self._pause: asyncio.TimerHandle | None = None
        self.on = False  # whether anybody wants to know

    def subscribe(self, *, namespace: str, run_id: str | None = None, after: str | None = None) -> _Reader:
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
        reader = _Reader(self, namespace, run_id)
        if after is not None:
            missed = self._since(after, namespace)
            if missed is None:
                reader.resync()
            else:
                for each in missed:
                    reader.tell(each)
        self._readers.add(reader)
        if run_id is not None:
            self._runs[run_id] += 1
        if not self.on:
            self.on = True
            self._tend()
        return reader

    # What is noticed. Ask `on` first: making an event costs something.

    def run(
        self,
        namespace: str,
        run_id: str,
        change: Change,
        status: RunStatus | None = None,
        workflow: str | None = None,
        queue: str | None = None,
    ) -> None:
        self._tell(
            RunChanged(
                namespace=namespace,
                run_id=run_id,
                change=change,
                status=status,
                workflow=workflow,
                queue=queue,
                at=self._now(),
            )
        )

    def progressed(self, namespace: str, run_id: str) -> None:
        if run_id in self._runs:
            self.run(namespace, run_id, Change.PROGRESSED, RunStatus.RUNNING)

    def changed(self, runs: Sequence[Recovered]) -> None:
        if self.on:
            for run in runs:
                change = Change.FINISHED if run.status.finished else Change.RETURNED
                self.run(run.namespace, run.run_id, change, run.status, queue=run.task_queue)

    def schedule(self, namespace: str, schedule_id: str, change: ScheduleChange, count: int | None = None) -> None:
        if self.on:
            self._tell(
                ScheduleChanged(
                    namespace=namespace, schedule_id=schedule_id, change=change, count=count, at=self._now()
                )
            )

    def queue(self, namespace: str, queue: str) -> None:
        self._tell(QueueChanged(namespace=namespace, queue=queue, at=self._now()))

    def anything(self) -> None:
        """Tells all readers to look again, because anything may have changed."""
        # Nor can a reader that comes back be told what it has missed.
        self._kept.clear()
        for reader in self._readers:
            reader.resync()

    def close(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
        for reader in list(self._readers):
            reader.close()
        self.on = False

    def _tell(self, event: RunChanged | ScheduleChanged | QueueChanged) -> None:
        self._numbers[event.namespace] += 1
        numbered = Numbered(self.last_id(event.namespace), event)
        self._kept.append(numbered)
        for reader in self._readers:
            reader.tell(numbered)

    def _since(self, after: str, namespace: str) -> list[Numbered] | None:
        epoch, _, number = after.rpartition("-")
        if epoch != self._epoch or not (number.isascii() and number.isdigit() and len(number) < 16) or not self.on:
            return None
        missed = self._numbers[namespace] - int(number)
        # The oldest go first, so what is left of a namespace is what happened last there.
        kept = [each for each in self._kept if not isinstance(each.event, Resync) and each.event.namespace == namespace]
        if not 0 <= missed <= len(kept):
            return None
        return kept[len(kept) - missed :]

    def left(self, reader: _Reader) -> None:
        if reader not in self._readers:
            return
        self._readers.remove(reader)
        if reader.run_id is not None:
            self._runs[reader.run_id] -= 1
            if not self._runs[reader.run_id]:
                del self._runs[reader.run_id]
        if not self._readers and self.on:
            self._pause = self._loop.call_later(_KEPT_SECONDS, self._stop)

    def _stop(self) -> None:
        self._pause = None
        self.on = False
        self._epoch = self._new_epoch()
        self._numbers.clear()
        self._kept.clear()

    def last_id(self, namespace: str) -> str:
        return f"{self._epoch}-{self._numbers[namespace]}"

    def now(self) -> Instant:
        return self._now()


class _Reader:
    """`api.events.Subscription`."""

    def __init__(self, events: Events, namespace: str, run_id: str | None) -> None:
        self._events = events
        self.namespace = namespace
        self.run_id = run_id
        self._loop = asyncio.get_running_loop()
        self._waiting: list[Numbered] = []
        self._look_again_at = self._loop.time() + _LOOK_AGAIN_SECONDS
        self._resynced_at = self._loop.time() - _RESYNC_SECONDS
        self._waiter: asyncio.Future[None] | None = None
        self._closed = False

    def tell(self, numbered: Numbered) -> None:
        event = numbered.event
        if isinstance(event, Resync) or event.namespace != self.namespace:
            return
        if self.run_id is not None:
            if not isinstance(event, RunChanged) or event.run_id != self.run_id:
                return
        elif isinstance(event, RunChanged) and event.change is Change.PROGRESSED:
            return
        if len(self._waiting) >= _BUFFER:
            self._waiting.clear()
            self.resync()
            return
        self._waiting.append(numbered)
        self._wake()

    def resync(self) -> None:
        self._look_again_at = min(self._look_again_at, max(self._loop.time(), self._resynced_at + _RESYNC_SECONDS))
        self._wake()

    async def next(self, seconds: float) -> Sequence[Numbered]:
        until = self._loop.time() + seconds
        while not self._closed:
            now = self._loop.time()
            if now >= self._look_again_at:
                self._resynced_at = now
                self._look_again_at = now + _LOOK_AGAIN_SECONDS
                self._waiting.append(Numbered(self._events.last_id(self.namespace), Resync(at=self._events.now())))
            if self._waiting:
                told, self._waiting = self._waiting, []
                return told
            if now >= until:
                break
            await self._sleep(min(until, self._look_again_at) - now)
        return []

    def close(self) -> None:
        self._closed = True
        self._events.left(self)
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _sleep(self, seconds: float) -> None:
        self._waiter = self._loop.create_future()
        timer = self._loop.call_later(seconds, self._wake)
        try:
            await self._waiter
        finally:
            self._waiter = None
            timer.cancel()
