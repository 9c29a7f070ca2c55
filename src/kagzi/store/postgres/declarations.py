"""What code declares of schedules: made, taken over or left alone, as `core.declaration` judges."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kagzi.api.schedules import DeclareSchedule
from kagzi.core.declaration import Declaration, Standing, Verdict, judge
from kagzi.core.instant import Instant
from kagzi.core.run import RunStatus
from kagzi.store.postgres.schedule_rows import (
    Full,
    ScheduleKey,
    Taken,
    find_schedule,
    insert_schedule,
    note_skips,
    replace_input,
)
from kagzi.store.postgres.statements import STATEMENTS
from kagzi.store.schedules import created, dropped, first_firing, taken, too_many

if TYPE_CHECKING:
    import asyncpg

    from kagzi.store.postgres.connection import Connection

_LOCK_TEMPLATE = STATEMENTS["lock_template"]
_READ_DECLARATION = STATEMENTS["read_declaration"]
_NOTE_DECLARATION = STATEMENTS["note_declaration"]
_DECLARE_TEMPLATE = STATEMENTS["declare_template"]
_DECLARE_SCHEDULE = STATEMENTS["declare_schedule"]
_MOVE_TEMPLATE = STATEMENTS["move_template"]
_MOVE_WATERMARK = STATEMENTS["move_watermark"]


async def declare_schedule(connection: Connection, declare: DeclareSchedule, now: Instant | None) -> Verdict:
    """Makes what is declared so, if the declaration counts. Begins anew if the name changes hands meanwhile."""
    while True:
        schedule_id = await find_schedule(connection, declare.namespace, declare.declaration.name)
        if schedule_id is None:
            verdict = await _create(connection, declare, now)
        else:
            verdict = await _judge(connection, (declare.namespace, schedule_id), declare, now)
        if verdict is not None:
            return verdict


async def _create(connection: Connection, declare: DeclareSchedule, now: Instant | None) -> Verdict | None:
    create = created(declare)
    try:
        async with connection.transaction():
            await insert_schedule(connection, create, now)
            key = (create.namespace, create.schedule_id)
            await connection.execute(_NOTE_DECLARATION, *key, declare.declaration.hash, declare.worker_id)
    except Full:
        raise too_many(create.namespace) from None
    except Taken as by:
        if by.by_id:
            raise taken(create, by_id=True) from None
        return None
    return Verdict.CREATED


async def _judge(
    connection: Connection, key: ScheduleKey, declare: DeclareSchedule, now: Instant | None
) -> Verdict | None:
    declared = declare.declaration
    async with connection.transaction():
        template = await connection.fetchrow(_LOCK_TEMPLATE, *key, now)
        beside = None if template is None else await connection.fetchrow(_READ_DECLARATION, *key)
        if template is None or beside is None or beside["name"] != declared.name:
            return None
        standing = Standing(
            hash=beside["declared_hash"],
            declared_by=beside["declared_by"],
            declarer_live=beside["declarer_live"],
            changed_by_hand=beside["changed_by_hand"],
        )
        verdict = judge(standing, declared.hash, declare.worker_id, starting=declare.starting)
        if verdict is Verdict.TAKEN_OVER:
            await _take_over(connection, key, declared, template, beside)
        if verdict in (Verdict.TAKEN_OVER, Verdict.CONFIRMED):
            await connection.execute(_NOTE_DECLARATION, *key, declared.hash, declare.worker_id)
    return verdict


async def _take_over(
    connection: Connection, key: ScheduleKey, declared: Declaration, template: asyncpg.Record, beside: asyncpg.Record
) -> None:
    now: Instant = template["now"]
    fires = (declared.cron_expr, declared.timezone, declared.max_catchup, declared.priority, declared.retry_policy)
    handled = (declared.on_failure, declared.on_failure_queue, declared.limit_key)
    await connection.execute(_DECLARE_TEMPLATE, *key, declared.task_queue, declared.workflow_type, *fires, *handled)
    await connection.execute(_DECLARE_SCHEDULE, *key, declared.overlap.value, declared.jitter, declared.timeout, now)
    await replace_input(connection, key, declared.input)
    fired_until: Instant = beside["fired_until"]
    if (template["cron_expr"], template["timezone"]) != (declared.cron_expr, declared.timezone):
        fired_until = max(fired_until, now)
        enabled = template["status"] == RunStatus.SCHEDULED.value
        following = first_firing(declared.cron_expr, declared.timezone, fired_until) if enabled else None
        await connection.execute(_MOVE_TEMPLATE, *key, following)
    elif beside["overlap"] == declared.overlap.value:
        return
    skips = dropped(beside["buffered_for"])
    await note_skips(connection, [(key, skip) for skip in skips], now)
    await connection.execute(_MOVE_WATERMARK, *key, fired_until, len(skips))
