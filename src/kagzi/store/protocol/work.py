"""Work: the writes of runs, and the leases under which they are made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from kagzi.api.operations import WakeAnswer, Write
from kagzi.api.workers import LeaseState, Poll, Polled
from kagzi.core.instant import Span
from kagzi.store.protocol.changes import Applied


class Work(Protocol):
    """What changes runs, and who may drive them.

    Every write made under a lease matches the lease's token in the same statement, under the run's row lock."""

    @property
    def lanes(self) -> int:
        """How many batches may be in flight at once."""
        ...

    async def apply(self, writes: Sequence[Write]) -> Applied:
        """One transaction for the whole batch, one answer for each write, in order.

        Several chunks of one run may be in a batch; they apply in order. Conflicts come back as exceptions in the list;
        only an outage raises, and then nothing (or everything: the connection broke during COMMIT) was applied, and
        repeating the batch is safe.

        Whoever calls this sees it through. The batcher does, in a task of its own; the store may rely on not being
        cancelled.
        """
        ...

    async def claim(self, poll: Poll, lease: Span) -> Polled:
        """Lease up to poll.limit due runs, oldest claim key first, then read their history in a second statement.

        Runs that already carry this poll's token are returned again (a repeated poll).
        """
        ...

    async def wake(self, namespace: str, run_id: str) -> WakeAnswer | None:
        """Makes a run claimable that waits for a moment to come, with a note of what it stood at (`core.wake`) if it
        sleeps. Others stay as they are. None if there is no such run."""
        ...

    async def read_lease(self, namespace: str, run_id: str, token: str, confirm: bool) -> LeaseState | None:
        """The run with this token and its history, read after `confirm` has renewed the lease and marked its claim as
        heard of; None if there is no run with this token."""
        ...

    def lane_of(self, write: Write) -> int:
        """Which lane a write belongs to: all writes of one run under a lease go to one lane, in order."""
        ...
