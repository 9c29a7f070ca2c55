"""Who waits for work and for results, and waking them.

Everything here is a hint. A poll subscribes before it looks, so what arrives in between is seen; and whatever
was missed all the same (a lost notification, a row that was locked when we looked, a process that died before
it could announce) is found by the pulse, which reads the horizon once a second.

* A `Watch` is a worker's interest in some queues. It outlives the single poll, so that a worker which has just
  taken everything there was need not look again: it is `dirty` when something may be due. Polls of one worker for
  other queues have a watch of their own, and so has whoever uses the id of a worker in another namespace.
* Due times known here (runs parked or delayed in this process, the earliest of each queue from the horizon)
  are in one heap under one timer. They are the database's instants; `now` estimates its clock from the
  instants it sent.
* Waiters for results are replies by run.
* Announcements to other processes go out at once, and then at most one round trip every few milliseconds.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from heapq import heappop, heappush
from typing import Final

from kagzi.api.reply import Reply
from kagzi.api.workers import Poll, Polled
from kagzi.core.instant import SECOND, Instant, Span
from kagzi.core.run import Run
from kagzi.engine.births import Births
from kagzi.engine.settings import EngineSettings
from kagzi.store.protocol import Horizon, Queue, Recovered

log = logging.getLogger("kagzi.engine")

Announce = Callable[[Sequence[Queue], Sequence[tuple[str, str]]], Awaitable[None]]
RunKey = tuple[str, str]  # (namespace, run id)

_MOST_DUE_TIMES: Final = 10_000  # beyond this, the horizon finds them
_MOST_ANNOUNCED: Final = 10_000
# Ends that somebody here has waited for are no news to most, so they are told together, and at most so many.
_AWAITED_SECONDS: Final = 0.25
_MOST_AWAITED: Final = 500
_CLOCK_SAMPLES: Final = 8


class Watch:
    """A worker's interest in some queues of one namespace."""

    def __init__(self, worker_id: str, queues: tuple[Queue, ...], now: float) -> None:
        self.worker_id = worker_id
        self.queues = queues
        self.forgotten = False  # the worker has left, or has not come for long
        self.dirty = True  # something may be due
        self.number = 0  # of the worker's latest poll
        self.poll: Poll | None = None  # the latest
        self.ending = 0  # runs whose end is to come, and whose places that poll has counted
        self.polls = 0  # under way
        self.polled_at = now
        self.births: Births | None = None  # of the poll that waits
        self.handed_out: Polled | None = None  # to the latest poll, before it looked
        self._waiters: list[asyncio.Future[None]] = []
        self._no_polls: asyncio.Future[None] | None = None

    @property
    def namespace(self) -> str:
        return self.queues[0][0]

    def begin_poll(self) -> None:
        self.polls += 1

    def end_poll(self, now: float) -> None:
        self.polls -= 1
        self.polled_at = now
        if not self.polls and self._no_polls is not None:
            self._no_polls.set_result(None)
            self._no_polls = None

    async def no_polls(self) -> None:
        """Until none is under way."""
        while self.polls:
            if self._no_polls is None:
                self._no_polls = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._no_polls)  # others may wait for the same

    def wake(self) -> None:
        self.dirty = True
        self.release()

    def release(self) -> None:
        """Let those who wait look at the state of things, dirty or not."""
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def wait(self, seconds: float) -> None:
        """Until the watch is woken or released, or the time is over."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        timer = loop.call_later(seconds, _expire, waiter)
        self._waiters.append(waiter)
        try:
            await waiter
        finally:
            timer.cancel()
            self._waiters.remove(waiter)


class Wakeups:
    def __init__(self, announce: Announce, settings: EngineSettings) -> None:
        self._loop = asyncio.get_running_loop()
        self._settings = settings
        self._watches: dict[str, dict[tuple[Queue, ...], Watch]] = {}  # by worker
        self._by_queue: dict[Queue, dict[Watch, None]] = {}
        self._results: dict[RunKey, list[Reply[Run | None]]] = {}
        self._deadlines: dict[Reply[Run | None], float] = {}
        self._outgoing = Outgoing(announce, settings.announce_every)
        self._offsets: deque[int] = deque(maxlen=_CLOCK_SAMPLES)
        self._offset = 0
        self._due: list[tuple[Instant, Queue]] = []
        self._due_known: set[tuple[Instant, Queue]] = set()
        self._fired: dict[Queue, Instant] = {}  # the latest due time each watched queue was woken for
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at: Instant = 0
        self._closed = False
        # Called when the horizon should be read before its time, with the longest acceptable delay.
        self.look_soon: Callable[[float], None] = lambda seconds: None  # noqa: ARG005
        # Told what duties, heartbeats and leaving workers did to runs.
        self.on_changed: Callable[[Sequence[Recovered]], None] = lambda runs: None  # noqa: ARG005
        # Called when there is somebody to re-check results for.
        self.check_soon: Callable[[], None] = lambda: None

    # The database's clock.

    def now(self) -> Instant:
        """The database's time, as far as it can be told from here; never ahead of it while clocks run
        evenly."""
        return round(self._loop.time() * SECOND) + self._offset

    def heard(self, now: Instant) -> None:
        """An answer carried this time of the database."""
        # It is old by its way back, so every sample is too small and the largest is the best; but a clock
        # that was set back makes all older ones worthless.
        sample = now - round(self._loop.time() * SECOND)
        if sample < self._offset - SECOND:
            self._offsets.clear()
        self._offsets.append(sample)
        self._offset = max(self._offsets)

    # Work.

    def watch(self, worker_id: str, queues: tuple[Queue, ...]) -> Watch:
        watches = self._watches.setdefault(worker_id, {})
        watch = watches.get(queues)
        if watch is not None:
            watch.polled_at = self._loop.time()
            return watch
        watch = watches[queues] = Watch(worker_id, queues, self._loop.time())
        for queue in queues:
            self._by_queue.setdefault(queue, {})[watch] = None
        # Nobody here knew these queues' due times until now.
        self.look_soon(0.0)
        return watch

    def watches_of(self, worker_id: str, namespace: str | None) -> list[Watch]:
        """Those of a worker, in its namespace or in any."""
        return [watch for watch in self._watches.get(worker_id, {}).values() if namespace in (None, watch.namespace)]

    def forget(self, watch: Watch) -> None:
        """Polls that still wait come to their end: nobody would wake them."""
        watches = self._watches.get(watch.worker_id, {})
        if watches.pop(watch.queues, None) is None:
            return
        if not watches:
            del self._watches[watch.worker_id]
        watch.forgotten = True
        watch.release()
        for queue in watch.queues:
            watching = self._by_queue[queue]
            del watching[watch]
            if not watching:
                del self._by_queue[queue]
                self._fired.pop(queue, None)

    def forget_unused(self) -> None:
        oldest = self._loop.time() - self._settings.watch_kept / SECOND
        for watch in self._all_watches():
            if not watch.polls and watch.polled_at < oldest:
                self.forget(watch)

    def watched_queues(self) -> list[Queue]:
        return list(self._by_queue)

    def is_watched(self, queue: Queue) -> bool:
        return queue in self._by_queue

    def wake(self, queue: Queue) -> None:
        """Something may be due in this queue; heard from another process or read from the horizon."""
        watching = self._by_queue.get(queue)
        if watching is not None:
            for watch in watching:
                watch.wake()

    def claimed(self, watch: Watch, now: Instant) -> None:
        """A claim was made at this instant of the database. Had our clock been ahead of it, due times would
        have
        been taken for passed that are not: they count again."""
        self.heard(now)
        for queue in watch.queues:
            fired = self._fired.get(queue)
            if fired is not None and fired > now:
                self._arm(queue, fired)

    def available(self, queue: Queue, at: Instant = 0) -> None:
        """A run of this queue, changed in this process, may be claimed at this time."""
        if at <= self.now() or not self._offsets:
            self.wake(queue)
            self._outgoing.add_work(queue)
        elif queue in self._by_queue:
            self._arm(queue, at)

    def changed(self, runs: Sequence[Recovered]) -> None:
        """What a duty, a heartbeat or a leaving worker did to runs."""
        if runs:
            self.on_changed(runs)
        for run in runs:
            if run.status.finished:
                self.finished(run.namespace, run.run_id)
            else:
                self.available((run.namespace, run.task_queue), run.available_at)

    def read(self, horizon: Horizon) -> None:
        self.heard(horizon.now)
        for queue, at in horizon.due.items():
            if at <= horizon.now:
                self.wake(queue)
            elif queue in self._by_queue:
                self._arm(queue, at)

    # Results.

    def expect(self, namespace: str, run_id: str, deadline: float | None = None) -> Reply[Run | None]:
        """Settled when the run may have finished: with the run, or None for "look again"; and soon after the deadline,
        by the clock of the loop."""
        reply: Reply[Run | None] = Reply()
        if self._closed:
            reply.settle(None)
            return reply
        self._results.setdefault((namespace, run_id), []).append(reply)
        if deadline is not None:
            self._deadlines[reply] = deadline
        self.check_soon()
        return reply

    def expire(self) -> None:
        """Let those whose deadline has passed look at the state of things."""
        now = self._loop.time()
        for reply in [reply for reply, deadline in self._deadlines.items() if deadline <= now]:
            if not reply.done():
                reply.settle(None)

    def unexpect(self, namespace: str, run_id: str, reply: Reply[Run | None]) -> None:
        self._deadlines.pop(reply, None)
        waiting = self._results.get((namespace, run_id))
        if waiting is not None and reply in waiting:
            waiting.remove(reply)
            if not waiting:
                del self._results[namespace, run_id]

    def expected(self, namespace: str, run_id: str) -> bool:
        return (namespace, run_id) in self._results

    def expected_runs(self) -> list[RunKey]:
        return list(self._results)

    def finished(self, namespace: str, run_id: str, run: Run | None = None) -> None:
        """A run ended in this process. Whoever waits for it here is nearly always the only one who does, so ends that
        nobody waited for are announced at once; of the others those who watch elsewhere hear in a while."""
        if self._wake_result(namespace, run_id, run):
            self._outgoing.add_awaited((namespace, run_id))
        else:
            self._outgoing.add_finished((namespace, run_id))

    def maybe_finished(self, namespace: str, run_id: str) -> None:
        """Heard from another process, or found by looking."""
        self._wake_result(namespace, run_id, None)

    # Ending.

    async def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for watch in self._all_watches():
            self.forget(watch)
        for namespace, run_id in list(self._results):
            self._wake_result(namespace, run_id, None)
        await self._outgoing.close()

    def is_closed(self) -> bool:
        return self._closed

    def _all_watches(self) -> list[Watch]:
        return [watch for watches in self._watches.values() for watch in watches.values()]

    def _wake_result(self, namespace: str, run_id: str, run: Run | None) -> bool:
        waiting = self._results.pop((namespace, run_id), None)
        if waiting is None:
            return False
        for reply in waiting:
            if not reply.done():
                reply.settle(run)
        return True

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
            seconds = min(max(0.0, (self._timer_at - self.now()) / SECOND), 3600.0)
            self._timer = self._loop.call_later(seconds, self._fire)

    def _fire(self) -> None:
        self._timer = None
        now = self.now()
        fired: dict[Queue, Instant] = {}
        while self._due and self._due[0][0] <= now:
            entry = heappop(self._due)
            self._due_known.discard(entry)
            if entry[1] in self._by_queue:
                fired[entry[1]] = entry[0]
        for queue, at in fired.items():
            self._fired[queue] = at
            self.wake(queue)
        if fired:
            # The next due time of these queues may be known to the database alone.
            self.look_soon(0.05)
        self._set_timer()


class Outgoing:
    """Announcements to other processes."""

    def __init__(self, announce: Announce, every: Span) -> None:
        self._announce = announce
        self._every = every / SECOND
        self._loop = asyncio.get_running_loop()
        self._work: dict[Queue, None] = {}
        self._finished: dict[RunKey, None] = {}
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

    def add_awaited(self, run: RunKey) -> None:
        if len(self._awaited) < _MOST_AWAITED:
            self._awaited.append(run)
            if self._timer is None and not self._closed:
                self._timer = self._loop.call_later(_AWAITED_SECONDS, self._tell_awaited)

    def _tell_awaited(self) -> None:
        self._timer = None
        awaited, self._awaited = self._awaited, []
        for run in awaited:
            self.add_finished(run)

    async def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def _start(self) -> None:
        if not self._closed:
            self._task = self._loop.create_task(self._send(), name="kagzi-announce")

    async def _send(self) -> None:
        try:
            while self._work or self._finished:
                work, finished = list(self._work), list(self._finished)
                self._work.clear()
                self._finished.clear()
                pause = self._every
                try:
                    await self._announce(work, finished)
                except Exception as error:
                    # A hint that got lost. Others look once a second anyway.
                    log.debug("announcing failed: %s", error)
                    pause = 1.0
                await asyncio.sleep(pause)
        finally:
            self._task = None


def _expire(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
