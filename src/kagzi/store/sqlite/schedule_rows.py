"""The two rows of a schedule: its template among the runs, and what stands beside it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from typing import Any

from kagzi.api.schedules import CreateSchedule
from kagzi.core.instant import Instant
from kagzi.core.run import RunStatus
from kagzi.core.schedule import MOST_SCHEDULES, Overlap, Schedule, Skip
from kagzi.core.tags import decode_tags, encode_tags
from kagzi.errors import Conflict, LimitExceeded
from kagzi.store.schedules import first_firing, same_schedule, taken, too_many
from kagzi.store.sqlite.run_rows import INLINE_BYTES
from kagzi.store.sqlite.statements import execute, execute_rows

ScheduleKey = tuple[str, str]  # (namespace, schedule id)


def insert_schedule(
    connection: sqlite3.Connection, create: CreateSchedule, now: Instant
) -> Schedule | Conflict | LimitExceeded:
    key = (create.namespace, create.schedule_id)
    if execute(connection, "schedules_are_full", (create.namespace, MOST_SCHEDULES)).fetchone()[0]:
        same = get_schedule(connection, *key)  # one that is made twice is there
        return same if same is not None and same_schedule(create, same) else too_many(create.namespace)
    first = first_firing(create.cron_expr, create.timezone, now) if create.enabled else None
    status = RunStatus.SCHEDULED if create.enabled else RunStatus.PAUSED
    inline = create.input if len(create.input) <= INLINE_BYTES else None
    connection.execute("SAVEPOINT creating")
    made = execute(
        connection,
        "insert_template",
        (
            *key,
            create.task_queue,
            create.workflow_type,
            create.version,
            status.value,
            create.priority,
            now,
            first,
            first,
            create.cron_expr,
            create.timezone,
            create.max_catchup,
            inline,
            create.retry_policy,
            create.on_failure,
            create.on_failure_queue,
            encode_tags(create.tags),
            create.limit_key,
        ),
    ).rowcount
    beside = (create.name, create.overlap.value, create.jitter, create.timeout, now)
    named = made and execute(connection, "insert_schedule", (*key, *beside)).rowcount
    if not named:
        connection.execute("ROLLBACK TO creating")
    connection.execute("RELEASE creating")
    if named and inline is None:
        execute_rows(connection, "insert_payloads", [(*key, "input", create.input)])
    found = get_schedule(connection, *key)
    if not named and (found is None or not same_schedule(create, found)):
        return taken(create, by_id=not made)
    assert found is not None
    return found


def replace_input(connection: sqlite3.Connection, key: ScheduleKey, input: bytes) -> None:
    execute(connection, "delete_payloads", key)
    inline = len(input) <= INLINE_BYTES
    execute(connection, "update_template_input", (*key, input if inline else None))
    if not inline:
        execute_rows(connection, "insert_payloads", [(*key, "input", input)])


def get_schedule(connection: sqlite3.Connection, namespace: str, schedule_id: str) -> Schedule | None:
    row = execute(connection, "get_schedule", (namespace, schedule_id)).fetchone()
    return None if row is None else _schedule_of(row)


def note_skips(connection: sqlite3.Connection, key: ScheduleKey, skips: Iterable[Skip], now: Instant) -> None:
    for skip in skips:
        about = (skip.first_at, skip.last_at, skip.count, skip.reason.value, now)
        execute(connection, "insert_skip", (*key, *about))


def _schedule_of(row: tuple[Any, ...]) -> Schedule:
    return Schedule(
        namespace=row[0],
        schedule_id=row[1],
        name=row[2],
        workflow_type=row[3],
        task_queue=row[4],
        version=row[5],
        cron_expr=row[6],
        timezone=row[7],
        enabled=bool(row[8]),
        input=row[9],
        max_catchup=row[10],
        overlap=Overlap(row[11]),
        jitter=row[12],
        priority=row[13],
        timeout=row[14],
        retry_policy=row[15],
        created_at=row[16],
        updated_at=row[17],
        next_fire_at=row[18],
        last_fired_at=row[19],
        last_run_id=row[20],
        total_runs=row[21],
        successful_runs=row[22],
        failed_runs=row[23],
        skipped_runs=row[24],
        buffered_for=row[25],
        error=row[26],
        pause_reason=row[27],
        tags=decode_tags(row[33]),
        declared=bool(row[28]),
        changed_by_hand=bool(row[29]),
        abandoned=bool(row[30]),
        on_failure=row[31],
        on_failure_queue=row[32],
        limit_key=row[34],
    )
