"""The load of a whole installation, as gauges show it: how much waits, and which workers there are."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from kagzi.core.instant import Instant
from kagzi.core.worker import WorkerStatus

MOST_QUEUES: Final = 10_000  # that a load tells of
QUEUES_OF_NAMESPACE: Final = 100  # of them, so that no tenant takes the place of another
MOST_NAMESPACES: Final = 1_000


class QueueLoad(Struct, frozen=True, kw_only=True):
    """The runs of one queue that could be claimed now."""

    namespace: str
    task_queue: str
    ready: int  # of at most as many as the store counts
    oldest_due_at: Instant | None  # since when the one that has waited longest could have been claimed


class WorkerLoad(Struct, frozen=True, kw_only=True):
    """The workers of one namespace that stand alike."""

    namespace: str
    status: WorkerStatus
    workers: int
    slots: int  # all of theirs together


class Load(Struct, frozen=True, kw_only=True):
    now: Instant
    queues: tuple[QueueLoad, ...]  # those in which anything waits, due or not
    workers: tuple[WorkerLoad, ...]
    running: dict[str, int]  # leased runs by namespace

    def counted(self, namespace: str) -> bool:
        """Whether a queue of the namespace that is not among `queues` is known to be empty. Else nothing is known."""
        if len(self.queues) >= MOST_QUEUES:
            return False
        return sum(each.namespace == namespace for each in self.queues) < QUEUES_OF_NAMESPACE
