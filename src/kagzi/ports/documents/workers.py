"""Workers as people read them."""

from __future__ import annotations

from msgspec import Struct

from kagzi.core.worker import Worker, WorkerStatus
from kagzi.ports.documents.common import Count, Moment, _moment


class OfferedWorkflow(Struct, frozen=True, kw_only=True):
    """`version` null: every version."""

    workflow: str
    version: str | None


class WorkerDocument(Struct, frozen=True, kw_only=True):
    """A worker. `active` runs are held by it now; `completed` and `failed` count since it started."""

    worker_id: str
    namespace: str
    status: WorkerStatus
    queues: tuple[str, ...]
    workflows: tuple[OfferedWorkflow, ...]
    hostname: str
    pid: int
    version: str
    concurrency: Count
    active: Count
    completed: Count
    failed: Count
    registered_at: Moment
    last_heartbeat_at: Moment
    labels: dict[str, str]
    queue_limit: int | None
    workflow_limits: dict[str, int]


def worker_document(worker: Worker) -> WorkerDocument:
    return WorkerDocument(
        worker_id=worker.worker_id,
        namespace=worker.namespace,
        status=worker.status,
        queues=worker.queues,
        workflows=tuple([OfferedWorkflow(workflow=each.name, version=each.version) for each in worker.types]),
        hostname=worker.hostname,
        pid=worker.pid,
        version=worker.version,
        concurrency=worker.concurrency,
        active=worker.active,
        completed=worker.completed,
        failed=worker.failed,
        registered_at=_moment(worker.registered_at),
        last_heartbeat_at=_moment(worker.last_heartbeat_at),
        labels=worker.labels,
        queue_limit=worker.queue_limit,
        workflow_limits=worker.type_limits,
    )
