"""The two rows of a schedule: its template among the runs, and what stands beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kagzi.api.schedules import CreateSchedule
from kagzi.core.instant import Instant
from kagzi.core.run import RunStatus
from kagzi.core.schedule import MOST_SCHEDULES, Overlap, Schedule, Skip
from kagzi.core.tags import decode_tags, encode_tags
from kagzi.store.postgres.run_rows import columns_of
from kagzi.store.postgres.single import INLINE_BYTES
from kagzi.store.postgres.statements import STATEMENTS
from kagzi.store.schedules import first_firing

if TYPE_CHECKING:
    import asyncpg

    from kagzi.store.postgres.connection import Connection

_SCHEDULE_CLOCK = STATEMENTS["schedule_clock"]
_INSERT_TEMPLATE = STATEMENTS["insert_template"]
_INSERT_SCHEDULE = STATEMENTS["insert_schedule"]
_STORE_INPUTS = STATEMENTS["store_inputs"]
_DELETE_TEMPLATE_INPUT = STATEMENTS["delete_template_input"]
_UPDATE_TEMPLATE_INPUT = STATEMENTS["update_template_input"]
_GET_SCHEDULES = STATEMENTS["get_schedules"]
_FIND_SCHEDULE = STATEMENTS["find_schedule"]
_SCHEDULES_ARE_FULL = STATEMENTS["schedules_are_full"]
_INSERT_SKIPS = STATEMENTS["insert_skips"]

ScheduleKey = tuple[str, str]  # (namespace, schedule id)


class Full(Exception):
    """Raised instead of inserting one more schedule than a namespace may have."""


class Taken(Exception):
    """Raised to roll back what was inserted before the id or the name turned out to be taken."""

    def __init__(self, *, by_id: bool) -> None:
        super().__init__()
        self.by_id = by_id


async def insert_schedule(connection: Connection, create: CreateSchedule, now: Instant | None) -> None:
    """Inserts both rows, in a transaction of the caller's. Raises Full or Taken."""
    key = (create.namespace, create.schedule_id)
    if await connection.fetchval(_SCHEDULES_ARE_FULL, create.namespace, MOST_SCHEDULES):
        raise Full
    at: Instant = await connection.fetchval(_SCHEDULE_CLOCK, now)
    if not await _insert_template(connection, create, at):
        raise Taken(by_id=True)
    beside = (create.name, create.overlap.value, create.jitter, create.timeout, at)
    if await connection.fetchval(_INSERT_SCHEDULE, *key, *beside) is None:
        raise Taken(by_id=False)


async def _insert_template(connection: Connection, create: CreateSchedule, at: Instant) -> bool:
    inline = len(create.input) <= INLINE_BYTES
    made = await connection.fetchval(
        _INSERT_TEMPLATE,
        create.namespace,
        create.schedule_id,
        create.task_queue,
        create.workflow_type,
        create.version,
        (RunStatus.SCHEDULED if create.enabled else RunStatus.PAUSED).value,
        create.priority,
        at,
        first_firing(create.cron_expr, create.timezone, at) if create.enabled else None,
        create.cron_expr,
        create.timezone,
        create.max_catchup,
        create.input if inline else None,
        create.retry_policy,
        create.on_failure,
        create.on_failure_queue,
        encode_tags(create.tags),
        create.limit_key,
    )
    if made is not None and not inline:
        await connection.execute(_STORE_INPUTS, [create.namespace], [create.schedule_id], [create.input])
    return made is not None


async def replace_input(connection: Connection, key: ScheduleKey, input: bytes) -> None:
    await connection.execute(_DELETE_TEMPLATE_INPUT, *key)
    inline = len(input) <= INLINE_BYTES
    await connection.execute(_UPDATE_TEMPLATE_INPUT, *key, input if inline else None)
    if not inline:
        await connection.execute(_STORE_INPUTS, [key[0]], [key[1]], [input])


async def get_schedule(connection: Connection, namespace: str, schedule_id: str) -> Schedule | None:
    found = await get_schedules(connection, namespace, [schedule_id])
    return found[0] if found else None


async def get_schedules(connection: Connection, namespace: str, schedule_ids: Sequence[str]) -> list[Schedule]:
    return [_schedule_of(row) for row in await connection.fetch(_GET_SCHEDULES, namespace, schedule_ids)]


async def find_schedule(connection: Connection, namespace: str, name: str) -> str | None:
    found = await connection.fetchval(_FIND_SCHEDULE, namespace, name)
    return None if found is None else str(found)


async def note_skips(connection: Connection, skips: Sequence[tuple[ScheduleKey, Skip]], at: Instant) -> None:
    if skips:
        await connection.execute(
            _INSERT_SKIPS,
            at,
            *columns_of([key for key, _ in skips]),
            [skip.first_at for _, skip in skips],
            [skip.last_at for _, skip in skips],
            [skip.count for _, skip in skips],
            [skip.reason.value for _, skip in skips],
        )


def _schedule_of(row: asyncpg.Record) -> Schedule:
    return Schedule(
        namespace=row["namespace"],
        schedule_id=str(row["run_id"]),
        name=row["name"],
        workflow_type=row["workflow_type"],
        task_queue=row["task_queue"],
        version=row["version"],
        cron_expr=row["cron_expr"],
        timezone=row["timezone"],
        enabled=row["status"] == "SCHEDULED",
        input=row["input"],
        max_catchup=row["max_catchup"],
        overlap=Overlap(row["overlap"]),
        jitter=row["jitter"],
        priority=row["priority"],
        timeout=row["timeout"],
        retry_policy=row["retry_policy"],
        created_at=row["created_at"],
        updated_at=row["updated_at"],
        next_fire_at=row["next_fire_at"],
        last_fired_at=row["last_fired_at"],
        last_run_id=None if row["last_run_id"] is None else str(row["last_run_id"]),
        total_runs=row["total_runs"],
        successful_runs=row["successful_runs"],
        failed_runs=row["failed_runs"],
        skipped_runs=row["skipped_runs"],
        buffered_for=row["buffered_for"],
        error=row["error"],
        pause_reason=row["pause_reason"],
        tags=decode_tags(row["tags"]),
        declared=row["declared"],
        changed_by_hand=row["changed_by_hand"],
        abandoned=row["abandoned"],
        on_failure=row["on_failure"],
        on_failure_queue=row["on_failure_queue"],
        limit_key=row["limit_key"],
    )
