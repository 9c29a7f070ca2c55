"""Versions of workflows and their interfaces, as people read them."""

from __future__ import annotations

from msgspec import Raw, Struct

from kagzi.core.instant import SECOND
from kagzi.core.versions import WorkflowInterface, WorkflowVersion
from kagzi.ports.documents.common import NOTHING, Count, Moment, moment


class VersionDocument(Struct, frozen=True, kw_only=True):
    """A version of a workflow; null: of workers that execute every version. Starts that name none get the `default`,
    which somebody has `chosen` or which workers have offered last. No run needs it if it `can_be_retired`. `summary`
    is what its code says it is for."""

    workflow: str
    version: str | None
    default: bool
    chosen: bool
    queues: tuple[str, ...]
    first_seen_at: Moment | None
    last_seen_at: Moment | None
    workers_online: Count
    pending: Count
    running: Count
    sleeping: Count
    at_least: bool
    oldest_run_at: Moment | None
    can_be_retired: bool
    summary: str


class InterfaceDocument(Struct, frozen=True, kw_only=True):
    """What a version of a workflow is for and what it takes, as its worker says. `input_schema` is JSON Schema of its
    parameters, an object by name; null: it is not known. `version` null: every version. `on_failure`,
    `on_failure_queue` and `timeout_seconds` count for runs whose start says nothing about them."""

    workflow: str
    version: str | None
    summary: str
    input_schema: Raw
    on_failure: str | None
    on_failure_queue: str | None
    timeout_seconds: float | None


def interface_document(interface: WorkflowInterface) -> InterfaceDocument:
    schema = interface.input_schema
    return InterfaceDocument(
        workflow=interface.workflow_type,
        version=interface.version,
        summary=interface.summary,
        input_schema=NOTHING if schema is None else Raw(schema.encode()),
        on_failure=interface.on_failure,
        on_failure_queue=interface.on_failure_queue,
        timeout_seconds=None if interface.timeout is None else interface.timeout / SECOND,
    )


def version_document(record: WorkflowVersion) -> VersionDocument:
    return VersionDocument(
        workflow=record.workflow_type,
        version=record.version,
        default=record.default,
        chosen=record.chosen,
        queues=record.queues,
        first_seen_at=moment(record.first_seen_at),
        last_seen_at=moment(record.last_seen_at),
        workers_online=record.workers,
        pending=record.pending,
        running=record.running,
        sleeping=record.sleeping,
        at_least=record.at_least,
        oldest_run_at=moment(record.oldest_run_at),
        can_be_retired=record.retirable,
        summary=record.summary,
    )
