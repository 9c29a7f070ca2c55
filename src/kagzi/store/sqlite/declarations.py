"""What code declares of schedules: made, taken over or left alone, as `core.declaration` judges."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

from kagzi.api.schedules import DeclareSchedule
from kagzi.core.declaration import Declaration, Standing, Verdict, judge
from kagzi.core.instant import Instant
from kagzi.core.run import RunStatus
from kagzi.errors import Conflict, LimitExceeded
from kagzi.store.schedules import created, dropped, first_firing
from kagzi.store.sqlite.schedule_rows import ScheduleKey, insert_schedule, note_skips, replace_input
from kagzi.store.sqlite.statements import execute


def declare_schedule(connection: sqlite3.Connection, declare: DeclareSchedule, now: Instant) -> Verdict:
    """Makes what is declared so, if the declaration counts."""
    declared = declare.declaration
    row = execute(connection, "read_declaration", (declare.namespace, declared.name)).fetchone()
    if row is None:
        made = insert_schedule(connection, created(declare), now)
        if isinstance(made, Conflict | LimitExceeded):
            raise made
        execute(connection, "note_declaration", (made.namespace, made.schedule_id, declared.hash, declare.worker_id))
        return Verdict.CREATED
    schedule_id, hash, declared_by, by_hand, live, *times = row
    standing = Standing(hash=hash, declared_by=declared_by, declarer_live=bool(live), changed_by_hand=bool(by_hand))
    verdict = judge(standing, declared.hash, declare.worker_id, starting=declare.starting)
    key = (declare.namespace, schedule_id)
    if verdict is Verdict.TAKEN_OVER:
        _take_over(connection, key, declared, times, now)
    if verdict in (Verdict.TAKEN_OVER, Verdict.CONFIRMED):
        execute(connection, "note_declaration", (*key, declared.hash, declare.worker_id))
    return verdict


def _take_over(
    connection: sqlite3.Connection, key: ScheduleKey, declared: Declaration, times: Sequence[Any], now: Instant
) -> None:
    cron_expr, timezone, status, fired_until, buffered_for, overlap = times
    fires = (declared.cron_expr, declared.timezone, declared.max_catchup, declared.priority, declared.retry_policy)
    handled = (declared.on_failure, declared.on_failure_queue, declared.limit_key)
    execute(connection, "declare_template", (*key, declared.task_queue, declared.workflow_type, *fires, *handled))
    execute(connection, "declare_schedule", (*key, declared.overlap.value, declared.jitter, declared.timeout, now))
    replace_input(connection, key, declared.input)
    if (cron_expr, timezone) != (declared.cron_expr, declared.timezone):
        fired_until = max(fired_until, now)
        enabled = status == RunStatus.SCHEDULED.value
        following = first_firing(declared.cron_expr, declared.timezone, fired_until) if enabled else None
        execute(connection, "move_template", (*key, following, following))
    elif overlap == declared.overlap.value:
        return
    skips = dropped(buffered_for)
    note_skips(connection, key, skips, now)
    execute(connection, "move_watermark", (*key, fired_until, len(skips)))
