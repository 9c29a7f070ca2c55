"""Workers, as operators see them."""

from __future__ import annotations

from typing import Final

from kagzi._proto.v1 import worker_pb2 as pb
from kagzi._proto.v1.admin_pb2 import ListWorkersRequest
from kagzi.api.admin import WorkerFilter
from kagzi.core.worker import Worker, WorkerStatus, WorkflowType
from kagzi.errors import InvalidRequest
from kagzi.rpc.convert.common import page_request, timestamp
from kagzi.rpc.convert.unknown import unknown_value
from kagzi.rpc.convert.work import type_limits_to_wire, types_from_wire, types_to_wire

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


def worker_filter_to_wire(filter: WorkerFilter, *, page_size: int, page_token: str | None) -> ListWorkersRequest:
    return ListWorkersRequest(
        namespace=filter.namespace,
        task_queue=filter.task_queue,
        status_filter=None if filter.status is None else _STATUSES[filter.status],
        page=page_request(page_size, page_token),
    )


def _status_from(wire: int) -> WorkerStatus:
    status = _STATUS_OF.get(wire)
    if status is None:
        raise unknown_value(f"status {wire} of a worker")
    return status


def worker_from_wire(worker: pb.Worker) -> Worker:
    return Worker(
        worker_id=worker.worker_id,
        namespace=worker.namespace,
        queues=tuple(worker.queues) or (worker.task_queue,),
        types=types_from_wire(worker.types) or tuple([WorkflowType(name) for name in worker.workflow_types]),
        hostname=worker.hostname,
        pid=worker.pid,
        version=worker.version,
        concurrency=worker.concurrency,
        status=_status_from(worker.status),
        registered_at=worker.registered_at.ToMicroseconds(),
        last_heartbeat_at=worker.last_heartbeat_at.ToMicroseconds(),
        completed=worker.completed,
        failed=worker.failed,
        active=worker.active_workflow_count,
        labels=dict(worker.labels),
        queue_limit=worker.queue_concurrency_limit if worker.HasField("queue_concurrency_limit") else None,
        type_limits={limit.workflow_type: limit.max_concurrent for limit in worker.workflow_type_concurrency},
    )


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
        workflow_type_concurrency=type_limits_to_wire(worker.type_limits),
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
