"""The inbox of a run, as its attempt knows it and reads what is new in it.

The inbox has a number that grows with everything that arrives. An attempt parks its run only when it has looked for all
that its workflow waits for up to that number; what arrives later makes the engine decline the park.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from kagzi.api.workers import INBOX_READ, Claim, Inbox
from kagzi.errors import KagziError, LeaseLost

if TYPE_CHECKING:
    from kagzi.sdk.worker.worker import Worker

logger = logging.getLogger("kagzi.worker")

_AGAIN_SECONDS: Final = 1.0


class News:
    """`arrived` is called with what was read, `lost` if the run is not held any more; both from plain callbacks."""

    def __init__(
        self, worker: Worker, claim: Claim, arrived: Callable[[Inbox], None], lost: Callable[[str], None]
    ) -> None:
        self.seq = claim.inbox_seq  # how far the inbox is known to go
        self.reading = False
        self._worker = worker
        self._claim = claim
        self._arrived = arrived
        self._lost = lost
        self._looked: dict[str, int] = {}  # by name of a signal: up to which number none is left to be read
        self._looked_for_all = 0 if claim.inbox is None else claim.inbox_seq  # the same for names that are not there
        self._looked_for_children = claim.inbox_seq  # the same for outcomes, of which a claim brings all
        self.unknown = False  # something has arrived, and its number is not known

    def hear(self, seq: int) -> bool:
        """Takes note of how far the inbox goes, 0 if that is not known; returns whether that is news."""
        if seq == 0:
            self.unknown = True
            return True
        if seq <= self.seq:
            return False
        self.seq = seq
        return True

    def read(
        self, names: Sequence[str], *, afresh: bool = False, children: bool = False, reconcile: bool = False
    ) -> bool:
        """Reads the signals of these names that have arrived and were not read yet, and outcomes of children if the
        workflow waits for any; `afresh` also if nobody has said that there are any. Returns whether it is under way:
        `arrived` is called when it has ended. `reconcile`: look for children that have ended without a word, too."""
        if self.reading:
            return True
        afresh = afresh or self.unknown
        wanted = [name for name in names if afresh or self._looked.get(name, self._looked_for_all) < self.seq]
        children = children and (afresh or reconcile or self._looked_for_children < self.seq)
        if not wanted and not children and not self.unknown:
            return False
        self.reading, self.unknown = True, False
        reading = self._read(wanted, children, reconcile)
        task = self._worker.loop.create_task(reading, name="kagzi-read-inbox")
        task.add_done_callback(lambda done: self._ended(done, wanted, children))
        return True

    async def _read(self, names: Sequence[str], children: bool, reconcile: bool) -> Inbox | None:
        """Returns what has arrived; None if the run is not held any more. Repeated until the engine answers."""
        claim = self._claim
        while True:
            try:
                read = self._worker.read_inbox
                if not children:
                    return await read(claim.namespace, claim.run_id, claim.token, names)
                return await read(claim.namespace, claim.run_id, claim.token, names, children=True, reconcile=reconcile)
            except LeaseLost:
                return None
            except KagziError as error:
                logger.debug("reading the inbox of run %s failed: %s", claim.run_id, error)
                await asyncio.sleep(_AGAIN_SECONDS)

    def _ended(self, task: asyncio.Task[Inbox | None], names: Sequence[str], children: bool) -> None:
        self.reading = False
        if task.cancelled():
            return
        inbox = task.result()
        if inbox is None:
            self._lost("its lease was lost")
            return
        self.seq = max(self.seq, inbox.inbox_seq)
        if len(inbox.signals) < INBOX_READ:
            self._looked.update(dict.fromkeys(names, inbox.inbox_seq))
        if children:
            self._looked_for_children = inbox.inbox_seq
        self._arrived(inbox)
