"""Runs born for the poll that a worker makes next (see `births.py`).

While an answer is on its way the worker still has the room that is left, and every run it lets go of makes room for
another. A run that is started then is born leased to its next poll, and waits here for it: who starts a run when
another has ended finds the place of that one free. A worker whose loop is busy, which tries a suspect alone or has left
does not come soon: after a while what was born for it is handed back.

The token of these runs is ours, and nobody knows it before they are handed out: so we cannot take them from a worker
that has moved to another server. If the answer is lost, repeating the poll here brings it again; elsewhere the next
heartbeat, which has heard of the poll and does not list the runs, gives them back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Final

from msgspec.structs import replace

from kagzi.api.operations import Chunk, HandBackRun
from kagzi.api.reply import Reply
from kagzi.api.workers import Claim, Poll, Polled
from kagzi.engine.births import NextBirths
from kagzi.engine.driven import Driven
from kagzi.engine.settings import EngineSettings
from kagzi.engine.wakeups import Watch

_KEPT_SECONDS: Final = 0.25  # a poll follows the answer to the one before within milliseconds


class NextPolls:
    def __init__(
        self,
        submit: Callable[[Chunk], Reply[Any]],
        driven: Driven,
        new_token: Callable[[], str],
        settings: EngineSettings,
    ) -> None:
        self._submit = submit
        self._new_token = new_token
        self._driven = driven
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._offers: dict[Watch, _Offer] = {}
        self._handing_back: set[asyncio.Task[None]] = set()
        self._closed = False

    def offer(self, poll: Poll, watch: Watch, room: int) -> None:
        """The worker has room for so many runs more than this poll was or will be answered with."""
        if self._closed or watch.forgotten or room <= 0:
            return
        offer = self._offers.get(watch)
        if offer is None:
            following = replace(poll, number=poll.number + 1, token=self._new_token())
            births = NextBirths(following, self._settings.lease, watch)
            withdraw = self._driven.offer(births, watch.queues, later=True)
            timer = self._loop.call_later(_KEPT_SECONDS, self.give_up, watch)
            offer = self._offers[watch] = _Offer(births, withdraw, timer)
        offer.births.widen(room, self._settings.claim_limit)

    def let_go(self, poll: Poll, watch: Watch) -> None:
        """The worker has let go of a run. If its latest poll did not count on that, and it comes often, it has a place
        more when it comes next."""
        if watch.ending > 0:
            watch.ending -= 1
        elif watch.polls or self._loop.time() - watch.polled_at < _KEPT_SECONDS:
            self.offer(poll, watch, 1)

    def awaits(self, poll: Poll, watch: Watch) -> bool:
        """Whether runs wait for the poll that follows this one."""
        offer = self._offers.get(watch)
        return offer is not None and offer.births.number > poll.number and offer.births.any

    async def take(self, poll: Poll, watch: Watch) -> Polled | None:
        """What was born for this poll before it came."""
        offer = self._offers.get(watch)
        if offer is None or poll.number < offer.births.number:
            return None
        if poll.number > offer.births.number:
            self.give_up(watch)
            return None
        offer.end()
        try:
            now, claims = await offer.births.collect()
        except asyncio.CancelledError:
            if watch.polls == 1:  # else the poll was repeated, and they are for the repeat
                self.give_up(watch)
            raise
        if watch.handed_out is not None and watch.number == poll.number:
            return watch.handed_out  # to the same poll, which was repeated
        if self._offers.get(watch) is not offer:
            return None  # it was given up meanwhile: what is handed back nobody may drive under this token
        del self._offers[watch]
        if not claims:
            return None
        # It may have less room than it had: runs that waited in its memory have taken their slots back.
        self._give_back(claims[poll.limit :])
        watch.handed_out = Polled(now=now, claims=claims[: poll.limit])
        return watch.handed_out

    def give_up(self, watch: Watch) -> None:
        """This worker does not come."""
        offer = self._offers.pop(watch, None)
        if offer is not None:
            offer.end()
            self._begin_to_hand_back(offer.births)

    async def close(self) -> None:
        """Offer nothing more, and hand back what nobody has come for."""
        self._closed = True
        for watch in list(self._offers):
            self.give_up(watch)
        if self._handing_back:
            await asyncio.wait(list(self._handing_back))

    def _begin_to_hand_back(self, births: NextBirths) -> None:
        if births.any:
            task = self._loop.create_task(self._hand_back(births), name="kagzi-hand-back")
            self._handing_back.add(task)
            task.add_done_callback(self._handing_back.discard)

    async def _hand_back(self, births: NextBirths) -> None:
        _, claims = await births.collect()
        self._give_back(claims)

    def _give_back(self, claims: Iterable[Claim]) -> None:
        for claim in claims:
            back = (HandBackRun(),)
            # Whatever the answer is: should it be an error, the lease ends.
            self._submit(Chunk(namespace=claim.namespace, run_id=claim.run_id, token=claim.token, operations=back))


class _Offer:
    __slots__ = ("_timer", "_withdraw", "births")

    def __init__(self, births: NextBirths, withdraw: Callable[[], None], timer: asyncio.TimerHandle) -> None:
        self.births = births
        self._withdraw = withdraw
        self._timer = timer

    def end(self) -> None:
        self.births.close()
        self._withdraw()
        self._timer.cancel()
