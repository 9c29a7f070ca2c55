"""Sets aside runs that no worker executes, so that polls need not walk over them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

from kagzi.core.instant import Span
from kagzi.engine.wakeups import Wakeups
from kagzi.store.protocol.duties import Offer
from kagzi.store.protocol.store import Store
from kagzi.store.unserved import LOOKED_AT, MOST_LOOKED_AT

log = logging.getLogger("kagzi.engine")


class Offers(Protocol):
    """What polls here ask for: a worker may ask for more than it has registered."""

    newcomers: int  # how many workers have asked for the first time

    def offers(self) -> Sequence[Offer]: ...


class UnservedLooks:
    """Looks for runs to set aside or to bring back, when `coordinator/duties.py` says so."""

    def __init__(self, store: Store, wakeups: Wakeups, polls: Offers, stale: Span) -> None:
        self._store = store
        self._wakeups = wakeups
        self._polls = polls
        self._stale = stale
        self._limit = LOOKED_AT
        self._left = False  # some were set aside when this process last looked
        self._seen = 0  # newcomers by then

    @property
    def wanted(self) -> bool:
        """Whether a look is worth it: a run may be set aside, perhaps by another process, that a worker executes
        now."""
        return self._left or self._polls.newcomers != self._seen

    async def look(self) -> bool:
        """Returns whether there is more to do at once."""
        seen = self._polls.newcomers
        done = await self._store.duties.set_runs_aside(self._polls.offers(), self._stale, self._limit)
        self._left, self._seen = done.left, seen
        # A look may have to pass what those before it have set aside, until the database has tidied up: few large ones.
        self._limit = min(self._limit * 2, MOST_LOOKED_AT) if done.more else LOOKED_AT
        for queue in done.back:
            self._wakeups.available(queue)
        if done.aside:
            log.debug("%d due runs are set aside: no worker of their queue executes them", done.aside)
        return done.more
