"""Runs and steps as people look at them: moments are datetimes in UTC, payloads are data, errors are `Failure`s.

The engine's own records (`core.run.Run`, `core.step.Step`) hold microseconds and bytes; each has one function here that
makes it readable.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, TypeAlias

from msgspec import Struct

from kagzi.core.failure import Failure
from kagzi.core.instant import Instant, to_datetime
from kagzi.core.lineage import Lineage, PayloadContext, PayloadKind, input_of, lineage_of
from kagzi.core.run import Run, RunStatus
from kagzi.core.signal import Signal
from kagzi.core.step import Step, StepKind, StepStatus
from kagzi.core.versions import WorkflowVersion
from kagzi.errors import CannotDecode
from kagzi.sdk.payload import Reader

Read: TypeAlias = Reader


class _Record(Struct, frozen=True, kw_only=True):
    # As they are stored, because most who look at a record do not look at its payloads.
    _input: bytes | None
    _output: bytes | None
    _read: Read
    _input_context: PayloadContext | None
    _output_context: PayloadContext | None

    @property
    def input(self) -> Any:
        """The arguments as plain JSON data: a list, or a dict where some were given by name. None if not recorded."""
        return None if self._input is None else self._read(self._input, self._input_context)

    @property
    def output(self) -> Any:
        """The result as plain JSON data; None if there is none (yet)."""
        return None if self._output is None else self._read(self._output, self._output_context)

    def __repr__(self) -> str:
        shown = [f"{name}={getattr(self, name)!r}" for name in self.__struct_fields__ if not name.startswith("_")]
        return f"{type(self).__name__}({', '.join(shown)})"


class DebouncedRecord(Struct, frozen=True, kw_only=True):
    """What became of starts that were debounced: so many became one run, with the input and the trace of the last.
    `last_start_id` is the run id that this one would have had; the log of the engine has it, too. None if it is the
    run's own."""

    key: str
    starts: int
    first_at: datetime
    last_at: datetime
    last_start_id: str | None

    def __str__(self) -> str:
        starts = "1 start" if self.starts == 1 else f"{self.starts:,} starts"
        return f"{starts} of key {self.key!r}"


class RunRecord(_Record, frozen=True, kw_only=True):
    """Everything that is known about a run at one moment. `id` is the one it was started with, `run_id` Kagzi's own.

    Of a child, `parent_run_id` is the run that has started it, and `on_parent_end` what becomes of it when that ends;
    "none" of a run that a step has started, which is on its own.

    `origin` is the run that this one repeats, restarts or was forked from. A run whose id has gone to another one names
    it, `superseded_by`; its own `id` is None then, and `former_id` what it was.
    `incarnation` counts how often the run has begun anew (`continue_as_new`); `started_at` is when it did so last.
    """

    namespace: str
    run_id: str
    id: str | None
    queue: str
    workflow: str
    version: str
    status: RunStatus
    priority: int
    attempts: int
    executions: int
    crashes: int
    created_at: datetime
    available_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    deadline_at: datetime | None
    worker_id: str | None
    error: Failure | None
    on_failure: str | None = None  # the workflow that is started if it fails
    handles_run_id: str | None = None  # of a failure handler: the run that has failed
    parent_run_id: str | None = None
    parent_step_id: str | None = None  # the step of that run which has started it
    parent_attempt: int | None = None  # of that step, if it was started in its body
    on_parent_end: str | None = None
    tags: dict[str, str] = {}
    limit_key: str | None = None  # whose share of limits it takes
    superseded_by: str | None = None
    former_id: str | None = None
    origin: str | None = None
    incarnation: int = 0
    schedule_id: str | None = None  # the schedule that has started it
    scheduled_for: datetime | None = None  # the firing of that schedule; None if it was triggered by hand
    debounced: DebouncedRecord | None = None  # the starts that became this run, if they were debounced

    @property
    def duration(self) -> timedelta | None:
        """From the first claim to the end; None while there is no end."""
        return _between(self.started_at, self.finished_at)


class StepRecord(_Record, frozen=True, kw_only=True):
    """One attempt of one step, or one sleep that has ended.

    `completed_seq` numbers what the workflow has seen; a failed attempt that is tried again has none. `scope` is the
    task or group that called it: `book` of `book/charge`. `child_run_id` is the run that it has started.
    """

    step_id: str
    name: str
    scope: str
    kind: StepKind
    status: StepStatus
    attempt: int
    completed_seq: int | None
    started_at: datetime
    finished_at: datetime | None
    retry_at: datetime | None
    error: Failure | None
    child_run_id: str | None = None

    @property
    def duration(self) -> timedelta | None:
        """How long it took; None while it is running."""
        return _between(self.started_at, self.finished_at)


class SignalRecord(Struct, frozen=True, kw_only=True):
    """Something a run was told. `taken`: its workflow has got it."""

    name: str
    key: str
    value: Any
    sent_at: datetime
    taken: bool


def signal_record(signal: Signal, read: Read, lineage: Lineage) -> SignalRecord:
    return SignalRecord(
        name=signal.name,
        key=signal.key,
        value=read(signal.value, lineage.of(PayloadKind.SIGNAL, signal.name)),
        sent_at=to_datetime(signal.sent_at),
        taken=signal.taken_seq is not None,
    )


def run_record(run: Run, read: Read) -> RunRecord:
    lineage = lineage_of(run)
    return RunRecord(
        namespace=run.namespace,
        run_id=run.run_id,
        id=run.external_id,
        queue=run.task_queue,
        workflow=run.workflow_type,
        version=run.version,
        status=run.status,
        priority=run.priority,
        attempts=run.attempts,
        executions=run.executions,
        incarnation=run.incarnation,
        crashes=run.crashes,
        created_at=to_datetime(run.created_at),
        available_at=_moment(run.available_at),
        started_at=_moment(run.started_at),
        finished_at=_moment(run.finished_at),
        deadline_at=_moment(run.deadline_at),
        worker_id=run.worker_id,
        error=_failure(run.error, read, lineage.of(PayloadKind.ERROR)),
        on_failure=run.on_failure,
        handles_run_id=run.handles_run_id,
        schedule_id=run.schedule_id,
        scheduled_for=None if run.scheduled_for is None else to_datetime(run.scheduled_for),
        parent_run_id=run.parent_run_id,
        parent_step_id=run.parent_step_id,
        parent_attempt=run.parent_attempt,
        on_parent_end=None if run.parent_policy is None else run.parent_policy.value,
        tags=run.tags,
        limit_key=run.limit_key,
        superseded_by=run.superseded_by,
        former_id=run.former_id,
        origin=run.origin,
        debounced=_debounced(run),
        _input=run.input,
        _output=run.output,
        _read=read,
        _input_context=input_of(run),
        _output_context=lineage.of(PayloadKind.OUTPUT),
    )


def _debounced(run: Run) -> DebouncedRecord | None:
    if run.debounce_key is None:
        return None
    return DebouncedRecord(
        key=run.debounce_key,
        starts=1 + run.joins,
        first_at=to_datetime(run.created_at),
        last_at=to_datetime(run.created_at if run.joined_at is None else run.joined_at),
        last_start_id=run.joined_by,
    )


def step_record(step: Step, read: Read, lineage: Lineage) -> StepRecord:
    return StepRecord(
        step_id=step.step_id,
        name=step.name,
        scope=step.scope,
        kind=step.kind,
        status=step.status,
        attempt=step.attempt,
        completed_seq=step.completed_seq,
        started_at=to_datetime(step.started_at),
        finished_at=_moment(step.finished_at),
        retry_at=_moment(step.retry_at),
        error=_failure(step.error, read, lineage.step_error(step)),
        child_run_id=step.child_run_id,
        _input=step.input,
        _output=step.output,
        _read=read,
        _input_context=lineage.step_input(step),
        _output_context=lineage.step_output(step),
    )


def _failure(error: bytes | None, read: Read, context: PayloadContext) -> Failure | None:
    """Reads an error. One whose key is missing here is shown as it is stored: a list must not fail for one of its
    lines. Nor for one that was put there by somebody else, of which nothing is believed."""
    if not error:
        return None
    try:
        return read.failure(error, context)
    except CannotDecode as problem:
        failure = Failure.decode(error)
        return failure if failure.sealed else Failure.of(CannotDecode, str(problem))


def _moment(instant: Instant | None) -> datetime | None:
    return None if instant is None else to_datetime(instant)


def _between(began: datetime | None, ended: datetime | None) -> timedelta | None:
    return None if began is None or ended is None else ended - began


class VersionRecord(Struct, frozen=True, kw_only=True):
    """A version of a workflow; None: of workers that execute every version. `default` is what starts by name get:
    somebody has `chosen` it, or workers have offered it last. It `can_be_retired` if no run needs it and no start by
    name gets it. With `at_least` there may be more runs than were counted."""

    workflow: str
    version: str | None
    default: bool
    chosen: bool
    queues: tuple[str, ...]
    first_seen_at: datetime | None
    last_seen_at: datetime | None
    workers_online: int
    pending: int
    running: int
    sleeping: int
    at_least: bool
    oldest_run_at: datetime | None
    can_be_retired: bool


def version_record(version: WorkflowVersion) -> VersionRecord:
    return VersionRecord(
        workflow=version.workflow_type,
        version=version.version,
        default=version.default,
        chosen=version.chosen,
        queues=version.queues,
        first_seen_at=_moment(version.first_seen_at),
        last_seen_at=_moment(version.last_seen_at),
        workers_online=version.workers,
        pending=version.pending,
        running=version.running,
        sleeping=version.sleeping,
        at_least=version.at_least,
        oldest_run_at=_moment(version.oldest_run_at),
        can_be_retired=version.retirable,
    )


class RefusedMove(Struct, frozen=True, kw_only=True):
    """A run that stays in its version, because the other one does not replay what is recorded of it: the first call
    that differs, and where that is."""

    run_id: str
    id: str | None
    event: int  # its number among the events of the run; 0: its arguments
    recorded: str
    present: str
    place: str  # file and line

    def __str__(self) -> str:
        named = self.run_id if self.id is None else f"{self.run_id} ({self.id})"
        at = "its arguments" if self.event == 0 else f"event {self.event}"
        return f"run {named} at {at}\n  recorded: {self.recorded}\n  present:  {self.present}, at {self.place}"


class MoveRecord(Struct, frozen=True, kw_only=True):
    """How many runs have another version now, or would have, and how many a worker holds in the old one. If they were
    checked: those that were refused, and how many were claimed while they were looked at."""

    moved: int
    running: int
    refused: tuple[RefusedMove, ...] = ()
    changed: int = 0


class Cancellation(Struct, frozen=True, kw_only=True):
    """What came of a request to cancel or terminate a run. True if the run is cancelled or is told to end, also by an
    earlier request; false if it had finished before, as `status` says."""

    effective: bool
    status: RunStatus

    def __bool__(self) -> bool:
        return self.effective
