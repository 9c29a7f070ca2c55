"""The polls of one worker for the same queues.

A worker numbers its polls 1, 2, 3, … and has one under way, unless it repeats one whose answer it has not heard.

    poll n, new ──────────▶ were runs born for it since poll n-1? ──yes──▶ ANSWERED with them
                                        │ no
                                        ▼
                                    LOOKING: `dirty`? then claim ──runs──▶ ANSWERED with them
                                     ▲  │ nothing due
                        woken: dirty │  ▼
                                    WAITING, offering its free slots to runs being started
                                        │ runs born ─────────────────────▶ ANSWERED with them
                                        │ time is over, poll n+1 came, the worker left,
                                        │ runs wait for poll n+1 ────────▶ ANSWERED with nothing
                                        ▼
    ANSWERED ─────────────▶ BETWEEN: the slots left are offered for poll n+1
                              poll n+1 within 250 ms takes the runs born; else they are handed back

    poll n, repeated ─────▶ the same answer, if runs born before it were handed out; else it looks again: what the
                            first one claimed is found in the database by the poll's number
    poll below n ─────────▶ a straggler: nothing

`dirty` means that something may be due. It outlives the single poll, so that a worker which has just taken everything
there was need not look again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from kagzi.api.workers import Poll, Polled
from kagzi.core.instant import SECOND, Instant
from kagzi.core.worker import WorkflowType
from kagzi.engine.adopters import Adopters
from kagzi.engine.polls.births import Births, Born, NextBirths
from kagzi.engine.polls.hand_backs import HandBacks
from kagzi.engine.seen_through import seen_through
from kagzi.engine.settings import EngineSettings
from kagzi.store.protocol.changes import Queue
from kagzi.store.protocol.duties import Offer

_MOST_TYPES: Final = 10_000  # that polls of one worker are remembered to ask for
_KEPT_SECONDS: Final = 0.25  # a poll follows the answer to the one before within milliseconds


class Surroundings(Struct, frozen=True):
    """The parts of the engine that the polls of all workers share."""

    claim: Callable[[Poll], Coroutine[Any, Any, Polled]]  # in the database
    claimed: Callable[[tuple[Queue, ...], Polled, str], None]  # told after each claim, with queues and worker
    now: Callable[[], Instant]
    new_token: Callable[[], str]
    adopters: Adopters
    hand_backs: HandBacks
    settings: EngineSettings


class WorkerPolls:
    """A worker's interest in some queues of one namespace, and the answers to its polls for them."""

    def __init__(self, worker_id: str, queues: tuple[Queue, ...], surroundings: Surroundings) -> None:
        self.worker_id = worker_id
        self.queues = queues
        self.left = False  # the worker has left, or has not come for long
        self._around = surroundings
        self._loop = asyncio.get_running_loop()
        self._dirty = True  # something may be due
        self._latest: Poll | None = None
        self._types: tuple[WorkflowType, ...] = ()  # what the latest poll has asked for
        self._offers: set[WorkflowType] = set()  # what any of them has
        self._ending = 0  # slots of runs whose end is being stored, and which the latest poll has counted
        self._under_way = 0
        self._polled_at = self._loop.time()
        self._births: Births | None = None  # of the poll that waits
        self._handed_out: Born | None = None  # runs born before the latest poll came, which are its answer
        self._next: _NextOffer | None = None
        self._waiters: list[asyncio.Future[None]] = []
        self._none_under_way: asyncio.Future[None] | None = None

    @property
    def namespace(self) -> str:
        return self.queues[0][0]

    def unused_since(self, moment: float) -> bool:
        return not self._under_way and self._polled_at < moment

    def offers(self) -> list[Offer]:
        """The workflows that these polls have asked for. A worker that is not ours may ask for different ones in
        turn."""
        return [Offer(*queue, offered.name, offered.version) for queue in self.queues for offered in self._offers]

    def _note_types(self, types: tuple[WorkflowType, ...]) -> None:
        if types != self._types:
            if len(self._offers) > _MOST_TYPES:
                self._offers.clear()
            self._offers.update(types)
        self._types = types

    async def answer(self, poll: Poll) -> Polled:
        came = self._polled_at = self._loop.time()
        if poll.types is not self._types:
            self._note_types(poll.types)
        number = 0 if self._latest is None else self._latest.number
        if poll.number < number:
            return self._nothing()  # a straggler; the worker has long gone on
        if poll.number == number:
            if self._handed_out is not None:
                return self._handed_out.polled(came)
            self._dirty = True  # a repeat: what it claimed the first time is in the database
        else:
            self._latest = poll
            self._ending = poll.ending
            self._handed_out = None
            self._release()  # a poll that still waits has been given up
        self._under_way += 1
        try:
            polled = await self._take_born(poll, came) or await self._look(poll, came)
        finally:
            self._end_poll()
        if self._adopts(poll):
            self._loop.call_soon(self._answered, poll, len(polled.claims))  # the answer goes first
        return polled

    def wake(self) -> None:
        """Lets polls look, because something may be due."""
        self._dirty = True
        self._release()

    def let_go(self) -> None:
        """Notes that the worker has let go of a run. If its latest poll did not count on that, and it polls often, it
        will have one slot more at its next poll."""
        if self._latest is None or not self._adopts(self._latest):
            return
        if self._ending > 0:
            self._ending -= 1
        elif self._under_way or self._loop.time() - self._polled_at < _KEPT_SECONDS:
            self._offer_next(self._latest, 1)

    def leave(self) -> None:
        """Ends polls that wait, since nothing would wake them. Runs born for the next one are handed back."""
        self.left = True
        self.give_up_next()
        self._release()

    async def ended(self) -> None:
        """Returns when no poll is under way."""
        while self._under_way:
            if self._none_under_way is None:
                self._none_under_way = self._loop.create_future()
            await asyncio.shield(self._none_under_way)  # others may wait for the same

    def give_up_next(self) -> None:
        """Hands back the runs that were born for the next poll, which does not come."""
        offer, self._next = self._next, None
        if offer is not None:
            offer.end()
            self._around.hand_backs.begin(offer.births)

    # The life of a poll.

    async def _look(self, poll: Poll, came: float) -> Polled:
        deadline = came + poll.wait / SECOND
        while not self.left:
            if self._dirty:
                polled = await self._claim(poll, came)
                if polled is None or polled.claims:
                    return polled or self._nothing()
            seconds = deadline - self._loop.time()
            if seconds <= 0 or self._latest is None or self._latest.number != poll.number:
                return self._nothing()
            if self._next is not None and self._next.births.number > poll.number and self._next.births.any:
                return self._nothing()  # so that the worker comes for them
            if not self._dirty:
                polled = await self._wait_for_births(poll, seconds, came)
                if polled is not None:
                    return polled
        return self._nothing()

    async def _claim(self, poll: Poll, came: float) -> Polled | None:
        """Claims what is due now. Returns None if the worker has no slot left, because runs were born in them."""
        limit = min(poll.limit, self._around.settings.claim_limit)
        worker = self._around.adopters.attached(poll.namespace, poll.worker_id)
        if worker is not None:
            limit = worker.claimable(limit)
        try:
            if limit <= 0:
                return None
            self._dirty = False
            waited = round((self._loop.time() - came) * SECOND)
            try:
                # To its end: a repeat of this poll, or the worker's leaving, has to find what it has claimed.
                polled = await seen_through(self._around.claim(replace(poll, limit=limit)))
            except BaseException:
                self._dirty = True
                raise
            if len(polled.claims) >= limit or polled.more:
                self.wake()  # there may be more, also for another poll of this worker that waits
            self._around.claimed(self.queues, polled, poll.worker_id)
            return replace(polled, waited=waited)
        finally:
            if worker is not None:
                worker.claimed()

    async def _wait_for_births(self, poll: Poll, seconds: float, came: float) -> Polled | None:
        """Waits until there may be something to claim, or returns runs that were born for this poll."""
        if not self._adopts(poll):
            await self._wait(seconds)
            return None
        if self._births is not None:
            self._births.close()  # this poll is a repeat, and nobody hears the answer to the first
        settings = self._around.settings
        births = self._births = Births(poll, min(poll.limit, settings.claim_limit), settings.lease, self._release)
        withdraw = self._around.adopters.offer(births, self.queues)
        try:
            await self._wait(seconds)
        finally:
            withdraw()
            born = await births.collect()
        return born.polled(came) if born.claims else None

    async def _wait(self, seconds: float) -> None:
        """Returns when the polls are woken or released, or the time is over."""
        waiter: asyncio.Future[None] = self._loop.create_future()
        timer = self._loop.call_later(seconds, _settle, waiter)
        self._waiters.append(waiter)
        try:
            await waiter
        finally:
            timer.cancel()
            self._waiters.remove(waiter)

    def _release(self) -> None:
        """Ends the wait of polls, dirty or not, so that they look at how things stand."""
        for waiter in self._waiters:
            _settle(waiter)

    def _end_poll(self) -> None:
        self._under_way -= 1
        self._polled_at = self._loop.time()
        if not self._under_way and self._none_under_way is not None:
            self._none_under_way.set_result(None)
            self._none_under_way = None

    # Between two polls.

    def _answered(self, poll: Poll, given: int) -> None:
        if self._latest is not None and self._latest.number == poll.number:
            self._offer_next(poll, poll.limit - given)

    def _offer_next(self, poll: Poll, room: int) -> None:
        """Offers so many slots more than this poll was or will be answered with."""
        if self.left or room <= 0 or self._around.hand_backs.closing:
            return
        around, offer = self._around, self._next
        if offer is None:
            following = replace(poll, number=poll.number + 1, token=around.new_token())
            births = NextBirths(following, around.settings.lease, self._release, lambda: self._dirty)
            withdraw = around.adopters.offer(births, self.queues, later=True)
            timer = self._loop.call_later(_KEPT_SECONDS, self.give_up_next)
            offer = self._next = _NextOffer(births, withdraw, timer)
        offer.births.widen(room, around.settings.claim_limit)

    async def _take_born(self, poll: Poll, came: float) -> Polled | None:
        """Returns the runs that were born for this poll before it came."""
        offer = self._next
        if offer is None or poll.number < offer.births.number:
            return None
        if poll.number > offer.births.number:
            self.give_up_next()
            return None
        offer.end()
        try:
            born = await offer.births.collect()
        except asyncio.CancelledError:
            if self._under_way == 1:  # else the poll was repeated, and they are for the repeat
                self.give_up_next()
            raise
        if self._handed_out is not None and self._latest is not None and self._latest.number == poll.number:
            return self._handed_out.polled(came)  # to the same poll, which was repeated
        if self._next is not offer:
            return None  # it was given up meanwhile: what is handed back nobody may drive under this token
        self._next = None
        if not born.claims:
            return None
        # It may have less room than it had: runs that waited in its memory have taken their slots back.
        self._around.hand_backs.give(born.claims[poll.limit :])
        self._handed_out = replace(born, claims=born.claims[: poll.limit])
        return self._handed_out.polled(came)

    def _adopts(self, poll: Poll) -> bool:
        """Whether runs may be born for the polls of this worker. A worker of this process adopts runs without a
        poll."""
        return poll.adopts and self._around.adopters.attached(poll.namespace, poll.worker_id) is None

    def _nothing(self) -> Polled:
        return Polled(now=self._around.now(), claims=())


class _NextOffer:
    """The slots offered to runs for the next poll, and the runs born in them."""

    __slots__ = ("_timer", "_withdraw", "births")

    def __init__(self, births: NextBirths, withdraw: Callable[[], None], timer: asyncio.TimerHandle) -> None:
        self.births = births
        self._withdraw = withdraw
        self._timer = timer

    def end(self) -> None:
        self.births.close()
        self._withdraw()
        self._timer.cancel()


def _settle(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
