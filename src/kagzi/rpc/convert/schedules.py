"""Schedules: messages into core and api, and back."""

from __future__ import annotations

from kagzi._proto.v1 import workflow_schedule_pb2 as pb
from kagzi.api.schedules import CreateSchedule, UpdateSchedule
from kagzi.core.instant import Instant
from kagzi.core.schedule import DEFAULT_CATCHUP, LONGEST_JITTER, Overlap, Schedule, Skip, SkipReason, check_overlap
from kagzi.errors import InvalidRequest
from kagzi.rpc.convert.common import (
    instant,
    optional_instant,
    payload_from_bytes,
    payload_to_bytes,
    plain_bytes,
    timestamp,
)
from kagzi.rpc.convert.unknown import unknown_value

_MS = 1000


def schedule_to_wire(schedule: Schedule) -> pb.WorkflowSchedule:
    return pb.WorkflowSchedule(
        namespace=schedule.namespace,
        schedule_id=schedule.schedule_id,
        task_queue=schedule.task_queue,
        workflow_type=schedule.workflow_type,
        cron_expr=schedule.cron_expr,
        version=schedule.version,
        enabled=schedule.enabled,
        input=payload_from_bytes(schedule.input),
        max_catchup=schedule.max_catchup,
        total_runs=schedule.total_runs,
        successful_runs=schedule.successful_runs,
        failed_runs=schedule.failed_runs,
        created_at=timestamp(schedule.created_at),
        updated_at=timestamp(schedule.updated_at),
        next_fire_at=timestamp(schedule.next_fire_at),
        last_fired_at=timestamp(schedule.last_fired_at),
        name=schedule.name,
        timezone=schedule.timezone,
        overlap=schedule.overlap.value,
        jitter_ms=schedule.jitter // _MS,
        skipped_runs=schedule.skipped_runs,
        buffered_for=timestamp(schedule.buffered_for),
        declared=schedule.declared,
        error=schedule.error,
        exact_retry_policy=schedule.retry_policy,
        pause_reason=schedule.pause_reason,
        priority=schedule.priority,
        timeout_us=schedule.timeout,
        last_run_id=schedule.last_run_id,
        tags=schedule.tags,
        limit_key=schedule.limit_key,
        on_failure=schedule.on_failure,
        on_failure_queue=schedule.on_failure_queue,
        changed_by_hand=schedule.changed_by_hand,
        abandoned=schedule.abandoned,
    )


def schedule_from_wire(schedule: pb.WorkflowSchedule) -> Schedule:
    try:
        overlap = Overlap(schedule.overlap or Overlap.ALLOW)
    except ValueError:
        raise unknown_value(f"the overlap {schedule.overlap!r}") from None
    return Schedule(
        namespace=schedule.namespace,
        schedule_id=schedule.schedule_id,
        name=schedule.name if schedule.HasField("name") else None,
        workflow_type=schedule.workflow_type,
        task_queue=schedule.task_queue,
        version=schedule.version,
        cron_expr=schedule.cron_expr,
        timezone=schedule.timezone,
        enabled=schedule.enabled,
        input=plain_bytes(payload_to_bytes(schedule.input)),
        max_catchup=schedule.max_catchup,
        overlap=overlap,
        jitter=schedule.jitter_ms * _MS,
        priority=schedule.priority,
        timeout=schedule.timeout_us if schedule.HasField("timeout_us") else None,
        retry_policy=schedule.exact_retry_policy if schedule.HasField("exact_retry_policy") else None,
        created_at=schedule.created_at.ToMicroseconds(),
        updated_at=schedule.updated_at.ToMicroseconds(),
        next_fire_at=_read(schedule, "next_fire_at"),
        last_fired_at=_read(schedule, "last_fired_at"),
        last_run_id=schedule.last_run_id if schedule.HasField("last_run_id") else None,
        total_runs=schedule.total_runs,
        successful_runs=schedule.successful_runs,
        failed_runs=schedule.failed_runs,
        skipped_runs=schedule.skipped_runs,
        buffered_for=_read(schedule, "buffered_for"),
        error=schedule.error if schedule.HasField("error") else None,
        pause_reason=schedule.pause_reason if schedule.HasField("pause_reason") else None,
        declared=schedule.declared,
        tags=dict(schedule.tags),
        limit_key=schedule.limit_key if schedule.HasField("limit_key") else None,
        changed_by_hand=schedule.changed_by_hand,
        abandoned=schedule.abandoned,
        on_failure=schedule.on_failure if schedule.HasField("on_failure") else None,
        on_failure_queue=schedule.on_failure_queue if schedule.HasField("on_failure_queue") else None,
    )


def _read(schedule: pb.WorkflowSchedule, field: str) -> Instant | None:
    if not schedule.HasField(field):
        return None
    at: Instant = getattr(schedule, field).ToMicroseconds()
    return at


def create_to_wire(create: CreateSchedule) -> pb.CreateWorkflowScheduleRequest:
    return pb.CreateWorkflowScheduleRequest(
        namespace=create.namespace,
        task_queue=create.task_queue,
        workflow_type=create.workflow_type,
        cron_expr=create.cron_expr,
        input=payload_from_bytes(create.input),
        enabled=create.enabled,
        max_catchup=create.max_catchup,
        version=create.version or None,
        schedule_id=create.schedule_id,
        name=create.name,
        timezone=create.timezone,
        overlap=create.overlap.value,
        jitter_ms=_milliseconds(create.jitter),
        priority=create.priority,
        timeout_us=create.timeout,
        exact_retry_policy=create.retry_policy,
        tags=create.tags,
        limit_key=create.limit_key,
        on_failure=create.on_failure,
        on_failure_queue=create.on_failure_queue,
        complete=not create.by_name,
        other_queue=create.other_queue,
    )


def create_from_wire(request: pb.CreateWorkflowScheduleRequest, *, namespace: str, schedule_id: str) -> CreateSchedule:
    return CreateSchedule(
        namespace=namespace,
        schedule_id=schedule_id,
        name=request.name if request.HasField("name") else None,
        workflow_type=request.workflow_type,
        # Clients in the field leave it empty: their queue is named like the workflow.
        task_queue=request.task_queue or request.workflow_type,
        version=request.version,
        cron_expr=request.cron_expr,
        timezone=request.timezone or "UTC",
        enabled=request.enabled if request.HasField("enabled") else True,
        input=payload_to_bytes(request.input),
        max_catchup=request.max_catchup if request.HasField("max_catchup") else DEFAULT_CATCHUP,
        overlap=check_overlap(request.overlap or Overlap.ALLOW),
        jitter=_span(request.jitter_ms),
        priority=request.priority,
        timeout=request.timeout_us if request.HasField("timeout_us") else None,
        retry_policy=request.exact_retry_policy if request.HasField("exact_retry_policy") else None,
        tags=dict(request.tags),
        limit_key=request.limit_key if request.HasField("limit_key") else None,
        on_failure=request.on_failure if request.HasField("on_failure") else None,
        on_failure_queue=request.on_failure_queue if request.HasField("on_failure_queue") else None,
        by_name=not request.complete,
        other_queue=request.other_queue or not request.task_queue,
    )


def update_to_wire(update: UpdateSchedule) -> pb.UpdateWorkflowScheduleRequest:
    request = pb.UpdateWorkflowScheduleRequest(
        namespace=update.namespace,
        schedule_id=update.schedule_id,
        task_queue=update.task_queue,
        workflow_type=update.workflow_type,
        cron_expr=update.cron_expr,
        input=None if update.input is None else payload_from_bytes(update.input),
        max_catchup=update.max_catchup,
        next_fire_at=timestamp(update.next_fire_at),
        version=update.version,
        timezone=update.timezone,
        overlap=None if update.overlap is None else update.overlap.value,
        jitter_ms=None if update.jitter is None else _milliseconds(update.jitter),
        priority=update.priority,
        timeout_us=update.timeout,
        exact_retry_policy=update.retry_policy,
        pause_reason=update.pause_reason,
        tags=None if update.tags is None else pb.ScheduleTags(tags=update.tags),
        limit_key=update.limit_key,
        on_failure=update.on_failure,
        on_failure_queue=update.on_failure_queue,
        reset=update.reset,
    )
    if update.enabled is not None:
        request.enabled = update.enabled
    return request


def update_from_wire(request: pb.UpdateWorkflowScheduleRequest, *, namespace: str) -> UpdateSchedule:
    return UpdateSchedule(
        namespace=namespace,
        schedule_id=request.schedule_id,
        workflow_type=request.workflow_type if request.HasField("workflow_type") else None,
        task_queue=request.task_queue if request.HasField("task_queue") else None,
        version=request.version if request.HasField("version") else None,
        cron_expr=request.cron_expr if request.HasField("cron_expr") else None,
        timezone=request.timezone if request.HasField("timezone") else None,
        enabled=request.enabled if request.HasField("enabled") else None,
        input=payload_to_bytes(request.input) if request.HasField("input") else None,
        max_catchup=request.max_catchup if request.HasField("max_catchup") else None,
        overlap=check_overlap(request.overlap) if request.HasField("overlap") else None,
        jitter=_span(request.jitter_ms) if request.HasField("jitter_ms") else None,
        priority=request.priority if request.HasField("priority") else None,
        timeout=request.timeout_us if request.HasField("timeout_us") else None,
        retry_policy=request.exact_retry_policy if request.HasField("exact_retry_policy") else None,
        next_fire_at=optional_instant(request, "next_fire_at"),
        pause_reason=request.pause_reason if request.HasField("pause_reason") else None,
        tags=dict(request.tags.tags) if request.HasField("tags") else None,
        limit_key=request.limit_key if request.HasField("limit_key") else None,
        on_failure=request.on_failure if request.HasField("on_failure") else None,
        on_failure_queue=request.on_failure_queue if request.HasField("on_failure_queue") else None,
        reset=request.reset,
    )


def skip_to_wire(skip: Skip) -> pb.ScheduleSkip:
    return pb.ScheduleSkip(
        first_at=timestamp(skip.first_at),
        last_at=timestamp(skip.last_at),
        count=skip.count,
        reason=skip.reason.value,
        at=timestamp(skip.at),
    )


def skip_from_wire(skip: pb.ScheduleSkip) -> Skip:
    try:
        reason = SkipReason(skip.reason)
    except ValueError:
        raise unknown_value(f"the reason {skip.reason!r} for a skipped firing") from None
    return Skip(
        first_at=skip.first_at.ToMicroseconds(),
        last_at=skip.last_at.ToMicroseconds(),
        count=skip.count,
        reason=reason,
        at=skip.at.ToMicroseconds(),
    )


def backfill_from_wire(request: pb.BackfillWorkflowScheduleRequest) -> tuple[Instant, Instant]:
    for field in ("since", "until"):
        if not request.HasField(field):
            raise InvalidRequest(f"{field} is missing; a backfill needs both moments")
    return instant(request.since, "since"), instant(request.until, "until")


def _milliseconds(span: int) -> int:
    return -(-span // _MS)


def _span(milliseconds: int) -> int:
    if not 0 <= milliseconds <= LONGEST_JITTER // _MS:
        raise InvalidRequest(f"jitter_ms must be between 0 and {LONGEST_JITTER // _MS:,}, not {milliseconds}")
    return milliseconds * _MS
