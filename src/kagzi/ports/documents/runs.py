"""Runs, their steps, signals and values, as people read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Raw, Struct

from kagzi.core.run import Run, RunStatus
from kagzi.core.run_value import OURS, PROGRESS, Progress, RunValue
from kagzi.core.signal import Signal
from kagzi.core.step import Step, StepKind, StepStatus
from kagzi.ports.documents.common import (
    NOTHING,
    Count,
    FailureDocument,
    Moment,
    _moment,
    failure_document,
    moment,
    payload,
)


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


class DebouncedDocument(Struct, frozen=True, kw_only=True):
    """Starts that were debounced: so many became this run, with the input of the last. `last_start_id` is the run id
    that one would have had; null if it is the run's own."""

    key: str
    starts: Count
    first_at: Moment
    last_at: Moment
    last_start_id: str | None


class RunDocument(RunSummary, frozen=True, kw_only=True):
    """Everything that is known about a run but its steps. `output` and `error` are null until there are some. `why`
    says in a sentence why the run is not moving; null once it has finished. `on_failure` is the workflow that is
    started if it fails; a run that has failed names what handles it, `handled_by`, and a run that was started so which
    run has failed, `handles_run_id`. A run of a schedule says of which, and which firing it is, `scheduled_for`."""

    input: Raw
    output: Raw
    error: FailureDocument | None
    why: str | None = None
    on_failure: str | None = None
    handled_by: tuple[RunSummary, ...] = ()
    handles_run_id: str | None = None
    schedule_id: str | None = None
    scheduled_for: Moment | None = None
    on_parent_end: str | None = None  # what becomes of a child when its parent has ended
    debounced: DebouncedDocument | None = None


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
    """Returns the values that the run has set."""
    return tuple(
        ValueDocument(name=each.name, value=payload(each.value), at=_moment(each.at))
        for each in values
        if not each.name.startswith(OURS)
    )


def progress_document(values: Sequence[RunValue]) -> ProgressDocument | None:
    """Returns how far the run has come; None if it has not said so, or in a form that only its own codec reads."""
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


def run_summary(run: Run) -> RunSummary:
    return RunSummary(**_run_fields(run))  # type: ignore[arg-type]


def run_document(run: Run, why: str | None = None, handlers: Sequence[Run] = ()) -> RunDocument:
    return RunDocument(
        **_run_fields(run),  # type: ignore[arg-type]
        input=payload(run.input),
        output=payload(run.output),
        error=failure_document(run.error),
        why=why,
        on_failure=run.on_failure,
        handled_by=tuple([run_summary(handler) for handler in handlers]),
        handles_run_id=run.handles_run_id,
        schedule_id=run.schedule_id,
        scheduled_for=moment(run.scheduled_for),
        on_parent_end=run.parent_policy and run.parent_policy.value,
        debounced=_debounced(run),
    )


def _debounced(run: Run) -> DebouncedDocument | None:
    if run.debounce_key is None:
        return None
    return DebouncedDocument(
        key=run.debounce_key,
        starts=1 + run.joins,
        first_at=_moment(run.created_at),
        last_at=_moment(run.created_at if run.joined_at is None else run.joined_at),
        last_start_id=run.joined_by,
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
