"""The lock lane: writes that wait for a row which somebody has locked, beside all others.

A batch answers such a write with `Locked`, and it comes here with those of the same run that wait behind it. From then
on every write of that run goes here directly, so that they stay in order and no batch meets the lock again.

    batcher ──Locked──▶ waits here ──apply_patiently──▶ written: later writes of the run go to the batchers again
                            ▲             │ Locked
                            └─────────────┘ until the patience of the write is over: Unavailable, which names the holder

What came here together is tried together once, since most locks are those of a commit that takes a moment; after that
each run is tried by itself, until its patience is over. A few attempts are under way at once, and always one fewer of
one namespace, so that a tenant who locks many of its runs does not keep another waiting here.

A start gives up the place that a worker has kept for it (`withhold`): that worker is not to wait, too, and with it the
other runs that it was given.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from math import inf
from typing import Any, Final

from msgspec.structs import replace

from kagzi.api.operations import BirthLease, Chunk, RepeatRun, StartRun, Write
from kagzi.api.reply import Reply
from kagzi.core.instant import SECOND
from kagzi.engine.answers import (
    CLOSING_PATIENCE,
    GiveAnswers,
    after_failure,
    describe,
    refused,
)
from kagzi.engine.settings import EngineSettings
from kagzi.errors import Locked, Unavailable
from kagzi.store.protocol.changes import Applied

log = logging.getLogger("kagzi.engine")

Key = tuple[str, str]  # namespace, and what of it is locked
Apply = Callable[[Sequence[Write]], Awaitable[Applied]]

ATTEMPTS: Final = 3  # under way at once
_MOST: Final = 10_000  # writes that wait here; of one namespace half as many
_TOGETHER: Final = 500  # writes
_PAUSE: Final = 0.02  # seconds between two attempts at the same
_REMEMBERED: Final = 10.0  # seconds for which a run counts as locked after the last caller has gone
_SHARED: Final = 0.2  # seconds for which those wait who are answered together with what is locked
_LOGGED_EVERY: Final = 10.0  # seconds, of a run
_MOST_LINES: Final = 5  # in that time, of all runs: one lock may hold up thousands


def key_of(write: Write) -> Key:
    """Returns what a write may have to wait for: a run, or the id or the key by which it is found."""
    if type(write) is StartRun:
        if write.debounce is not None:
            return write.namespace, f"{write.workflow_type}\0{write.debounce.key}"
        return write.namespace, write.external_id or write.run_id
    if type(write) is RepeatRun:
        return write.namespace, write.of_run_id
    return write.namespace, write.run_id


class _Waiting:
    """The writes of one run that wait here, in order."""

    __slots__ = ("alone", "key", "logged", "met", "replies", "since", "under_way", "writes")

    def __init__(self, key: Key) -> None:
        self.key = key
        self.writes: list[Write] = []
        self.replies: list[Reply[Any]] = []
        self.since: list[float] = []  # when each was handed in
        self.alone = False  # it was found locked in an attempt with others
        self.under_way = False
        self.met = -inf  # when it was last found locked
        self.logged = -inf

    def add(self, write: Write, reply: Reply[Any], since: float) -> None:
        self.writes.append(write)
        self.replies.append(reply)
        self.since.append(since)

    def is_tried_with_others(self, overdue: float) -> bool:
        return not self.alone or self.since[0] <= overdue

    def drop(self, places: set[int]) -> None:
        self.writes = [each for place, each in enumerate(self.writes) if place not in places]
        self.replies = [each for place, each in enumerate(self.replies) if place not in places]
        self.since = [each for place, each in enumerate(self.since) if place not in places]


class LockLane:
    """Writes what is locked as soon as it is not. `runs` are those that are known to be; what is among them belongs
    here."""

    def __init__(
        self,
        apply: Apply,
        give: GiveAnswers,
        settings: EngineSettings,
        withhold: Callable[[BirthLease], None] = lambda _: None,
    ) -> None:
        self._apply = apply
        self._give = give
        self._withhold = withhold
        self._loop = asyncio.get_running_loop()
        self._patience = settings.lock_patience / SECOND
        self.runs: dict[Key, _Waiting] = {}
        self._ready: dict[str, deque[_Waiting]] = {}  # by namespace; the one whose turn it is comes first
        self._tasks: dict[asyncio.Task[None], str] = {}  # attempts under way, and their namespaces
        self._count: dict[str, int] = {}  # writes that wait, by namespace
        self._logged = -inf  # when the lines of the log began that are counted now
        self._lines = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def known(self, write: Write) -> bool:
        """Returns whether this write belongs here."""
        return key_of(write) in self.runs

    def add(self, write: Write, reply: Reply[Any], since: float) -> None:
        """Takes a write that was answered with `Locked`, or is behind one."""
        key = key_of(write)
        count = self._count.get(key[0], 0)
        if count >= _MOST // 2 or sum(self._count.values()) >= _MOST:
            too_many = Unavailable("too many writes wait for locked rows; nothing was written")
            self._give([write], [reply], Applied([too_many], []))
            return
        if type(write) is StartRun and write.lease is not None:
            self._withhold(write.lease)
            write = replace(write, lease=None)
        waiting = self.runs.get(key)
        if waiting is None:
            waiting = self.runs[key] = _Waiting(key)
        if not waiting.writes and not waiting.under_way:
            self._make_ready(waiting)
        waiting.add(write, reply, since)
        self._loop.call_later(_SHARED, self._let_others_go, waiting, reply)
        self._count[key[0]] = count + 1
        self._idle.clear()

    async def close(self) -> None:
        """Waits for what is here, for a moment."""
        self._patience = min(self._patience, CLOSING_PATIENCE)
        await self._idle.wait()
        self.runs.clear()

    def _make_ready(self, waiting: _Waiting) -> None:
        self._ready.setdefault(waiting.key[0], deque()).append(waiting)
        self._loop.call_soon(self._begin)  # with others that come in this turn

    def _begin(self) -> None:
        while len(self._tasks) < ATTEMPTS and (group := self._next()):
            task = self._loop.create_task(self._attempt(group), name="kagzi-lock-lane")
            self._tasks[task] = group[0].key[0]
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        self._begin()

    def _next(self) -> list[_Waiting]:
        """Returns what is tried now, of one namespace: one run that was tried before, or together all that were not and
        those whose patience is over, as each by itself would wait for the attempts of all others."""
        overdue = self._loop.time() - self._patience
        busy = list(self._tasks.values())
        for namespace in [*self._ready]:
            if busy.count(namespace) >= ATTEMPTS - 1:
                continue
            ready = self._ready.pop(namespace)
            group = [ready.popleft()]
            count = len(group[0].writes)
            while (
                ready
                and group[-1].is_tried_with_others(overdue)
                and ready[0].is_tried_with_others(overdue)
                and (count := count + len(ready[0].writes)) <= _TOGETHER
            ):
                group.append(ready.popleft())
            if ready:
                self._ready[namespace] = ready  # behind all others
            return group
        return []

    async def _attempt(self, group: list[_Waiting]) -> None:
        counts = []
        writes: list[Write] = []
        for waiting in group:
            waiting.under_way = True
            counts.append(len(waiting.writes))
            writes += waiting.writes
        try:
            applied = await self._apply(writes)
        except Unavailable as error:
            applied = refused(writes, error if isinstance(error, Locked) else Locked(str(error)))
        except Exception as error:
            log.exception("a write that waited for a lock was refused: %s", describe(writes[0]))
            # Of several nobody knows which one it was.
            applied = refused(writes, Locked(str(error)) if len(group) > 1 else error)
        except BaseException:
            stopped = Unavailable("the engine was stopped while writing")
            for waiting in group:
                self._settle(waiting, refused(waiting.writes, stopped).answers, [])
            raise
        answers = iter(applied.answers)
        woken = applied.woken
        for waiting, count in zip(group, counts, strict=True):
            self._settle(waiting, [next(answers) for _ in range(count)], woken, certain=len(group) == 1)
            woken = []

    def _settle(self, waiting: _Waiting, answers: list[Any], woken: list[Any], *, certain: bool = False) -> None:
        """Answers what was written or has waited for too long; the rest has another turn. The log is told who holds the
        lock if that is certain: of several that were tried together it may be that of another."""
        now = self._loop.time()
        waiting.under_way = False
        locked = next((answer for answer in answers if isinstance(answer, Locked)), None)
        if locked is not None:
            waiting.alone = True
            waiting.met = now
            if certain:
                self._tell(waiting, locked, now)
            answers = [
                answer if not isinstance(answer, Locked) else self._verdict(waiting, place, answer, now)
                for place, answer in enumerate(answers)
            ]
        # What follows a chunk that is still locked hears of the lock, too, so that its worker keeps the run.
        broken = {
            (write.run_id, write.token): answer if isinstance(answer, Locked) else after_failure()
            for write, answer in zip(waiting.writes, answers, strict=False)
            if isinstance(answer, Exception) and isinstance(write, Chunk)
        }
        answers += [None] * (len(waiting.writes) - len(answers))  # those came while it was tried
        for place, write in enumerate(waiting.writes if broken else ()):
            if answers[place] is None and isinstance(write, Chunk):
                answers[place] = broken.get((write.run_id, write.token))
        done = {place for place, answer in enumerate(answers) if answer is not None}
        writes = [waiting.writes[place] for place in sorted(done)]
        replies = [waiting.replies[place] for place in sorted(done)]
        waiting.drop(done)
        self._counted(waiting.key[0], len(done))
        if waiting.writes:
            self._loop.call_later(_PAUSE if locked is not None else 0, self._make_ready, waiting)
        elif locked is None:
            del self.runs[waiting.key]
        else:
            self._loop.call_later(_REMEMBERED, self._forget, waiting)
        if done:
            applied = Applied([answers[place] for place in sorted(done)], woken)
            self._loop.call_soon(self._give, writes, replies, applied)

    def _let_others_go(self, waiting: _Waiting, reply: Reply[Any]) -> None:
        """Answers a write with which others are answered, so that these are not kept. Its sender sends it again, alone;
        it stays here all the same."""
        for place, each in enumerate(waiting.replies):
            if each is reply and reply.shared:
                waiting.replies[place] = Reply()
                reply.settle(Locked(f"run {waiting.writes[place].run_id} waits for a lock; trying again is safe"))

    def _verdict(self, waiting: _Waiting, place: int, answer: Locked, now: float) -> Unavailable | None:
        """Returns the answer to a write that is still locked; None if it goes on waiting."""
        if now - waiting.since[place] < self._patience:
            return None
        return Locked(f"run {waiting.writes[place].run_id} waits for a lock: {answer}")

    def _tell(self, waiting: _Waiting, locked: Locked, now: float) -> None:
        if now - waiting.logged >= _LOGGED_EVERY:
            waiting.logged = now
            if now - self._logged >= _LOGGED_EVERY:
                self._logged, self._lines = now, 0
            self._lines += 1
            if self._lines > _MOST_LINES:
                return
            log.warning(
                "run %s has waited %.1f s for a lock, and %d writes of it with it; of its namespace %d wait: %s",
                waiting.writes[0].run_id,
                now - waiting.since[0],
                len(waiting.writes),
                self._count[waiting.key[0]],
                locked,
                extra={"namespace": waiting.key[0], "run_id": waiting.writes[0].run_id},
            )

    def _counted(self, namespace: str, gone: int) -> None:
        if not gone:
            return
        left = self._count[namespace] - gone
        if left:
            self._count[namespace] = left
            return
        del self._count[namespace]
        if not self._count:
            self._idle.set()

    def _forget(self, waiting: _Waiting) -> None:
        known = self.runs.get(waiting.key) is waiting  # not another lock of the same run, met since
        if known and not waiting.writes and self._loop.time() >= waiting.met + _REMEMBERED - 0.01:
            del self.runs[waiting.key]
