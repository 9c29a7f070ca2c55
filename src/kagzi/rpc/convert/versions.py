"""Versions of workflows: messages into core and api, and back."""

from __future__ import annotations

from kagzi._proto.v1 import admin_pb2 as pb
from kagzi._proto.v1.worker_pb2 import WorkflowInterface as WireInterface
from kagzi.core.versions import WorkflowInterface, WorkflowVersion
from kagzi.rpc.convert.common import optional_instant, timestamp


def version_to_wire(record: WorkflowVersion) -> pb.WorkflowVersion:
    return pb.WorkflowVersion(
        workflow_type=record.workflow_type,
        version=record.version,
        is_default=record.default,
        is_chosen=record.chosen,
        task_queues=record.queues,
        first_seen_at=timestamp(record.first_seen_at),
        last_seen_at=timestamp(record.last_seen_at),
        workers_online=record.workers,
        pending_runs=record.pending,
        running_runs=record.running,
        sleeping_runs=record.sleeping,
        at_least=record.at_least,
        oldest_run_at=timestamp(record.oldest_run_at),
        can_be_retired=record.retirable,
        summary=record.summary,
    )


def version_from_wire(version: pb.WorkflowVersion) -> WorkflowVersion:
    return WorkflowVersion(
        workflow_type=version.workflow_type,
        version=version.version if version.HasField("version") else None,
        default=version.is_default,
        chosen=version.is_chosen,
        queues=tuple(version.task_queues),
        first_seen_at=optional_instant(version, "first_seen_at"),
        last_seen_at=optional_instant(version, "last_seen_at"),
        workers=version.workers_online,
        pending=version.pending_runs,
        running=version.running_runs,
        sleeping=version.sleeping_runs,
        at_least=version.at_least,
        oldest_run_at=optional_instant(version, "oldest_run_at"),
        summary=version.summary,
    )


def interface_to_wire(interface: WorkflowInterface) -> WireInterface:
    return WireInterface(
        workflow_type=interface.workflow_type,
        version=interface.version,
        summary=interface.summary,
        input_schema=interface.input_schema,
        on_failure=interface.on_failure,
        on_failure_queue=interface.on_failure_queue,
        timeout_us=interface.timeout,
    )


def interface_from_wire(interface: WireInterface) -> WorkflowInterface:
    return WorkflowInterface(
        workflow_type=interface.workflow_type,
        version=interface.version if interface.HasField("version") else None,
        summary=interface.summary,
        input_schema=interface.input_schema if interface.HasField("input_schema") else None,
        on_failure=interface.on_failure if interface.HasField("on_failure") else None,
        on_failure_queue=interface.on_failure_queue if interface.HasField("on_failure_queue") else None,
        timeout=interface.timeout_us if interface.HasField("timeout_us") else None,
    )
