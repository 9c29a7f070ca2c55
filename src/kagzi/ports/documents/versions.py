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


class DebounceDocument(Struct, frozen=True, kw_only=True):
    """How many starts in a short time become one run: those with one key, which is the path to it in the input; null:
    all of the workflow; empty: code makes it."""

    wait_seconds: float
    most_seconds: float | None
    key: str | None


class InterfaceDocument(Struct, frozen=True, kw_only=True):
    """What a version of a workflow is for and what it takes, as its worker says. `input_schema` is JSON Schema of its
    parameters, an object by name; null: it is not known. `version` null: every version. The others count for runs
    whose start says nothing about them; `limit_key` is the path to the key in the input, empty if code makes it."""

    workflow: str
    version: str | None
    summary: str
    input_schema: Raw
    queue: str | None
    on_failure: str | None
    on_failure_queue: str | None
    timeout_seconds: float | None
    limit_name: str | None
    limit_key: str | None
    debounce: DebounceDocument | None


def interface_document(interface: WorkflowInterface) -> InterfaceDocument:
    schema, defaults = interface.input_schema, interface.defaults
    debounce = defaults.debounce
    return InterfaceDocument(
        workflow=interface.workflow_type,
        version=interface.version,
        summary=interface.summary,
        input_schema=NOTHING if schema is None else Raw(schema.encode()),
        queue=defaults.queue,
        on_failure=defaults.on_failure,
        on_failure_queue=defaults.on_failure_queue,
        timeout_seconds=None if defaults.timeout is None else defaults.timeout / SECOND,
        limit_name=defaults.limit_name,
        limit_key=defaults.limit_key,
        debounce=None
        if debounce is None
        else DebounceDocument(
            wait_seconds=debounce.wait / SECOND,
            most_seconds=None if debounce.most is None else debounce.most / SECOND,
            key=debounce.key,
        ),
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
