"""A worker: a process that claims runs and drives them."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from kagzi.core.instant import Instant


class WorkerStatus(StrEnum):
    ONLINE = "ONLINE"
    DRAINING = "DRAINING"
    OFFLINE = "OFFLINE"


class WorkerEvent(StrEnum):
    STARTED = "STARTED"
    DRAINING = "DRAINING"
    STOPPED = "STOPPED"
    LOST = "LOST"


class WorkflowType(Struct, frozen=True, order=True):
    """A type a worker can execute; `version` None means every version."""

    name: str
    version: str | None = None
    queue: str | None = None  # said when a worker registers: runs of it wait there; None: in any queue of the worker


class Worker(Struct, frozen=True, kw_only=True):
    worker_id: str
    namespace: str
    queues: tuple[str, ...]
    types: tuple[WorkflowType, ...]
    hostname: str
    pid: int
    version: str
    concurrency: int
    status: WorkerStatus
    registered_at: Instant
    last_heartbeat_at: Instant
    completed: int
    failed: int
    active: int = 0  # runs it holds now
    labels: dict[str, str] = {}
    queue_limit: int | None = None  # runs of its queue at once, over all workers
    type_limits: dict[str, int] = {}  # the same by workflow


def worker_position(worker: Worker) -> str:
    """Returns the position of a worker in a list that is ordered by when they came."""
    return f"{worker.registered_at}:{worker.worker_id}"


def read_worker_position(key: str) -> tuple[Instant, str]:
    registered_at, _, worker_id = key.partition(":")
    return int(registered_at), worker_id
