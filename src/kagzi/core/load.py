"""The load of a whole installation, as gauges show it: how much waits, and which workers there are."""

from __future__ import annotations

from msgspec import Struct

from kagzi.core.instant import Instant
from kagzi.core.worker import WorkerStatus


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
