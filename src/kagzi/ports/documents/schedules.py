"""Schedules, their firings and skips, as people read them."""

from __future__ import annotations

from typing import Annotated
from zoneinfo import ZoneInfo

from msgspec import Meta, Raw, Struct

from kagzi.core.cron import Times, moved
from kagzi.core.instant import SECOND, Instant, to_datetime
from kagzi.core.schedule import Overlap, Schedule, Skip, SkipReason
from kagzi.ports.documents.common import Count, Moment, _moment, moment, payload


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


def firing_document(times: Times, zone: str, at: Instant) -> FiringDocument:
    local = to_datetime(at).astimezone(ZoneInfo(zone)).isoformat()
    return FiringDocument(at=_moment(at), local=local, note=moved(times, at))
