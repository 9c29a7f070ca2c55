"""Runs born under a lease of a poll.

A worker in another process has said how many runs it has room for, and waits. A run that is started meanwhile need not
be queued, announced, found and claimed: it is inserted RUNNING, leased to the waiting poll, and is its answer.

The lease is the one a claim would have given: the token is made of the poll's, and the run remembers the poll's number.
So if the answer is lost, repeating the poll finds the run, and a heartbeat which has heard of the poll and does not
list the run gives it back.

Between two polls a worker still has free slots: those its last poll did not fill, and those freed by runs that ended
since. A run started in that gap is born for the worker's next poll (`NextBirths`) and kept until that poll arrives. Its
token is made here and known to nobody before it is handed out: so such runs cannot be taken from a worker that has
moved to another server. If the answer is lost, repeating the poll here brings it again; elsewhere the next heartbeat,
which has heard of the poll and does not list the runs, gives them back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from msgspec import Struct

from kagzi.api.operations import BirthLease, StartRun
from kagzi.api.workers import Claim, Poll, Polled
from kagzi.core.instant import SECOND, Instant, Span
from kagzi.engine.seen_through import seen_through

_FIRST_CLAIM = "00000001"  # what the token of a run's first claim begins with


class Born(Struct, frozen=True):
    """Runs that were born for a poll."""

    now: Instant  # the database's time when the first of them was
    since: float  # by the loop's clock, when a place was first kept: the database was asked later than that
    claims: tuple[Claim, ...]

    def polled(self, came: float) -> Polled:
        """Returns the answer to the poll, which came at this time of the loop."""
        return Polled(now=self.now, claims=self.claims, waited=round((self.since - came) * SECOND))


class Births:
    """An `Adopter` for one poll, for as long as it waits; `arrived` is called with the first run."""

    def __init__(self, poll: Poll, limit: int, lease: Span, arrived: Callable[[], None]) -> None:
        self.number = poll.number
        self._worker_id = poll.worker_id
        self._token = _FIRST_CLAIM + poll.token[8:]
        self._types = {(offered.name, offered.version) for offered in poll.types}
        self._room = limit
        self._lease = lease
        self._reserved = 0
        self._claims: dict[str, Claim] = {}
        self._now: Instant = 0
        self._since = 0.0
        self._loop = asyncio.get_running_loop()
        self._arrived = arrived
        self._settled: asyncio.Future[None] | None = None

    def reserve(self, start: StartRun) -> BirthLease | None:
        if self._room <= self._reserved + len(self._claims) or self._refuses():
            return None
        types = self._types
        if (start.workflow_type, None) not in types and (start.workflow_type, start.version) not in types:
            return None
        # Not anew for a later one: a start is sent again if its answer was lost, and its run was born before.
        self._since = self._since or self._loop.time()
        self._reserved += 1
        length = self._lease if start.lease_length is None else start.lease_length
        return BirthLease(worker_id=self._worker_id, token=self._token, length=length, poll=self.number)

    def adopt(self, claim: Claim, now: Instant) -> None:
        self._claims[claim.run_id] = claim  # by run: a start that was sent twice is born once, and told of twice
        # Of several the earliest: the worker counts all leases from there.
        self._now = now if self._now == 0 else min(self._now, now)
        self._arrived()
        self._settle()

    def decline(self, lease: BirthLease) -> None:  # noqa: ARG002 (they are all alike)
        self._settle()

    def close(self) -> None:
        """Refuses further runs."""
        self._room = 0

    async def collect(self) -> Born:
        """Closes, and returns the runs once none is being stored any more. A caller that is cancelled meanwhile waits
        for that, too: so nothing is born for a worker after it has left."""
        self.close()
        if self._reserved:
            await seen_through(self._all_settled())
        return Born(self._now, self._since, tuple(self._claims.values()))

    def _refuses(self) -> bool:
        """Returns whether no further run is taken: with the first one this poll is about to be answered."""
        return bool(self._claims)

    async def _all_settled(self) -> None:
        while self._reserved:
            if self._settled is None:
                self._settled = self._loop.create_future()
            await asyncio.shield(self._settled)  # a repeated poll waits for the same

    def _settle(self) -> None:
        self._reserved -= 1
        if self._reserved == 0 and self._settled is not None:
            self._settled.set_result(None)
            self._settled = None


class NextBirths(Births):
    """Takes births as `Births` does, for the worker's next poll.

    Refuses runs while queued work `may_be_due`: that goes first. If the poll before it still waits, a birth ends it
    (`arrived`), so that the worker polls again at once.
    """

    def __init__(self, poll: Poll, lease: Span, arrived: Callable[[], None], may_be_due: Callable[[], bool]) -> None:
        super().__init__(poll, 0, lease, arrived)
        self._may_be_due = may_be_due

    @property
    def any(self) -> bool:
        return bool(self._claims) or self._reserved > 0

    def widen(self, room: int, most: int) -> None:
        self._room = min(self._room + room, most)

    def _refuses(self) -> bool:
        return self._may_be_due()
