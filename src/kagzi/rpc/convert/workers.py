"""Workers, as operators see them."""

from __future__ import annotations

from typing import Final

from kagzi._proto.v1 import worker_pb2 as pb
from kagzi.core.worker import Worker, WorkerStatus
from kagzi.errors import InvalidRequest
from kagzi.rpc.convert.common import timestamp
from kagzi.rpc.convert.work import types_to_wire

_STATUSES: Final[dict[WorkerStatus, pb.WorkerStatus]] = {
    WorkerStatus.ONLINE: pb.WORKER_STATUS_ONLINE,
    WorkerStatus.DRAINING: pb.WORKER_STATUS_DRAINING,
    WorkerStatus.OFFLINE: pb.WORKER_STATUS_OFFLINE,
}
_STATUS_OF: Final[dict[int, WorkerStatus]] = {wire: status for status, wire in _STATUSES.items()}


def worker_status_of(wire: int) -> WorkerStatus:
    status = _STATUS_OF.get(wire)
    if status is None:
        raise InvalidRequest(f"status_filter {wire} is not known; there are {', '.join(WorkerStatus)}")
    return status


def worker_to_wire(worker: Worker) -> pb.Worker:
    return pb.Worker(
        worker_id=worker.worker_id,
        task_queue=worker.queues[0] if worker.queues else None,
        status=_STATUSES[worker.status],
        version=worker.version,
        workflow_types=sorted({offered.name for offered in worker.types}),
        hostname=worker.hostname,
        pid=worker.pid,
        queue_concurrency_limit=worker.queue_limit,
        workflow_type_concurrency=[
            pb.WorkflowTypeConcurrency(workflow_type=name, max_concurrent=limit)
            for name, limit in sorted(worker.type_limits.items())
        ],
        active_workflow_count=worker.active,
        registered_at=timestamp(worker.registered_at),
        last_heartbeat_at=timestamp(worker.last_heartbeat_at),
        labels=worker.labels,
        namespace=worker.namespace,
        queues=worker.queues,
        types=types_to_wire(worker.types),
        concurrency=worker.concurrency,
        completed=worker.completed,
        failed=worker.failed,
    )
