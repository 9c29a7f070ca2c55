"""Work: the writes of runs, and the leases under which they are made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from kagzi.api.operations import WakeAnswer, Write
from kagzi.api.workers import LeaseState, Poll, Polled
from kagzi.core.instant import Span
from kagzi.store.protocol.changes import Applied


class Work(Protocol):
    """Writes of runs, claims and leases.

    Every write made under a lease matches the lease's token in the same statement, under the run's row lock."""

    @property
    def lanes(self) -> int:
        """Says how many batches may be in flight at once."""
        ...

    async def apply(self, writes: Sequence[Write]) -> Applied:
        """Writes a batch, and answers each write, in order.

        SQLite does so in one transaction. PostgreSQL writes starts, chunks and signals each together, in as few
        transactions as it can, and every request by itself. Each write is applied whole or not at all. Several chunks
        of one run may be in a batch; they apply in order. Conflicts come back as exceptions in the list; only an outage
        raises, and then anything between nothing and everything was applied, and repeating the batch is safe.

        A write that needs a row which somebody has locked for longer than other writes can wait is answered with
        `Locked`, and so are all behind it that are of the same run. Nothing of them was applied.

        The caller does not cancel this call: the batcher makes it in a task of its own, and the store relies on that.
        """
        ...

    async def apply_patiently(self, writes: Sequence[Write]) -> Applied:
        """Does what `apply` does, for writes that were answered with `Locked`: apart from all others, and waiting for
        half a second. `Locked` then says who holds what they need."""
        ...

    async def claim(self, poll: Poll, lease: Span) -> Polled:
        """Leases up to poll.limit due runs, oldest claim key first, then reads their history in a second statement.

        A repeated poll gets the runs again that it has claimed before.
        """
        ...

    async def wake(self, namespace: str, run_id: str) -> WakeAnswer | None:
        """Makes a run claimable that waits for a moment to come, with a note of what it stood at (`core.wake`) if it
        sleeps. Others stay as they are. None if there is no such run."""
        ...

    async def read_lease(self, namespace: str, run_id: str, token: str, confirm: bool) -> LeaseState | None:
        """Returns the run with this token and its history, read after `confirm` has renewed the lease and marked its
        claim as heard of; None if there is no run with this token."""
        ...

    def lane_of(self, write: Write) -> int:
        """Returns the lane of a write: all writes of one run under a lease go to one lane, in order."""
        ...
