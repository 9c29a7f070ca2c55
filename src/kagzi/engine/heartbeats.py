"""Heartbeats of many workers in one transaction.

A worker sends one every ten seconds, and most have nothing to say: each in a transaction of its own, two hundred idle
workers would ask the database forty times a second. So an engine that has just written heartbeats collects those that
come for a while, the window, and writes them together. One that comes later than that is written at once: a worker
alone never waits.

A worker counts a lease from the moment at which it sent the heartbeat, so waiting costs it no more than the window,
which is a tenth of the shortest lease that the heartbeat may concern. The length of a lease is known from its last
renewal here. A run that was not renewed here before may have any, so its heartbeat waits for hardly anything; whatever
has collected meanwhile goes along.

What can go wrong, and what happens then:
* A transaction fails. Everybody in it hears Unavailable and repeats soon, and the next heartbeat of each of them is
  written alone: if it was one of them (a run whose row somebody has locked for long), the others do not suffer again.
* A run's row is locked. The others are renewed; it is tried again a few times, and its worker told that the lease was
  not renewed. Most often it is a commit of the run itself, which takes a moment.
* A caller goes away. If its heartbeat is under way it is written to its end, else dropped; the others do not notice.
* The engine is closed. What has not been sent is refused, what is under way is waited for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from math import inf
from typing import Any, Final

from msgspec.structs import replace

from kagzi.api.workers import Heartbeat, HeartbeatAnswer
from kagzi.core.instant import SECOND, Span
from kagzi.core.limits import SHORTEST_LEASE
from kagzi.engine.settings import EngineSettings
from kagzi.errors import KagziError, Unavailable
from kagzi.store.protocol.changes import Recovered
from kagzi.store.protocol.store import Store
from kagzi.store.protocol.workers import HeartbeatResult

log = logging.getLogger("kagzi.engine")

_LONGEST_WINDOW: Final = 3 * SECOND
_MOST_BEATS: Final = 1000  # in one transaction; also no more runs than these, but for those of a single worker
_MOST_RUNS: Final = 10_000
_MOST_WAITING: Final = 10_000
_AGAIN: Final = (0.02, 0.1, 0.3)  # seconds after which runs are tried again whose rows were locked
_MOST_REMEMBERED: Final = 10_000  # workers


class _Sent:
    """A heartbeat, and the future of its sender."""

    __slots__ = ("answer", "beat")

    def __init__(self, beat: Heartbeat, answer: asyncio.Future[HeartbeatAnswer]) -> None:
        self.beat = beat
        self.answer = answer


class _Leases:
    """The leases that the last heartbeat of a worker, written by this process, has renewed."""

    __slots__ = ("held", "shortest")

    def __init__(self, held: frozenset[tuple[str, str]], shortest: Span) -> None:
        self.held = held
        self.shortest = shortest


class Heartbeats:
    def __init__(self, store: Store, settings: EngineSettings, *, released: Callable[[list[Recovered]], None]) -> None:
        self._store = store
        self._released = released
        self._window: Span = min(
            _LONGEST_WINDOW, settings.heartbeat_every * 3 // 10, settings.lease // 10, settings.worker_stale // 10
        )
        self._lease = settings.lease
        self._loop = asyncio.get_running_loop()
        self._waiting: list[_Sent] = []
        self._due = inf  # when what waits is to be written
        self._sent_at = -inf
        self._timer: asyncio.TimerHandle | None = None
        self._together: asyncio.Task[None] | None = None
        self._alone: set[asyncio.Task[None]] = set()
        self._leases: dict[str, _Leases] = {}  # by worker; those heard of last at the end
        self._apart: dict[str, None] = {}  # workers whose last heartbeat failed
        self._closed = False

    async def send(self, beat: Heartbeat) -> HeartbeatAnswer:
        if self._closed:
            raise Unavailable("the engine is closed")
        if len(self._waiting) >= _MOST_WAITING:
            raise Unavailable("too many heartbeats are waiting for the database; trying again is safe")
        sent = _Sent(beat, self._loop.create_future())
        if beat.worker_id in self._apart:
            self._begin_alone(self._write([sent]))
        else:
            self._waiting.append(sent)
            self._plan(self._sent_at + self._patience(beat) / SECOND)
        return await sent.answer

    def confirmed(self, worker_id: str, lease: Span) -> None:
        """Notes that a worker, one that lists no runs, holds a lease of this length."""
        known = self._leases.get(worker_id)
        if known is None or lease < known.shortest:
            self._remember(worker_id, _Leases(known.held if known is not None else frozenset(), lease))

    async def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for sent in self._waiting:
            if not sent.answer.done():
                sent.answer.set_exception(Unavailable("the engine is closed"))
        self._waiting.clear()
        under_way = [task for task in (self._together, *self._alone) if task is not None]
        if under_way:
            await asyncio.wait(under_way)

    def _patience(self, beat: Heartbeat) -> Span:
        """Returns how long after the last transaction this heartbeat may be written."""
        if not beat.held and not beat.confirmed:
            return self._window
        known = self._leases.get(beat.worker_id)
        if beat.confirmed:
            lease = self._lease if known is None else known.shortest
        else:
            lease = known.shortest if known is not None and known.held.issuperset(beat.held) else SHORTEST_LEASE
        return min(self._window, lease // 10)

    def _plan(self, due: float) -> None:
        """Plans the next transaction for this moment, or for the end of the one that is under way."""
        if due >= self._due:
            return
        self._due = due
        if self._together is None:
            self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._due <= self._loop.time():
            self._begin()
        else:
            self._timer = self._loop.call_at(self._due, self._begin)

    def _begin(self) -> None:
        self._timer = None
        # A new task takes its first step in the next turn of the loop: what is sent in this one goes along.
        self._together = self._loop.create_task(self._write_waiting(), name="kagzi-heartbeats")

    async def _write_waiting(self) -> None:
        try:
            batch = self._take()
            if batch:
                self._sent_at = self._loop.time()
                await self._write(batch)
        finally:
            self._together = None
            if self._due < inf and not self._closed:
                self._set_timer()

    def _take(self) -> list[_Sent]:
        """Takes the heartbeats of the next transaction: no worker twice, and a bounded number. The rest is due at
        once."""
        batch: list[_Sent] = []
        left: list[_Sent] = []
        workers: set[str] = set()
        runs = 0
        for sent in self._waiting:
            if sent.answer.done():
                continue  # its caller has gone
            runs += len(sent.beat.held)
            full = len(batch) >= _MOST_BEATS or runs > _MOST_RUNS
            if batch and (full or sent.beat.worker_id in workers):
                left.append(sent)
            else:
                batch.append(sent)
                workers.add(sent.beat.worker_id)
        self._waiting = left
        self._due = self._loop.time() if left else inf
        return batch

    async def _write(self, batch: list[_Sent]) -> None:
        try:
            beaten = await self._store.workers.heartbeats([sent.beat for sent in batch])
            if len(beaten) != len(batch):
                raise AssertionError(f"{len(beaten)} answers to {len(batch)} heartbeats")
        except Exception as error:
            self._failed(batch, error)
            return
        except BaseException:
            # The loop is being shut down: nobody may be left waiting.
            self._failed(batch, Unavailable("the engine was stopped while writing heartbeats"))
            raise
        for sent, each in zip(batch, beaten, strict=True):
            self._written(sent.beat, each)
            if each.answer.unrenewed:
                self._begin_alone(self._write_again(sent, each.answer))
            elif not sent.answer.done():
                sent.answer.set_result(each.answer)
        released = [run for each in beaten for run in each.released]
        if released:
            self._released(released)

    def _begin_alone(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work, name="kagzi-heartbeat")
        self._alone.add(task)
        task.add_done_callback(self._alone.discard)

    async def _write_again(self, sent: _Sent, answer: HeartbeatAnswer) -> None:
        """Renews the leases of runs that were locked, and answers for all of them."""
        try:
            for pause in _AGAIN:
                await asyncio.sleep(pause)
                # Of what else the worker has claimed this says nothing: it has heard of none.
                held = tuple(pair for pair in sent.beat.held if pair[0] in answer.unrenewed)
                (beaten,) = await self._store.workers.heartbeats([replace(sent.beat, held=held, heard=0)])
                again = beaten.answer
                answer = replace(
                    answer,
                    lost=answer.lost + again.lost,
                    unrenewed=again.unrenewed,
                    news=answer.news + again.news,
                    cancelled=answer.cancelled + again.cancelled,
                )
                if not answer.unrenewed:
                    break
        except Exception as error:
            log.warning("leases of locked runs could not be renewed: %s", error)
        finally:
            if not sent.answer.done():
                sent.answer.set_result(answer)

    def _written(self, beat: Heartbeat, beaten: HeartbeatResult) -> None:
        self._apart.pop(beat.worker_id, None)
        if beaten.shortest is None:
            self._leases.pop(beat.worker_id, None)
        else:
            lost = {*beaten.answer.lost, *beaten.answer.unrenewed}
            held = frozenset(pair for pair in beat.held if pair[0] not in lost)
            self._remember(beat.worker_id, _Leases(held, beaten.shortest))

    def _failed(self, batch: list[_Sent], error: Exception) -> None:
        if not isinstance(error, KagziError):
            log.error("%d heartbeats could not be written", len(batch), exc_info=error)
        for sent in batch:
            self._apart[sent.beat.worker_id] = None
            if not sent.answer.done():
                sent.answer.set_exception(_for_caller(error, alone=len(batch) == 1))
        while len(self._apart) > _MOST_REMEMBERED:
            del self._apart[next(iter(self._apart))]

    def _remember(self, worker_id: str, leases: _Leases) -> None:
        self._leases.pop(worker_id, None)
        self._leases[worker_id] = leases
        if len(self._leases) > _MOST_REMEMBERED:
            del self._leases[next(iter(self._leases))]


def _for_caller(error: Exception, *, alone: bool) -> Exception:
    """Makes an exception of the caller's own. What was wrong with a heartbeat is told to its sender alone."""
    if alone and not isinstance(error, Unavailable):
        return error
    if isinstance(error, Unavailable):
        fresh = Unavailable(str(error) or "the database is out of reach; trying again is safe")
    else:
        fresh = Unavailable("the heartbeat could not be written with those of other workers; trying again is safe")
    fresh.__cause__ = error
    return fresh
