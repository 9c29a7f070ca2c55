"""Workers: registering, heartbeats, leaving."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from kagzi.api.admin import WorkerFilter
from kagzi.api.workers import Heartbeat, HeartbeatAnswer, Registration
from kagzi.core.instant import Span
from kagzi.core.page import Cursor
from kagzi.core.worker import Worker, WorkerStatus
from kagzi.store.protocol.changes import Recovered


class HeartbeatResult(Struct, frozen=True, kw_only=True):
    """The answer to one heartbeat, and what it changed."""

    answer: HeartbeatAnswer
    released: list[Recovered]  # claims whose answer was lost on the way
    shortest: Span | None  # of the leases renewed


class Workers(Protocol):
    """The workers of a database, the leases they keep, and the runs that go back."""

    async def register(self, registration: Registration) -> None:
        """Registers a worker. Also remembers the types and versions that the worker offers; that locks no run, and
        writes nothing that is known already."""
        ...

    async def heartbeats(self, beats: Sequence[Heartbeat]) -> list[HeartbeatResult]:
        """Renews, for each heartbeat, the listed leases to now + their length, and gives back runs whose claim was lost
        on the way (see Heartbeat). Of two heartbeats from one worker the later one counts.

        A run whose row somebody has locked is not waited for: it is `unrenewed`, and the others are renewed.

        As few statements for all of them as for one. A worker may count as alive although its leases could not be
        renewed: then this raises, and repeating is safe."""
        ...

    async def deregister(self, worker_id: str, namespace: str | None = None) -> list[Recovered]:
        """Marks the worker OFFLINE and gives its runs back, with no attempt counted. With a namespace, here and below:
        nothing happens if the worker is in another one."""
        ...

    async def rows(self, namespace: str) -> list[Worker]:
        """Returns the workers of a namespace as their rows are."""
        ...

    async def get(self, worker_id: str, namespace: str | None, stale: Span) -> Worker | None:
        """Returns a worker, with how many runs it holds."""
        ...

    async def page(self, filter: WorkerFilter, cursor: Cursor | None, limit: int, stale: Span) -> list[Worker]:
        """Returns workers, the newest first, beyond the cursor (see `core.worker.worker_position`), with how many runs
        each holds."""
        ...

    async def drain(self, worker_id: str, namespace: str | None = None) -> bool:
        """Makes an ONLINE worker DRAINING, with an event of that name; returns whether there was one."""
        ...

    async def count(self, namespace: str | None, stale: Span) -> dict[WorkerStatus, int]:
        """Counts workers by status; None counts those of all namespaces."""
        ...

    async def expire(self, limit: int, after: Span) -> list[str]:
        """Marks workers without a heartbeat for `after` OFFLINE, with a LOST event; returns their ids."""
        ...

    async def prune(self, limit: int) -> int:
        """Delete workers that have been OFFLINE for longer than their namespace's retention, events of workers that
        old, and types that none of the workers left has offered for that long; returns how many rows, at most
        `limit`."""
        ...
