"""Group commit: the writes of many callers become durable in one transaction.

While one batch is being written the next one fills; there is no timer and no added delay. An idle batcher
writes a single operation at once: the flush is a task made at the first submit, and since a new task takes
its first step in the next turn of the event loop, everything submitted in this turn shares the commit.

The answers to a batch are given all at once, in one callback of the loop. A caller that is cancelled abandons its reply
and nothing else: the commit goes on, and `settled` hears of it either way.

What can go wrong, and what happens then:
* The database is out of reach (Unavailable). The same batch is repeated, which the store makes harmless, with
  growing pauses; after `patience` its callers get Unavailable. New writes collect meanwhile.
* Anything else is a write no database takes, or a bug. The batch is cut in halves until the culprit is alone,
  so that one bad write never fails another run's.
* Somebody starts many runs with large inputs. Those starts are written beside the rest: after each batch one of at most
  about `_HEAVY_BATCH`, so that nobody else waits behind all of them. Only starts: chunks of a run keep their order.
* A write meets a row that somebody has locked (`Locked`). The others of its batch are written; it goes to the lock lane
  (`lock_lane.py`), as does everything of its run from then on.
* A chunk that failed takes later chunks of the same lease with it, also those still waiting: applied without
  what came before, they would leave a hole in the run's history.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from kagzi.api.operations import Answer, BirthLease, Chunk, StartRun, Write
from kagzi.api.reply import Reply
from kagzi.core.instant import SECOND
from kagzi.engine.answers import (
    CLOSING_PATIENCE,
    Broken,
    Settled,
    after_failure,
    describe,
    give_answers,
    leases_broken,
    refused,
)
from kagzi.engine.lock_lane import LockLane
from kagzi.engine.settings import EngineSettings
from kagzi.errors import Locked, Unavailable
from kagzi.store.protocol.changes import Applied
from kagzi.store.protocol.store import Store

log = logging.getLogger("kagzi.engine")

Apply = Callable[[Sequence[Write]], Awaitable[Applied]]

_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 2.0
_WORTH_A_BATCH: Final = 32  # writes
_HEAVY: Final = 128 * 1024  # bytes of an input
_HEAVY_BATCH: Final = 1024 * 1024
_TRIES: Final = 64  # to find the culprits of a refused batch


class _Batch:
    __slots__ = ("replies", "since", "weight", "writes")

    def __init__(self, since: float) -> None:
        self.writes: list[Write] = []
        self.replies: list[Reply[Any]] = []
        self.weight = 0
        self.since = since


class Batcher:
    """One lane: batches are written one after the other, in the order of their writes."""

    def __init__(
        self,
        apply: Apply,
        *,
        settled: Settled | None = None,
        settings: EngineSettings = EngineSettings(),  # noqa: B008 (frozen)
        jitter: Callable[[], float] = lambda: 0.5,
        locked: LockLane | None = None,
    ) -> None:
        self._apply = apply
        self._give = give_answers(settled)
        self._locked = locked or LockLane(apply, self._give, settings)
        self._locked_runs = self._locked.runs
        self._jitter = jitter
        self._loop = asyncio.get_running_loop()
        self._batch_writes = settings.batch_writes
        self._batch_bytes = settings.batch_bytes
        self._most_batches = max(1, settings.waiting_writes // settings.batch_writes)
        self._patience = settings.patience / SECOND
        self._waiting: deque[_Batch] = deque()
        self._filling: _Batch | None = None
        self._heavy: deque[_Batch] = deque()
        self._heavy_weight = 0
        self._most_heavy = self._most_batches * settings.batch_bytes
        self._after_light = False
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def submit(self, write: Write, weight: int = 0) -> Reply[Any]:
        """Has a write made durable. `weight` is the size of its payloads in bytes."""
        if self._locked_runs and self._locked.known(write) and not self._closed:
            behind: Reply[Any] = Reply()
            self._locked.add(write, behind, self._loop.time())
            return behind
        if weight > _HEAVY and isinstance(write, StartRun):
            batch = self._heavy_batch(weight)
            if batch is None:
                return self._refuse(write)
        elif (
            (batch := self._filling) is None
            or len(batch.writes) >= self._batch_writes
            or batch.weight >= self._batch_bytes
        ):
            if self._closed or len(self._waiting) >= self._most_batches:
                return self._refuse(write)
            batch = self._open_batch()
        reply: Reply[Any] = Reply()
        batch.writes.append(write)
        batch.replies.append(reply)
        batch.weight += weight
        return reply

    def close_batch(self) -> None:
        """Starts a new batch for the next writes, if the one that fills has enough and fewer than two wait: the senders
        of the first go on while the second is written."""
        if self._filling is not None and len(self._filling.writes) >= _WORTH_A_BATCH and len(self._waiting) < 2:
            self._filling = None

    async def close(self) -> None:
        """Refuse new writes and wait for those already here."""
        self._closed = True
        self._patience = min(self._patience, CLOSING_PATIENCE)
        self._filling = None
        while self._task is not None:
            await asyncio.wait([self._task])
        await self._locked.close()
        await asyncio.sleep(0)  # the last answers are given in this turn

    def _open_batch(self) -> _Batch:
        batch = self._filling = _Batch(self._loop.time())
        self._waiting.append(batch)
        self._begin()
        return batch

    def _heavy_batch(self, weight: int) -> _Batch | None:
        """Returns where a large start goes; None if too many wait."""
        if self._closed or self._heavy_weight >= self._most_heavy:
            return None
        self._heavy_weight += weight
        if not self._heavy or self._heavy[-1].weight >= _HEAVY_BATCH:
            self._heavy.append(_Batch(self._loop.time()))
            self._begin()
        return self._heavy[-1]

    def _begin(self) -> None:
        if self._task is None:
            self._task = self._loop.create_task(self._drain(), name="kagzi-batcher")

    def _next(self) -> _Batch:
        """Returns what is written now: large starts take turns with everything else."""
        if self._heavy and (self._after_light or not self._waiting):
            self._after_light = False
            batch = self._heavy.popleft()
            self._heavy_weight -= batch.weight
            return batch
        self._after_light = True
        batch = self._waiting.popleft()
        if batch is self._filling:
            self._filling = None
        return batch

    def _refuse(self, write: Write) -> Reply[Any]:
        reason = "the engine is closed" if self._closed else "too many writes are waiting for the database"
        batch = _Batch(0.0)
        batch.writes.append(write)
        batch.replies.append(Reply())
        self._give(batch.writes, batch.replies, Applied([Unavailable(f"{reason}; nothing was written")], []))
        return batch.replies[0]

    async def _drain(self) -> None:
        batch: _Batch | None = None
        try:
            while self._waiting or self._heavy:
                batch = self._next()
                applied = await self._write(batch.writes, batch.since, [_TRIES])
                kinds = set(map(type, applied.answers))
                if Locked in kinds:
                    applied = self._set_aside(batch, applied)
                # Not here, inside a task, and not before the next batch is under way.
                self._loop.call_soon(self._give, batch.writes, batch.replies, applied)
                failed = any(issubclass(kind, Exception) for kind in kinds)
                broken = leases_broken(batch.writes, applied.answers) if failed else None
                batch = None
                if broken:
                    self._fail_followers(broken)
        finally:
            # Reached with work left only when the loop itself is shut down: nobody may be left waiting.
            self._task = None
            self._filling = None
            stopped = Unavailable("the engine was stopped while writing")
            for left in [*([batch] if batch else []), *self._waiting, *self._heavy]:
                self._give(left.writes, left.replies, refused(left.writes, stopped))
            self._waiting.clear()
            self._heavy.clear()
            self._heavy_weight = 0

    async def _write(self, writes: list[Write], since: float, tries: list[int]) -> Applied:
        """Writes a batch; returns the answer to each write, errors among them."""
        pause = _FIRST_PAUSE
        while writes:
            try:
                applied = await self._apply(writes)
                if len(applied.answers) != len(writes):
                    raise AssertionError(f"{len(applied.answers)} answers to {len(writes)} writes")
                return applied
            except Unavailable as error:
                waited = self._loop.time() - since
                if waited >= self._patience:
                    log.error("%s; giving up on %d writes after %.0f s", _trouble(error), len(writes), waited)
                    return refused(writes, error)
                if pause == _FIRST_PAUSE:
                    log.warning("%s (%s); repeating %d writes", _trouble(error), error, len(writes))
            except Exception as error:
                tries[0] -= 1
                if len(writes) > 1 and tries[0] > 0:
                    return await self._write_apart(writes, since, tries)
                log.exception("a batch of %d was refused: %s", len(writes), describe(writes[0]))
                return refused(writes, error)
            await asyncio.sleep(pause * (0.5 + self._jitter()))
            pause = min(pause * 2, _LONGEST_PAUSE)
        return Applied([], [])

    async def _write_apart(self, writes: list[Write], since: float, tries: list[int]) -> Applied:
        middle = len(writes) // 2
        first = await self._write(writes[:middle], since, tries)
        behind: dict[tuple[str, str], Exception] = {
            (write.run_id, write.token): answer if isinstance(answer, Locked) else after_failure()
            for write, answer in zip(writes[:middle], first.answers, strict=True)
            if isinstance(answer, Exception) and isinstance(write, Chunk)
        }
        answers: list[Answer | None] = [None] * (len(writes) - middle)
        fine: list[int] = []
        for index, write in enumerate(writes[middle:]):
            if behind and isinstance(write, Chunk) and (failure := behind.get((write.run_id, write.token))):
                answers[index] = failure
            else:
                fine.append(index)
        second = await self._write([writes[middle + i] for i in fine], since, tries)
        for index, answer in zip(fine, second.answers, strict=True):
            answers[index] = answer
        first.add(Applied([answer for answer in answers if answer is not None], second.woken))
        return first

    def _set_aside(self, batch: _Batch, applied: Applied) -> Applied:
        """Moves what was found locked to the lock lane, and what waits here behind it; returns the other answers."""
        locked = [isinstance(answer, Locked) for answer in applied.answers]
        self._move(batch, locked)
        for waiting in (*self._waiting, *self._heavy):
            self._move(waiting, [self._locked.known(write) for write in waiting.writes])
        others = [answer for answer, moves in zip(applied.answers, locked, strict=True) if not moves]
        return Applied(others, applied.woken)

    def _move(self, batch: _Batch, locked: list[bool]) -> None:
        """Moves these writes of a batch to the lock lane."""
        if not any(locked):
            return
        writes, replies = batch.writes, batch.replies
        batch.writes, batch.replies = [], []
        for write, reply, moves in zip(writes, replies, locked, strict=True):
            if moves:
                self._locked.add(write, reply, batch.since)
            else:
                batch.writes.append(write)
                batch.replies.append(reply)

    def _fail_followers(self, broken: Broken) -> None:
        for batch in self._waiting:
            lost = [
                index
                for index, write in enumerate(batch.writes)
                if isinstance(write, Chunk) and (write.run_id, write.token) in broken
            ]
            if lost:
                failed = _Batch(batch.since)
                for index in reversed(lost):
                    failed.writes.append(batch.writes.pop(index))
                    failed.replies.append(batch.replies.pop(index))
                answers = Applied([after_failure() for _ in lost], [])
                self._loop.call_soon(self._give, failed.writes, failed.replies, answers)


class Lanes:
    """As many batchers as the store takes batches at once; writes of one run keep to one of them."""

    def __init__(
        self,
        store: Store,
        *,
        settled: Settled,
        settings: EngineSettings,
        jitter: Callable[[], float],
        withhold: Callable[[BirthLease], None],
    ) -> None:
        self._lane_of = store.work.lane_of
        locked = LockLane(store.work.apply_patiently, give_answers(settled), settings, withhold)
        self._batchers = [
            Batcher(store.work.apply, settled=settled, settings=settings, jitter=jitter, locked=locked)
            for _ in range(max(1, store.work.lanes))
        ]
        if len(self._batchers) == 1:
            self.submit = self._batchers[0].submit  # type: ignore[method-assign]

    def submit(self, write: Write, weight: int = 0) -> Reply[Any]:
        return self._batchers[self._lane_of(write)].submit(write, weight)

    def close_batch(self) -> None:
        for batcher in self._batchers:
            batcher.close_batch()

    async def close(self) -> None:
        for batcher in self._batchers:
            await batcher.close()


def _trouble(error: Unavailable) -> str:
    return "a lock holds up all writes" if isinstance(error, Locked) else "the database is out of reach"
