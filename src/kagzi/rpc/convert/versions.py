"""Versions of workflows: messages into core and api, and back."""

from __future__ import annotations

from typing import Any

from google.protobuf.message import Message

from kagzi._proto.v1 import admin_pb2 as pb
from kagzi._proto.v1.worker_pb2 import DebounceDefaults as WireDebounce
from kagzi._proto.v1.worker_pb2 import WorkflowInterface as WireInterface
from kagzi.core.versions import DebounceDefaults, StartDefaults, WorkflowInterface, WorkflowVersion
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
    defaults, debounce = interface.defaults, interface.defaults.debounce
    return WireInterface(
        workflow_type=interface.workflow_type,
        version=interface.version,
        summary=interface.summary,
        input_schema=interface.input_schema,
        on_failure=defaults.on_failure,
        on_failure_queue=defaults.on_failure_queue,
        timeout_us=defaults.timeout,
        queue=defaults.queue,
        limit_name=defaults.limit_name,
        limit_key=defaults.limit_key,
        debounce=None
        if debounce is None
        else WireDebounce(wait_us=debounce.wait, most_us=debounce.most, key=debounce.key),
        codec=defaults.codec,
    )


def interface_from_wire(interface: WireInterface) -> WorkflowInterface:
    debounce = _given(interface, "debounce")
    return WorkflowInterface(
        workflow_type=interface.workflow_type,
        version=_given(interface, "version"),
        summary=interface.summary,
        input_schema=_given(interface, "input_schema"),
        defaults=StartDefaults(
            queue=_given(interface, "queue"),
            on_failure=_given(interface, "on_failure"),
            on_failure_queue=_given(interface, "on_failure_queue"),
            timeout=_given(interface, "timeout_us"),
            limit_name=_given(interface, "limit_name"),
            limit_key=_given(interface, "limit_key"),
            debounce=None
            if debounce is None
            else DebounceDefaults(wait=debounce.wait_us, most=_given(debounce, "most_us"), key=_given(debounce, "key")),
            codec=interface.codec,
        ),
    )


def _given(message: Message, field: str) -> Any:
    return getattr(message, field) if message.HasField(field) else None
