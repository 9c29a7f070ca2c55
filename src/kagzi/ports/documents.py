"""Runs, steps, workers and the rest as JSON documents: one vocabulary for `--json` of commands and for the HTTP API.

Moments are RFC 3339 in UTC with milliseconds. Payloads are bytes to the engine; most of them are JSON and appear as
what they are, to the last digit. What is not JSON, because a codec has encrypted or compressed it, appears as
`{"base64": "…"}`.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Annotated
from zoneinfo import ZoneInfo

import msgspec
from msgspec import Meta, Raw, Struct

from kagzi.core.cron import check_zone, moved, parse_times, upcoming
from kagzi.core.duration import format_span
from kagzi.core.failure import Failure
from kagzi.core.flow import FlowLimit, Scope
from kagzi.core.health import Health, HealthStatus
from kagzi.core.instant import SECOND, Instant, to_datetime
from kagzi.core.job import Job, JobAction, JobStatus
from kagzi.core.namespace import Namespace
from kagzi.core.rate import RateLimit
from kagzi.core.run import Run, RunStatus
from kagzi.core.run_value import OURS, PROGRESS, Progress, RunValue
from kagzi.core.schedule import Overlap, Schedule, Skip, SkipReason
from kagzi.core.signal import Signal
from kagzi.core.step import Step, StepKind, StepStatus
from kagzi.core.versions import WorkflowInterface, WorkflowVersion
from kagzi.core.worker import Worker, WorkerStatus

Moment = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]
Count = Annotated[int, Meta(ge=0)]
NOTHING = Raw(b"null")


class FailureDocument(Struct, frozen=True, kw_only=True):
    """Why a run or an attempt of a step failed."""

    type: str
    message: str
    kind: str
    traceback: str


class RunSummary(Struct, frozen=True, kw_only=True):
    """A run without its payloads. `id` is the one its caller gave it, `parent_run_id` the run that has started it,
    `origin` the run that it repeats, restarts or was forked from. A run whose id has gone to another one names it,
    `superseded_by`; `former_id` is what the id was.
    `incarnation` counts how often it has begun anew, and `started_at` is when it did so last."""

    run_id: str
    id: str | None
    namespace: str
    workflow: str
    version: str
    queue: str
    status: RunStatus
    priority: int
    attempts: Count
    executions: Count
    crashes: Count
    created_at: Moment
    available_at: Moment | None
    started_at: Moment | None
    finished_at: Moment | None
    deadline_at: Moment | None
    worker_id: str | None
    parent_run_id: str | None = None
    parent_step_id: str | None = None  # the step of that run which has started it
    parent_attempt: int | None = None  # of that step, if it was started in its body
    tags: dict[str, str] = {}
    limit_key: str | None = None  # whose share of limits it takes
    superseded_by: str | None = None
    former_id: str | None = None
    origin: str | None = None
    incarnation: Count = 0


class RunDocument(RunSummary, frozen=True, kw_only=True):
    """Everything that is known about a run but its steps. `output` and `error` are null until there are some. `why`
    says in a sentence why the run is not moving; null once it has finished. `on_failure` is the workflow that is
    started if it fails; a run that was started so says which run has failed, `handles_run_id`. A run of a schedule says
    of which, and which firing it is, `scheduled_for`."""

    input: Raw
    output: Raw
    error: FailureDocument | None
    why: str | None = None
    on_failure: str | None = None
    handles_run_id: str | None = None
    schedule_id: str | None = None
    scheduled_for: Moment | None = None


class StepDocument(Struct, frozen=True, kw_only=True):
    """One attempt of one step, or one timer that has fired. `scope` is the task or group that called it, empty for the
    workflow function itself. `input` and `output` are null unless asked for. `child_run_id` is the run that it has
    started."""

    step_id: str
    name: str
    scope: str
    kind: StepKind
    attempt: int
    status: StepStatus
    started_at: Moment
    finished_at: Moment | None
    retry_at: Moment | None
    input: Raw
    output: Raw
    error: FailureDocument | None
    child_run_id: str | None = None


class SignalDocument(Struct, frozen=True, kw_only=True):
    """Something a run was told. `taken`: its workflow has got it."""

    key: str
    seq: int
    name: str
    value: Raw
    sent_at: Moment
    taken: bool


class ValueDocument(Struct, frozen=True, kw_only=True):
    """Something a run says about itself, as it was last set, and when that was stored."""

    name: str
    value: Raw
    at: Moment


class ProgressDocument(Struct, frozen=True, kw_only=True):
    """How far a run has come, from 0 to 1, and what it is at."""

    fraction: float
    message: str
    at: Moment


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
    parameters, an object by name; null: it is not known. `version` null: every version."""

    workflow: str
    version: str | None
    summary: str
    input_schema: Raw


class NamespaceDocument(Struct, frozen=True, kw_only=True):
    """A tenant. One that is not `enabled` starts no runs. `on_failure` is the workflow that is started when a run of it
    fails; it waits in `on_failure_queue`, else in the queue of that run."""

    namespace: str
    display_name: str
    description: str
    enabled: bool
    on_failure: str | None
    on_failure_queue: str | None
    created_at: Moment
    updated_at: Moment


class ComponentDocument(Struct, frozen=True, kw_only=True):
    name: str
    status: HealthStatus
    message: str


class HealthDocument(Struct, frozen=True, kw_only=True):
    """`status` is the worst of those of its components."""

    status: HealthStatus
    components: tuple[ComponentDocument, ...]
    checked_at: Moment | None


def moment(instant: Instant | None) -> str | None:
    return None if instant is None else _moment(instant)


def _moment(instant: Instant) -> str:
    return to_datetime(instant).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def payload(data: bytes | None) -> Raw:
    """JSON as it is; what a codec has made of it, as base64."""
    if data is None:
        return NOTHING
    try:
        # Read to the end: what is copied into an answer must not spoil it.
        msgspec.json.decode(data)
        data.decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return Raw(msgspec.json.encode({"base64": base64.b64encode(data).decode()}))
    return Raw(data)


def signal_document(signal: Signal) -> SignalDocument:
    return SignalDocument(
        key=signal.key,
        seq=signal.seq,
        name=signal.name,
        value=payload(signal.value),
        sent_at=_moment(signal.sent_at),
        taken=signal.taken_seq is not None,
    )


def value_documents(values: Sequence[RunValue]) -> tuple[ValueDocument, ...]:
    """What the run itself has set."""
    return tuple(
        ValueDocument(name=each.name, value=payload(each.value), at=_moment(each.at))
        for each in values
        if not each.name.startswith(OURS)
    )


def progress_document(values: Sequence[RunValue]) -> ProgressDocument | None:
    """None if the run has said nothing, or in a form that only its own codec reads."""
    said = next((each for each in values if each.name == PROGRESS), None)
    if said is None:
        return None
    try:
        found = msgspec.json.decode(said.value, type=Progress)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    if not 0 <= found.fraction <= 1:  # not even that of a worker in another language
        return None
    return ProgressDocument(fraction=found.fraction, message=found.message, at=_moment(said.at))


def failure_document(data: bytes | None) -> FailureDocument | None:
    if not data:
        return None
    found = Failure.decode(data)
    return FailureDocument(type=found.type, message=found.message, kind=found.kind.value, traceback=found.traceback)


def run_summary(run: Run) -> RunSummary:
    return RunSummary(**_run_fields(run))  # type: ignore[arg-type]


def run_document(run: Run, why: str | None = None) -> RunDocument:
    return RunDocument(
        **_run_fields(run),  # type: ignore[arg-type]
        input=payload(run.input),
        output=payload(run.output),
        error=failure_document(run.error),
        why=why,
        on_failure=run.on_failure,
        handles_run_id=run.handles_run_id,
        schedule_id=run.schedule_id,
        scheduled_for=moment(run.scheduled_for),
    )


def _run_fields(run: Run) -> Mapping[str, object]:
    return {
        "run_id": run.run_id,
        "id": run.external_id,
        "namespace": run.namespace,
        "workflow": run.workflow_type,
        "version": run.version,
        "queue": run.task_queue,
        "status": run.status,
        "priority": run.priority,
        "attempts": run.attempts,
        "executions": run.executions,
        "crashes": run.crashes,
        "created_at": moment(run.created_at),
        "available_at": moment(run.available_at),
        "started_at": moment(run.started_at),
        "finished_at": moment(run.finished_at),
        "deadline_at": moment(run.deadline_at),
        "worker_id": run.worker_id,
        "parent_run_id": run.parent_run_id,
        "parent_step_id": run.parent_step_id,
        "parent_attempt": run.parent_attempt,
        "tags": run.tags,
        "limit_key": run.limit_key,
        "superseded_by": run.superseded_by,
        "former_id": run.former_id,
        "origin": run.origin,
        "incarnation": run.incarnation,
    }


def step_document(step: Step, *, payloads: bool = True) -> StepDocument:
    return StepDocument(
        step_id=step.step_id,
        name=step.name,
        scope=step.scope,
        kind=step.kind,
        attempt=step.attempt,
        status=step.status,
        started_at=_moment(step.started_at),
        finished_at=moment(step.finished_at),
        retry_at=moment(step.retry_at),
        input=payload(step.input) if payloads else NOTHING,
        output=payload(step.output) if payloads else NOTHING,
        error=failure_document(step.error),
        child_run_id=step.child_run_id,
    )


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


def namespace_document(namespace: Namespace) -> NamespaceDocument:
    return NamespaceDocument(
        namespace=namespace.namespace,
        display_name=namespace.display_name or namespace.namespace,
        description=namespace.description,
        enabled=namespace.enabled,
        on_failure=namespace.on_failure,
        on_failure_queue=namespace.on_failure_queue,
        created_at=_moment(namespace.created_at),
        updated_at=_moment(namespace.updated_at),
    )


def health_document(health: Health, *, outside: bool = False, details: bool = True) -> HealthDocument:
    """For those `outside`, without what a database says about itself: it names hosts and files. `details` tell of all
    namespaces, and are not for those who may see only one."""
    return HealthDocument(
        status=health.status,
        components=tuple(
            [
                ComponentDocument(
                    name=part.name,
                    status=part.status,
                    message=""
                    if not details
                    else "it does not answer"
                    if outside and part.name == "database" and part.status is HealthStatus.UNHEALTHY
                    else part.message,
                )
                for part in health.components
            ]
        ),
        checked_at=moment(health.checked_at),
    )


def interface_document(interface: WorkflowInterface) -> InterfaceDocument:
    schema = interface.input_schema
    return InterfaceDocument(
        workflow=interface.workflow_type,
        version=interface.version,
        summary=interface.summary,
        input_schema=NOTHING if schema is None else Raw(schema.encode()),
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


class RateDocument(Struct, frozen=True, kw_only=True):
    """How often runs may begin: so many in a period, `burst` of them at once."""

    count: int
    period: str
    burst: int


def _rate(rate: RateLimit | None) -> RateDocument | None:
    if rate is None:
        return None
    return RateDocument(count=rate.count, period=format_span(rate.period), burst=rate.burst)


class LimitDocument(Struct, frozen=True, kw_only=True):
    """What holds back the runs of a queue, of a workflow, or of a whole namespace: then it has no name."""

    namespace: str
    scope: Scope
    name: str
    paused_at: Moment | None
    paused_by: str | None
    pause_reason: str | None
    concurrency: int | None  # runs at once, as somebody has set it
    declared: int | None  # the same: the smallest that a live worker declares
    key_concurrency: int | None  # runs of each key at once
    key_declared: int | None
    shares: str | None  # whose limits count for the runs of this workflow
    rate: RateDocument | None  # how often runs may begin, as somebody has set it
    rate_declared: RateDocument | None
    key_rate: RateDocument | None  # the same of each key
    key_rate_declared: RateDocument | None
    fair: bool  # its keys take turns


def limit_document(limit: FlowLimit) -> LimitDocument:
    return LimitDocument(
        namespace=limit.namespace,
        scope=limit.scope,
        name=limit.name,
        paused_at=moment(limit.paused_at),
        paused_by=limit.paused_by or None,
        pause_reason=limit.pause_reason or None,
        concurrency=limit.concurrency,
        declared=limit.declared,
        key_concurrency=limit.key_concurrency,
        key_declared=limit.key_declared,
        shares=limit.shares,
        rate=_rate(limit.rate),
        rate_declared=_rate(limit.rate_declared),
        key_rate=_rate(limit.key_rate),
        key_rate_declared=_rate(limit.key_rate_declared),
        fair=limit.fair,
    )


class JobDocument(Struct, frozen=True, kw_only=True):
    """One thing done to many runs. `matched` were found so far, `done` changed, `skipped` could not be, `failed` should
    have been. `runs` says which ones are meant."""

    job_id: str
    namespace: str
    action: JobAction
    status: JobStatus
    runs: Raw
    rate: int | None
    children: bool
    matched: Count
    done: Count
    skipped: Count
    failed: Count
    created_by: str
    created_at: Moment
    finished_at: Moment | None
    error: str | None


def job_document(job: Job) -> JobDocument:
    return JobDocument(
        job_id=job.job_id,
        namespace=job.namespace,
        action=job.action,
        status=job.status,
        runs=Raw(job.filter),
        rate=job.rate,
        children=job.children,
        matched=job.matched,
        done=job.done,
        skipped=job.skipped,
        failed=job.failed,
        created_by=job.created_by,
        created_at=_moment(job.created_at),
        finished_at=moment(job.finished_at),
        error=job.error,
    )


class ScheduleDocument(Struct, frozen=True, kw_only=True):
    """A schedule, and what became of its firings."""

    schedule_id: str
    name: str | None
    namespace: str
    workflow: str
    queue: str
    version: Annotated[str | None, Meta(description="None: the default one at the time of firing.")]
    cron: str
    tz: str
    enabled: bool
    catchup: Count
    overlap: Overlap
    jitter: Annotated[float, Meta(ge=0, description="Seconds.")]
    priority: int
    timeout: Annotated[float | None, Meta(description="Of the runs it starts, in seconds.")]
    input: Raw
    created_at: Moment
    updated_at: Moment
    next_fire_at: Moment | None
    last_fired_at: Moment | None
    last_run_id: str | None
    total_runs: Count
    successful_runs: Count
    failed_runs: Count
    skipped_runs: Count
    buffered_for: Moment | None
    error: str | None
    pause_reason: str | None
    tags: dict[str, str] = {}
    limit_key: str | None = None  # whose share of limits it takes
    on_failure: Annotated[str | None, Meta(description="The workflow that is started if a run of it fails.")] = None
    on_failure_queue: str | None = None
    declared: Annotated[bool, Meta(description="Code declares it.")] = False
    changed_by_hand: Annotated[bool, Meta(description="A person has changed what code declares.")] = False
    abandoned: Annotated[bool, Meta(description="Code has declared it, and no live worker does.")] = False


class SkipDocument(Struct, frozen=True, kw_only=True):
    """Firings in a row that did not become runs."""

    first_at: Moment
    last_at: Moment
    count: Count
    reason: SkipReason
    at: Moment


class FiringDocument(Struct, frozen=True, kw_only=True):
    """A firing to come; `note` says what daylight saving has done to it."""

    at: Moment
    local: str
    note: str | None


def schedule_document(schedule: Schedule) -> ScheduleDocument:
    return ScheduleDocument(
        schedule_id=schedule.schedule_id,
        name=schedule.name,
        namespace=schedule.namespace,
        workflow=schedule.workflow_type,
        queue=schedule.task_queue,
        version=schedule.version or None,
        cron=schedule.cron_expr,
        tz=schedule.timezone,
        enabled=schedule.enabled,
        catchup=schedule.max_catchup,
        overlap=schedule.overlap,
        jitter=schedule.jitter / SECOND,
        priority=schedule.priority,
        timeout=None if schedule.timeout is None else schedule.timeout / SECOND,
        input=payload(schedule.input),
        created_at=_moment(schedule.created_at),
        updated_at=_moment(schedule.updated_at),
        next_fire_at=moment(schedule.next_fire_at),
        last_fired_at=moment(schedule.last_fired_at),
        last_run_id=schedule.last_run_id,
        total_runs=schedule.total_runs,
        successful_runs=schedule.successful_runs,
        failed_runs=schedule.failed_runs,
        skipped_runs=schedule.skipped_runs,
        buffered_for=moment(schedule.buffered_for),
        error=schedule.error,
        pause_reason=schedule.pause_reason,
        tags=schedule.tags,
        limit_key=schedule.limit_key,
        on_failure=schedule.on_failure,
        on_failure_queue=schedule.on_failure_queue,
        declared=schedule.declared,
        changed_by_hand=schedule.changed_by_hand,
        abandoned=schedule.abandoned,
    )


def skip_document(skip: Skip) -> SkipDocument:
    return SkipDocument(
        first_at=_moment(skip.first_at),
        last_at=_moment(skip.last_at),
        count=skip.count,
        reason=skip.reason,
        at=_moment(skip.at),
    )


def firing_documents(cron: str, zone: str, start: Instant, count: int) -> tuple[FiringDocument, ...]:
    """The next firings of an expression."""
    times = parse_times(cron, check_zone(zone), "cron")
    return tuple(
        [
            FiringDocument(
                at=_moment(at), local=to_datetime(at).astimezone(ZoneInfo(zone)).isoformat(), note=moved(times, at)
            )
            for at in upcoming(times, start, count)
        ]
    )
