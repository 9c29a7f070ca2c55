"""Work: WorkerService's own messages into core and api, and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from kagzi._proto.v1 import worker_pb2
from kagzi.api.operations import (
    TRANSITIONS,
    CancelStep,
    Chunk,
    ChunkAnswer,
    CompleteStep,
    FailStep,
    Operation,
    SetValue,
    StartStep,
    Transition,
)
from kagzi.api.workers import Claim, DeclaredLimit, Heartbeat, HeartbeatAnswer, Poll, Registered, Registration
from kagzi.core.carried import TO_WORKER
from kagzi.core.declaration import Declaration
from kagzi.core.limits import PAYLOAD_BYTES, SUSPECT_CRASHES
from kagzi.core.schedule import Overlap, check_overlap
from kagzi.core.signal import Signal
from kagzi.core.step import Step, StepKind, StepStatus
from kagzi.core.worker import WorkflowType
from kagzi.errors import InvalidRequest
from kagzi.rpc.convert.carried import CarriedFields
from kagzi.rpc.convert.common import plain_bytes
from kagzi.rpc.convert.limits import rate_from_wire, rate_to_wire
from kagzi.rpc.convert.unknown import unknown_value
from kagzi.rpc.convert.versions import interface_to_wire

pb = worker_pb2

_KINDS: Final[dict[StepKind, pb.StepKind]] = {
    StepKind.FUNCTION: pb.STEP_KIND_FUNCTION,
    StepKind.SLEEP: pb.STEP_KIND_SLEEP,
    StepKind.CHILD_WORKFLOW: pb.STEP_KIND_CHILD_WORKFLOW,
    StepKind.SIGNAL: pb.STEP_KIND_SIGNAL,
    StepKind.CANCEL: pb.STEP_KIND_CANCEL,
}
_KIND_OF: Final[dict[int, StepKind]] = {wire: kind for kind, wire in _KINDS.items()}
_STATUSES: Final[dict[StepStatus, pb.StepStatus]] = {
    StepStatus.RUNNING: pb.STEP_STATUS_RUNNING,
    StepStatus.COMPLETED: pb.STEP_STATUS_COMPLETED,
    StepStatus.FAILED: pb.STEP_STATUS_FAILED,
    StepStatus.CANCELLED: pb.STEP_STATUS_CANCELLED,
}
_STATUS_OF: Final[dict[int, StepStatus]] = {wire: status for status, wire in _STATUSES.items()}
_OPERATIONS: Final[dict[int, type[StartStep | CompleteStep | FailStep | CancelStep]]] = {
    pb.STEP_STATUS_RUNNING: StartStep,
    pb.STEP_STATUS_COMPLETED: CompleteStep,
    pb.STEP_STATUS_FAILED: FailStep,
    pb.STEP_STATUS_CANCELLED: CancelStep,
}
_TRANSITIONS: Final[dict[str, type[Transition]]] = {kind.__name__: kind for kind in TRANSITIONS}
_CLAIMED: Final = CarriedFields(pb.Claim, TO_WORKER)
_ANSWERS: Final[dict[ChunkAnswer, pb.ChunkAnswer]] = {
    ChunkAnswer.DONE: pb.CHUNK_ANSWER_DONE,
    ChunkAnswer.LEASE_LOST: pb.CHUNK_ANSWER_LEASE_LOST,
    ChunkAnswer.NEWS: pb.CHUNK_ANSWER_NEWS,
}
_ANSWER_OF: Final[dict[int, ChunkAnswer]] = {wire: answer for answer, wire in _ANSWERS.items()}


def kind_of(wire: int) -> StepKind:
    kind = _KIND_OF.get(wire)
    if kind is None:
        raise InvalidRequest(f"kind {wire} is not a kind of step; there are {', '.join(StepKind)}")
    return kind


def kind_to_wire(kind: StepKind) -> pb.StepKind:
    return _KINDS[kind]


def exact_status(status: StepStatus) -> pb.StepStatus:
    return _STATUSES[status]


def status_of(wire: int) -> StepStatus:
    """Returns the status of a step that a server has sent."""
    status = _STATUS_OF.get(wire)
    if status is None:
        raise unknown_value(f"status {wire} of a step")
    return status


def kind_from(wire: int) -> StepKind:
    kind = _KIND_OF.get(wire)
    if kind is None:
        raise unknown_value(f"kind {wire} of a step")
    return kind


# Joining and staying.


def registration_to_wire(registration: Registration) -> pb.RegisterRequest:
    return pb.RegisterRequest(
        namespace=registration.namespace,
        task_queue=registration.queues[0] if registration.queues else None,
        workflow_types=sorted({offered.name for offered in registration.types}),
        hostname=registration.hostname,
        pid=registration.pid,
        version=registration.version,
        worker_id=registration.worker_id,
        queues=registration.queues,
        types=types_to_wire(registration.types),
        concurrency=registration.concurrency,
        labels=registration.labels,
        queue_concurrency_limit=registration.queue_limit,
        workflow_type_concurrency=type_limits_to_wire(registration.type_limits),
        schedules=[_declaration_to_wire(each) for each in registration.schedules],
        look=registration.look,
        interfaces=[interface_to_wire(each) for each in registration.interfaces],
        limits=[
            pb.DeclaredLimit(
                name=limit.name,
                most=limit.most,
                key_most=limit.key_most,
                shares=limit.shares,
                rate=rate_to_wire(limit.rate),
                key_rate=rate_to_wire(limit.key_rate),
                fair=limit.fair,
            )
            for limit in registration.limits
        ],
    )


def _declaration_to_wire(declared: Declaration) -> pb.DeclaredSchedule:
    return pb.DeclaredSchedule(
        name=declared.name,
        workflow_type=declared.workflow_type,
        task_queue=declared.task_queue,
        cron_expr=declared.cron_expr,
        timezone=declared.timezone,
        input=declared.input,
        max_catchup=declared.max_catchup,
        overlap=declared.overlap.value,
        jitter_us=declared.jitter,
        priority=declared.priority,
        timeout_us=declared.timeout,
        retry_policy=declared.retry_policy,
        on_failure=declared.on_failure,
        on_failure_queue=declared.on_failure_queue,
        hash=declared.hash,
        limit_key=declared.limit_key,
    )


def declaration_from_wire(declared: pb.DeclaredSchedule) -> Declaration:
    return Declaration(
        name=declared.name,
        workflow_type=declared.workflow_type,
        task_queue=declared.task_queue or declared.workflow_type,
        cron_expr=declared.cron_expr,
        timezone=declared.timezone or "UTC",
        input=declared.input,
        max_catchup=declared.max_catchup,
        overlap=check_overlap(declared.overlap or Overlap.ALLOW),
        jitter=declared.jitter_us,
        priority=declared.priority,
        timeout=declared.timeout_us if declared.HasField("timeout_us") else None,
        retry_policy=declared.retry_policy if declared.HasField("retry_policy") else None,
        on_failure=declared.on_failure if declared.HasField("on_failure") else None,
        on_failure_queue=declared.on_failure_queue if declared.HasField("on_failure_queue") else None,
        hash=declared.hash,
        limit_key=declared.limit_key if declared.HasField("limit_key") else None,
    )


def declared_from_wire(limits: Iterable[pb.DeclaredLimit]) -> tuple[DeclaredLimit, ...]:
    return tuple(
        [
            DeclaredLimit(
                limit.name,
                limit.most if limit.HasField("most") else None,
                limit.key_most if limit.HasField("key_most") else None,
                limit.shares if limit.HasField("shares") else None,
                rate_from_wire(limit, "rate"),
                rate_from_wire(limit, "key_rate"),
                limit.fair,
            )
            for limit in limits
        ]
    )


def types_to_wire(types: Iterable[WorkflowType]) -> list[pb.WorkflowType]:
    return [pb.WorkflowType(name=offered.name, version=offered.version, queue=offered.queue) for offered in types]


def type_limits_to_wire(limits: Mapping[str, int]) -> list[pb.WorkflowTypeConcurrency]:
    return [
        pb.WorkflowTypeConcurrency(workflow_type=name, max_concurrent=limit) for name, limit in sorted(limits.items())
    ]


def types_from_wire(types: Iterable[pb.WorkflowType]) -> tuple[WorkflowType, ...]:
    return tuple(
        [
            WorkflowType(
                offered.name,
                offered.version if offered.HasField("version") else None,
                offered.queue if offered.HasField("queue") else None,
            )
            for offered in types
        ]
    )


def registered_from_wire(response: pb.RegisterResponse) -> Registered:
    return Registered(
        lease=response.lease_us,
        heartbeat=response.heartbeat_us,
        payload_bytes=response.payload_bytes or PAYLOAD_BYTES,
        suspect_crashes=response.suspect_crashes or SUSPECT_CRASHES,
        schedules=response.schedules,
        warnings=tuple(response.schedule_warnings),
    )


def heartbeat_to_wire(heartbeat: Heartbeat) -> pb.HeartbeatRequest:
    return pb.HeartbeatRequest(
        worker_id=heartbeat.worker_id,
        held=pb.HeldRuns(runs=[pb.HeldRun(run_id=run_id, token=token) for run_id, token in heartbeat.held]),
        heard=heartbeat.heard,
        completed=heartbeat.completed,
        failed=heartbeat.failed,
        namespace=heartbeat.namespace,
    )


def heartbeat_from_wire(request: pb.HeartbeatRequest) -> Heartbeat:
    return Heartbeat(
        worker_id=request.worker_id,
        held=tuple([(run.run_id, run.token) for run in request.held.runs]),
        heard=request.heard,
        confirmed=not request.HasField("held"),
        completed=request.completed,
        failed=request.failed,
        namespace=request.namespace or None,
    )


def heartbeat_answer_to_wire(answer: HeartbeatAnswer) -> pb.HeartbeatResponse:
    return pb.HeartbeatResponse(
        accepted=answer.known,
        should_drain=answer.drain,
        lost=answer.lost,
        news=[run_id for run_id, _ in answer.news],
        run_news=[pb.RunNews(run_id=run_id, inbox_seq=seq) for run_id, seq in answer.news],
        cancelled=answer.cancelled,
        known=answer.known,
        now_us=answer.now,
        unrenewed=answer.unrenewed,
    )


def heartbeat_answer_from_wire(response: pb.HeartbeatResponse) -> HeartbeatAnswer:
    return HeartbeatAnswer(
        lost=tuple(response.lost),
        news=tuple((news.run_id, news.inbox_seq) for news in response.run_news),
        cancelled=tuple(response.cancelled),
        drain=response.should_drain,
        known=response.known,
        now=response.now_us,
        unrenewed=tuple(response.unrenewed),
    )


# Getting work.


def poll_to_wire(poll: Poll) -> pb.PollTasksRequest:
    return pb.PollTasksRequest(
        namespace=poll.namespace,
        worker_id=poll.worker_id,
        queues=poll.queues,
        types=types_to_wire(poll.types),
        limit=poll.limit,
        number=poll.number,
        token=poll.token,
        wait_us=poll.wait,
        ending=poll.ending,
    )


def poll_from_wire(request: pb.PollTasksRequest, namespace: str) -> Poll:
    return Poll(
        namespace=namespace,
        worker_id=request.worker_id,
        queues=tuple(request.queues),
        types=types_from_wire(request.types),
        limit=request.limit,
        number=request.number,
        token=request.token,
        wait=request.wait_us,
        adopts=True,
        ending=request.ending,
    )


def claim_to_wire(claim: Claim) -> pb.Claim:
    """Converts a claim without its input, history and signals, which may not fit into one message."""
    return pb.Claim(
        run_id=claim.run_id,
        token=claim.token,
        workflow_type=claim.workflow_type,
        version=claim.version,
        task_queue=claim.task_queue,
        external_id=claim.external_id,
        started_at_us=claim.started_at,
        lease_us=claim.lease,
        attempts=claim.attempts,
        executions=claim.executions,
        crashes=claim.crashes,
        inbox_seq=claim.inbox_seq,
        cancel_requested=claim.cancel_requested,
        origin_run_id=claim.origin_run_id,
        scheduled_for_us=claim.scheduled_for,
        timezone=claim.timezone,
        family=claim.family,
        handles_run_id=claim.handles_run_id,
        depth=claim.depth,
        incarnation=claim.incarnation,
        executions_before=claim.executions_before,
        limited=claim.limited,
        lineage=claim.lineage,
        **_CLAIMED.to_wire(claim),
        woken=claim.woken,
    )


def claim_from_wire(
    claim: pb.Claim,
    namespace: str,
    input: bytes,
    failed_input: bytes | None,
    history: list[Step],
    inbox: tuple[Signal, ...] | None,
) -> Claim:
    return Claim(
        namespace=namespace,
        run_id=claim.run_id,
        token=claim.token,
        workflow_type=claim.workflow_type,
        version=claim.version,
        task_queue=claim.task_queue,
        external_id=claim.external_id if claim.HasField("external_id") else None,
        input=plain_bytes(input),
        started_at=claim.started_at_us,
        lease=claim.lease_us,
        attempts=claim.attempts,
        executions=claim.executions,
        crashes=claim.crashes,
        inbox_seq=claim.inbox_seq,
        history=tuple(history),
        cancel_requested=claim.cancel_requested,
        origin_run_id=claim.origin_run_id if claim.HasField("origin_run_id") else None,
        scheduled_for=claim.scheduled_for_us if claim.HasField("scheduled_for_us") else None,
        timezone=claim.timezone or None,
        family=claim.family,
        handles_run_id=claim.handles_run_id if claim.HasField("handles_run_id") else None,
        failed_input=failed_input,
        depth=claim.depth,
        incarnation=claim.incarnation,
        executions_before=claim.executions_before,
        limited=claim.limited,
        lineage=claim.lineage or None,
        **_CLAIMED.from_wire(claim),
        woken=claim.woken if claim.HasField("woken") else None,
        inbox=inbox,
    )


def step_to_record(step: Step) -> pb.StepRecord:
    return pb.StepRecord(
        step_id=step.step_id,
        attempt=step.attempt,
        kind=_KINDS[step.kind],
        status=_STATUSES[step.status],
        completed_seq=step.completed_seq,
        started_at_us=step.started_at,
        finished_at_us=step.finished_at,
        retry_at_us=step.retry_at,
        input_hash=step.input_hash,
        output=step.output,
        error=step.error,
        child_run_id=step.child_run_id,
    )


def step_from_record(record: pb.StepRecord) -> Step:
    has = record.HasField
    return Step(
        step_id=record.step_id,
        attempt=record.attempt,
        kind=kind_from(record.kind),
        status=status_of(record.status),
        completed_seq=record.completed_seq if has("completed_seq") else None,
        started_at=record.started_at_us,
        finished_at=record.finished_at_us if has("finished_at_us") else None,
        retry_at=record.retry_at_us if has("retry_at_us") else None,
        input_hash=record.input_hash,
        output=record.output if has("output") else None,
        error=record.error if has("error") else None,
        child_run_id=record.child_run_id or None,
    )


# Reporting work.


def chunk_from_wire(message: pb.Chunk, namespace: str) -> Chunk:
    operations: list[Operation] = [_operation_from_record(record) for record in message.steps]
    if message.values:
        operations += [SetValue(name=value.name, value=value.value, number=value.number) for value in message.values]
    if (end := _end_of(message)) is not None:
        operations.append(end)
    return Chunk(namespace=namespace, run_id=message.run_id, token=message.token, operations=tuple(operations))


def _operation_from_record(record: pb.StepRecord) -> Operation:
    operation = _OPERATIONS.get(record.status)
    if operation is None:
        raise InvalidRequest(f"status {record.status} of step {record.step_id[:100]!r} says nothing that happened")
    kind = _KIND_OF.get(record.kind)
    if kind is None:
        raise InvalidRequest(f"kind {record.kind} of step {record.step_id[:100]!r} is not known")
    has = record.HasField
    # Whether a field is there is asked only of those that look empty: asking costs as much as reading.
    return operation(
        step_id=record.step_id,
        attempt=record.attempt,
        kind=kind,
        completed_seq=record.completed_seq or (0 if has("completed_seq") else None),
        started_at=record.started_at_us,
        finished_at=record.finished_at_us or (0 if has("finished_at_us") else None),
        retry_at=record.retry_at_us or (0 if has("retry_at_us") else None),
        timeout_at=record.timeout_at_us or (0 if has("timeout_at_us") else None),
        input=record.input or (b"" if has("input") else None),
        input_hash=record.input_hash,
        output=record.output or (b"" if has("output") else None),
        error=record.error or (b"" if has("error") else None),
    )


def _end_of(message: pb.Chunk) -> Transition | None:
    """Returns what a chunk ends with: the operation that has the name of the message, with fields of the same names."""
    which = message.WhichOneof("end")
    if which is None:
        return None
    end: Any = getattr(message, which)
    values = {}
    for field in end.DESCRIPTOR.fields:
        value = getattr(end, field.name)
        if field.has_presence and not end.HasField(field.name):
            value = None
        elif not isinstance(value, int | str | bytes):  # a list
            value = tuple(value)
        values[field.name.removesuffix("_us")] = value
    return _TRANSITIONS[end.DESCRIPTOR.name](**values)


def answer_to_wire(answer: ChunkAnswer) -> pb.ChunkResult:
    return pb.ChunkResult(answer=_ANSWERS[answer])


_DONE: Final = pb.CommitBatchResponse(results=[answer_to_wire(ChunkAnswer.DONE)]).SerializeToString()


def all_done(chunks: int) -> pb.CommitBatchResponse:
    """Returns the answer that nearly every call gets. The items of a list follow one another on the wire, so many that
    are alike are one repeated."""
    return pb.CommitBatchResponse.FromString(_DONE * chunks)


def answer_from_wire(result: pb.ChunkResult) -> ChunkAnswer | None:
    """Reads the answer to a chunk; None if it was refused for the reason in the result's error."""
    answer = _ANSWER_OF.get(result.answer)
    if answer is None and not result.HasField("error"):
        raise unknown_value(f"answer {result.answer} to a chunk")
    return answer
