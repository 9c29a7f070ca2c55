"""Runs: WorkflowService's messages into core and api, and back."""

from __future__ import annotations

from typing import Any, Final

from msgspec.structs import astuple

from kagzi._proto.v1 import common_pb2, workflow_pb2
from kagzi.api.operations import (
    CancelAnswer,
    CancelRun,
    Fork,
    RepeatRun,
    StartDebounce,
    Started,
    StartedBy,
    StartRun,
    StartSignal,
    TerminateRun,
)
from kagzi.api.workflows import RunFilter
from kagzi.core.carried import CARRIED, TO_PEOPLE
from kagzi.core.conflict import OnConflict
from kagzi.core.family import ParentPolicy
from kagzi.core.instant import SECOND
from kagzi.core.retry import Retry
from kagzi.core.run import CANCEL_GRACE, Run, RunStatus
from kagzi.core.signal import MADE_KEY
from kagzi.errors import InvalidRequest
from kagzi.rpc.convert.carried import CarriedFields
from kagzi.rpc.convert.common import (
    NULL,
    optional_instant,
    page_request,
    payload_from_bytes,
    payload_to_bytes,
    retry_policy,
    timestamp,
)
from kagzi.rpc.convert.errors import error_from_wire, failure_to_detail
from kagzi.rpc.convert.steps import StepName, step_name_of
from kagzi.rpc.convert.unknown import unknown_value
from kagzi.tracing import well_formed

pb = workflow_pb2

DEFAULT_NAMESPACE: Final = "default"
_DEFAULT_RETRY: Final = Retry()
# A start has two forms of a policy, and what it says of a trace may be malformed.
_GIVEN: Final = CarriedFields(pb.StartWorkflowRequest, CARRIED, otherwise=frozenset({"retry_policy", "trace_context"}))
_SHOWN: Final = CarriedFields(pb.Workflow, TO_PEOPLE)

_EXACT: Final[dict[RunStatus, pb.WorkflowStatus]] = {
    RunStatus.PENDING: pb.WORKFLOW_STATUS_PENDING,
    RunStatus.RUNNING: pb.WORKFLOW_STATUS_RUNNING,
    RunStatus.SLEEPING: pb.WORKFLOW_STATUS_SLEEPING,
    RunStatus.COMPLETED: pb.WORKFLOW_STATUS_COMPLETED,
    RunStatus.FAILED: pb.WORKFLOW_STATUS_FAILED,
    RunStatus.CANCELLED: pb.WORKFLOW_STATUS_CANCELLED,
    RunStatus.TIMED_OUT: pb.WORKFLOW_STATUS_TIMED_OUT,
    RunStatus.SCHEDULED: pb.WORKFLOW_STATUS_SCHEDULED,
    RunStatus.PAUSED: pb.WORKFLOW_STATUS_PAUSED,
}
_ON_CONFLICT: Final[dict[OnConflict, pb.OnConflict]] = {
    OnConflict.RETURN: pb.ON_CONFLICT_UNSPECIFIED,
    OnConflict.FAIL: pb.ON_CONFLICT_FAIL,
    OnConflict.RESTART_FINISHED: pb.ON_CONFLICT_RESTART_FINISHED,
    OnConflict.RESTART_FAILED: pb.ON_CONFLICT_RESTART_FAILED,
}
_CONFLICTS: Final[dict[int, OnConflict]] = {
    **{wire: choice for choice, wire in _ON_CONFLICT.items()},
    pb.ON_CONFLICT_RETURN: OnConflict.RETURN,
}
_STATUSES: Final[dict[int, RunStatus]] = {wire: status for status, wire in _EXACT.items()}


def exact_status(status: RunStatus) -> pb.WorkflowStatus:
    return _EXACT[status]


def old_status(status: RunStatus) -> pb.WorkflowStatus:
    """Returns a status in words that clients in the field know."""
    return _EXACT[RunStatus.FAILED if status is RunStatus.TIMED_OUT else status]


def status_of(wire: int, field: str) -> RunStatus:
    status = _STATUSES.get(wire)
    if status is None:
        raise InvalidRequest(f"{field} {wire} is not known; there are {', '.join(RunStatus)}")
    return status


def namespace_of(text: str) -> str:
    return text or DEFAULT_NAMESPACE


# Starting.


def start_from_wire(request: pb.StartWorkflowRequest, *, namespace: str, run_id: str) -> StartRun:
    """Reads a start. `run_id` is used if the caller brought none."""
    if request.on_conflict not in _CONFLICTS:
        raise InvalidRequest(f"on_conflict {request.on_conflict} is not known")
    policy: bytes | None = None
    if request.HasField("exact_retry_policy"):
        policy = Retry.decode(request.exact_retry_policy).encode()
    elif request.HasField("retry_policy"):
        policy = retry_policy(request.retry_policy, _DEFAULT_RETRY).encode()
    return StartRun(
        namespace=namespace,
        run_id=request.run_id or run_id,
        workflow_type=request.workflow_type,
        task_queue=request.task_queue or request.workflow_type,
        version=request.version or None,
        input=payload_to_bytes(request.input) if request.HasField("input") else NULL,
        external_id=request.external_id or None,
        priority=request.priority,
        delay=request.delay_us,
        start_at=request.start_at_us if request.HasField("start_at_us") else None,
        timeout=request.timeout_us if request.HasField("timeout_us") else None,
        deadline_at=request.deadline_at_us if request.HasField("deadline_at_us") else None,
        retry_policy=policy,
        lease_length=request.lease_us if request.HasField("lease_us") else None,
        trace_context=well_formed(request.trace_context),
        limit_name=request.limit_name if request.HasField("limit_name") else None,
        **_GIVEN.from_wire(request),
        on_conflict=_choice(request),
        signal=_signal_of(request, run_id) if request.HasField("signal") else None,
        debounce=_debounce_of(request.debounce) if request.HasField("debounce") else None,
        started_by=_starter_of(request),
        by_name=not request.complete,
        other_queue=request.other_queue or not request.task_queue,
    )


def _starter_of(request: pb.StartWorkflowRequest) -> StartedBy | None:
    if not request.HasField("parent_step_attempt_id"):
        return None
    name = step_name_of(request.parent_step_attempt_id)
    return StartedBy(name.run_id, name.identity, name.attempt)


def _attempt_of(workflow: pb.Workflow) -> int | None:
    return step_name_of(workflow.parent_step_attempt_id).attempt if workflow.parent_step_attempt_id else None


def _attempt_id(run_id: str | None, step_id: str | None, attempt: int | None) -> str | None:
    return None if run_id is None or step_id is None or attempt is None else str(StepName(run_id, step_id, attempt))


def start_to_wire(start: StartRun) -> pb.StartWorkflowRequest:
    """Converts a start, without its namespace: that is the one of the whole call."""
    return pb.StartWorkflowRequest(
        external_id=start.external_id,
        task_queue=start.task_queue,
        workflow_type=start.workflow_type,
        input=payload_from_bytes(start.input),
        version=start.version,
        run_id=start.run_id,
        priority=start.priority,
        delay_us=start.delay,
        start_at_us=start.start_at,
        timeout_us=start.timeout,
        deadline_at_us=start.deadline_at,
        lease_us=start.lease_length,
        exact_retry_policy=start.retry_policy,
        trace_context=start.trace_context,
        limit_name=start.limit_name,
        complete=start.version is not None and not start.by_name,
        other_queue=start.other_queue,
        **_GIVEN.to_wire(start),
        on_conflict=_choice_to_wire(start),
        signal=None if start.signal is None else _signal_to_wire(start.signal),
        debounce=None if start.debounce is None else _debounce_to_wire(start.debounce),
        parent_step_attempt_id=None if start.started_by is None else str(StepName(*astuple(start.started_by))),
    )


def _choice(request: pb.StartWorkflowRequest) -> OnConflict:
    if request.on_conflict == pb.ON_CONFLICT_UNSPECIFIED and request.HasField("signal"):
        return OnConflict.RESTART_FINISHED
    return _CONFLICTS[request.on_conflict]


def _choice_to_wire(start: StartRun) -> pb.OnConflict:
    if start.signal is not None and start.on_conflict is OnConflict.RETURN:
        return pb.ON_CONFLICT_RETURN  # not the same as none, with a signal
    return _ON_CONFLICT[start.on_conflict]


def _signal_of(request: pb.StartWorkflowRequest, made: str) -> StartSignal:
    """Reads the signal of a start. `made` is used if the caller brought no key: a caller that repeats itself brings
    one, or its run id."""
    signal = request.signal
    return StartSignal(
        name=signal.name,
        value=payload_to_bytes(signal.value) or NULL,
        key=signal.key or MADE_KEY + (request.run_id or made),
    )


def _signal_to_wire(signal: StartSignal) -> pb.StartSignal:
    return pb.StartSignal(name=signal.name, value=payload_from_bytes(signal.value), key=signal.key)


def _debounce_of(debounce: pb.StartDebounce) -> StartDebounce:
    most = debounce.most_us if debounce.HasField("most_us") else None
    return StartDebounce(key=debounce.key, wait=debounce.wait_us, most=most)


def _debounce_to_wire(debounce: StartDebounce) -> pb.StartDebounce:
    return pb.StartDebounce(key=debounce.key, wait_us=debounce.wait, most_us=debounce.most)


def started_to_wire(started: Started) -> pb.StartWorkflowResponse:
    return pb.StartWorkflowResponse(
        run_id=started.run_id,
        already_exists=started.already_exists,
        exact_status=_EXACT[started.status],
        available_at_us=started.available_at or 0,
        note=started.note,
    )


def started_from_wire(response: pb.StartWorkflowResponse) -> Started:
    return Started(
        run_id=response.run_id,
        already_exists=response.already_exists,
        status=either_status(response.exact_status, pb.WORKFLOW_STATUS_PENDING),
        available_at=response.available_at_us,
        end=run_from_wire(response.workflow) if response.HasField("workflow") else None,
        note=response.note,
    )


# Ending, and beginning again.


def cancel_from_wire(request: pb.CancelWorkflowRequest) -> CancelRun:
    return CancelRun(
        namespace=namespace_of(request.namespace),
        run_id=request.run_id,
        grace=request.grace_us if request.HasField("grace_us") else CANCEL_GRACE,
    )


def cancel_to_wire(cancel: CancelRun) -> pb.CancelWorkflowRequest:
    return pb.CancelWorkflowRequest(namespace=cancel.namespace, run_id=cancel.run_id, grace_us=cancel.grace)


def terminate_from_wire(request: pb.TerminateWorkflowRequest) -> TerminateRun:
    return TerminateRun(namespace=namespace_of(request.namespace), run_id=request.run_id, reason=request.reason)


def terminate_to_wire(terminate: TerminateRun) -> pb.TerminateWorkflowRequest:
    return pb.TerminateWorkflowRequest(namespace=terminate.namespace, run_id=terminate.run_id, reason=terminate.reason)


def repeat_from_wire(request: pb.RetryWorkflowRequest, run_id: str) -> RepeatRun:
    """Reads a repeat. `run_id` is used if the caller brought none."""
    return RepeatRun(
        namespace=namespace_of(request.namespace),
        run_id=request.new_run_id or run_id,
        of_run_id=request.run_id,
        keep_steps=not request.from_scratch,
        keep_id=not request.leave_id and not request.fork,
        fork=_fork_of(request) if request.fork else None,
    )


def repeat_to_wire(repeat: RepeatRun) -> pb.RetryWorkflowRequest:
    return pb.RetryWorkflowRequest(
        namespace=repeat.namespace,
        run_id=repeat.of_run_id,
        new_run_id=repeat.run_id,
        from_scratch=not repeat.keep_steps,
        leave_id=not repeat.keep_id,
        **({} if repeat.fork is None else _fork_to_wire(repeat.fork)),
    )


def _fork_of(request: pb.RetryWorkflowRequest) -> Fork:
    return Fork(
        from_step=request.from_step if request.HasField("from_step") else None,
        input=payload_to_bytes(request.input) if request.HasField("input") else None,
        version=request.version if request.HasField("version") else None,
    )


def _fork_to_wire(fork: Fork) -> dict[str, Any]:
    return {
        "fork": True,
        "from_step": fork.from_step,
        "input": None if fork.input is None else payload_from_bytes(fork.input),
        "version": fork.version,
    }


def cancel_answer_from_wire(run_id: str, effective: bool, status: int) -> CancelAnswer:
    """Reads the answer to a cancellation. A run that has timed out is FAILED to clients in the field."""
    return CancelAnswer(run_id=run_id, effective=effective, status=either_status(0, status))


# Looking.


def run_to_wire(run: Run) -> pb.Workflow:
    error = None
    if run.error is not None:
        code = common_pb2.ERROR_CODE_TIMEOUT if run.status is RunStatus.TIMED_OUT else None
        error = failure_to_detail(run.error, code)
    elif run.status is RunStatus.TIMED_OUT:
        error = common_pb2.ErrorDetail(code=common_pb2.ERROR_CODE_TIMEOUT, message="the run passed its deadline")
    return pb.Workflow(
        namespace=run.namespace,
        run_id=run.run_id,
        external_id=run.external_id,
        task_queue=run.task_queue,
        workflow_type=run.workflow_type,
        status=old_status(run.status),
        version=run.version,
        input=payload_from_bytes(run.input),
        output=None if run.output is None else payload_from_bytes(run.output),
        error=error,
        attempts=run.attempts,
        priority=run.priority,
        timeout_ms=None if run.deadline_at is None else max(0, run.deadline_at - run.created_at) // 1000,
        created_at=timestamp(run.created_at),
        started_at=timestamp(run.started_at),
        finished_at=timestamp(run.finished_at),
        wake_up_at=timestamp(run.available_at) if run.status is RunStatus.SLEEPING else None,
        worker_id=run.worker_id,
        parent_run_id=run.parent_run_id,
        parent_step_id=run.parent_step_id,
        parent_step_attempt_id=_attempt_id(run.parent_run_id, run.parent_step_id, run.parent_attempt),
        parent_policy=run.parent_policy,
        exact_status=_EXACT[run.status],
        executions=run.executions,
        crashes=run.crashes,
        available_at_us=run.available_at,
        deadline_at_us=run.deadline_at,
        waiting_for=run.waiting_for,
        handles_run_id=run.handles_run_id,
        cancel_deadline_us=run.cancel_deadline,
        lease_expires_at_us=run.lease_expires_at,
        superseded_by=run.superseded_by,
        former_id=run.former_id,
        origin_run_id=run.origin,
        incarnation=run.incarnation,
        schedule_id=run.schedule_id,
        seed_run_id=run.seed_run_id,
        lineage=run.lineage,
        scheduled_for_us=run.scheduled_for,
        timezone=run.timezone,
        debounced=None if run.debounce_key is None else _debounced(run, run.debounce_key),
        **_SHOWN.to_wire(run),
    )


def _debounced(run: Run, key: str) -> pb.DebouncedStarts:
    return pb.DebouncedStarts(key=key, joins=run.joins, joined_at_us=run.joined_at, joined_by=run.joined_by)


def run_from_wire(workflow: pb.Workflow) -> Run:
    """Reads a run. A server that is not ours does not tell everything, and has words of its own."""
    status = either_status(workflow.exact_status, workflow.status)
    debounced = workflow.debounced if workflow.HasField("debounced") else None
    if not workflow.exact_status and workflow.error.code == common_pb2.ERROR_CODE_TIMEOUT:
        status = RunStatus.TIMED_OUT
    return Run(
        namespace=workflow.namespace,
        run_id=workflow.run_id,
        external_id=workflow.external_id or None,
        task_queue=workflow.task_queue,
        workflow_type=workflow.workflow_type,
        version=workflow.version,
        status=status,
        priority=workflow.priority,
        attempts=workflow.attempts,
        executions=workflow.executions,
        crashes=workflow.crashes,
        created_at=_micros(workflow.created_at.seconds, workflow.created_at.nanos),
        available_at=workflow.available_at_us if workflow.HasField("available_at_us") else None,
        started_at=_optional(workflow, "started_at"),
        finished_at=_optional(workflow, "finished_at"),
        deadline_at=workflow.deadline_at_us if workflow.HasField("deadline_at_us") else None,
        worker_id=workflow.worker_id if workflow.HasField("worker_id") else None,
        input=workflow.input.data,
        output=workflow.output.data if workflow.HasField("output") else None,
        error=error_from_wire(workflow.error, exact=bool(workflow.exact_status)),
        parent_run_id=workflow.parent_run_id or None,
        parent_step_id=workflow.parent_step_id or None,
        parent_attempt=_attempt_of(workflow),
        parent_policy=_policy_of(workflow.parent_policy),
        waiting_for=tuple(workflow.waiting_for),
        handles_run_id=workflow.handles_run_id if workflow.HasField("handles_run_id") else None,
        lease_expires_at=workflow.lease_expires_at_us if workflow.HasField("lease_expires_at_us") else None,
        cancel_deadline=workflow.cancel_deadline_us if workflow.HasField("cancel_deadline_us") else None,
        superseded_by=workflow.superseded_by or None,
        former_id=workflow.former_id or None,
        origin=workflow.origin_run_id or None,
        incarnation=workflow.incarnation,
        schedule_id=workflow.schedule_id or None,
        seed_run_id=workflow.seed_run_id or None,
        lineage=workflow.lineage or None,
        scheduled_for=workflow.scheduled_for_us if workflow.HasField("scheduled_for_us") else None,
        timezone=workflow.timezone or None,
        debounce_key=None if debounced is None else debounced.key,
        joins=0 if debounced is None else debounced.joins,
        joined_at=None if debounced is None or not debounced.joins else debounced.joined_at_us,
        joined_by=None if debounced is None else debounced.joined_by or None,
        **_SHOWN.from_wire(workflow),
    )


def filter_from_wire(request: pb.ListWorkflowsRequest) -> RunFilter:
    exact = request.HasField("exact_status_filter")
    status = None
    if exact:
        status = status_of(request.exact_status_filter, "exact_status_filter")
    elif request.status_filter:
        status = status_of(request.status_filter, "status_filter")
    return RunFilter(
        namespace=namespace_of(request.namespace),
        status=status,
        # Clients in the field know a run that has timed out as one that has failed, and look for it there.
        or_status=RunStatus.TIMED_OUT if status is RunStatus.FAILED and not exact else None,
        workflow_type=request.workflow_type if request.HasField("workflow_type") else None,
        task_queue=request.task_queue if request.HasField("task_queue") else None,
        created_after=optional_instant(request, "created_after"),
        created_before=optional_instant(request, "created_before"),
        parent_run_id=request.parent_run_id if request.HasField("parent_run_id") else None,
        tags=dict(request.tags),
        id_prefix=request.id_prefix if request.HasField("id_prefix") else None,
        error=request.error_type if request.HasField("error_type") else None,
        schedule_id=request.schedule_id if request.HasField("schedule_id") else None,
    )


def filter_to_wire(
    filter: RunFilter, *, page_size: int, page_token: str | None, total: bool = False
) -> pb.ListWorkflowsRequest:
    return pb.ListWorkflowsRequest(
        namespace=filter.namespace,
        status_filter=None if filter.status is None else old_status(filter.status),
        exact_status_filter=None if filter.status is None or filter.or_status is not None else _EXACT[filter.status],
        workflow_type=filter.workflow_type,
        task_queue=filter.task_queue,
        created_after=timestamp(filter.created_after),
        created_before=timestamp(filter.created_before),
        parent_run_id=filter.parent_run_id,
        tags=filter.tags,
        id_prefix=filter.id_prefix,
        error_type=filter.error,
        schedule_id=filter.schedule_id,
        page=page_request(page_size, page_token, total=total),
    )


def either_status(exact: int, known: int) -> RunStatus:
    """Returns the exact status; if the server tells none, or one that this version does not know, the one that
    everybody knows."""
    status = _STATUSES.get(exact) or _STATUSES.get(known)
    if status is None:
        raise unknown_value(f"status {exact or known} of a run")
    return status


def _policy_of(policy: str) -> ParentPolicy | None:
    """Returns the policy of a child; None for a run without a parent, and for one that a newer server has."""
    return ParentPolicy(policy) if policy in list(ParentPolicy) else None


def _optional(workflow: pb.Workflow, field: str) -> int | None:
    if not workflow.HasField(field):
        return None
    moment = getattr(workflow, field)
    return _micros(moment.seconds, moment.nanos)


def _micros(seconds: int, nanos: int) -> int:
    return seconds * SECOND + nanos // 1000
