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
