"""Firing schedules: one transaction for many templates. It holds the only write lock, so Python decides."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from kagzi.api.operations import CancelAnswer, CancelRun
from kagzi.core.instant import Instant
from kagzi.core.run import RunStatus
from kagzi.core.schedule import Overlap, Template
from kagzi.store.protocol.changes import Recovered, Told
from kagzi.store.protocol.schedules import Fired
from kagzi.store.schedules import Due, Plan, Planned, fired, plan_all
from kagzi.store.sqlite.cancels import cancel
from kagzi.store.sqlite.schedule_rows import note_skips
from kagzi.store.sqlite.statements import execute


def fire(connection: sqlite3.Connection, limit: int, new_run_id: Callable[[], str], now: Instant) -> Fired:
    """Fires what is due."""
    due = execute(connection, "find_due_schedules", (now, limit)).fetchall()
    plans = plan_all(map(_due_of, due), now, new_run_id)
    runs: list[Recovered] = []
    told: list[tuple[str, CancelAnswer]] = []
    woken: list[Told] = []
    for each in plans:
        runs += _carry_out(connection, each, told, woken, now)
    return fired(plans, runs, told, woken, now)


def _carry_out(
    connection: sqlite3.Connection,
    plan: Plan,
    told: list[tuple[str, CancelAnswer]],
    woken: list[Told],
    now: Instant,
) -> list[Recovered]:
    namespace, schedule_id = key = plan.key
    firing = plan.firing
    if firing is None:
        execute(connection, "look_later", (*key, plan.look_at))
        if plan.error is not None:
            execute(connection, "note_schedule_error", (*key, plan.error))
        return []
    if firing.cancel_live:
        for (run_id,) in execute(connection, "find_live_firings", key).fetchall():
            answer = cancel(connection, CancelRun(namespace=namespace, run_id=run_id), woken, now)
            if isinstance(answer, CancelAnswer):
                told.append((namespace, answer))
    runs = insert_firings(connection, plan.runs, now)
    note_skips(connection, key, firing.skipped, now)
    look_at = plan.next_look([run.run_id for run in runs], now)
    execute(connection, "move_template", (*key, firing.next_fire_at, look_at))
    moved = (firing.fired_until, firing.kept_until, firing.buffered_for, plan.skipped)
    execute(connection, "move_schedule", (*key, *moved))
    count_firings(connection, schedule_id, runs, now)
    return runs


def insert_firings(connection: sqlite3.Connection, runs: Iterable[Planned], now: Instant) -> list[Recovered]:
    """Inserts what has no run yet. The unique index is the guard; an id that somebody has taken is only a label."""
    inserted = []
    for run in runs:
        for external_id in dict.fromkeys((run.external_id, None)):
            values = (now, run.available_at, run.scheduled_for)
            key = (run.namespace, run.schedule_id, run.run_id)
            if execute(connection, "insert_firing", (*key, external_id, *values)).rowcount:
                execute(connection, "copy_input", key)
                inserted.append(read_firing(connection, run.namespace, run.run_id))
                break
    return inserted


def read_firing(connection: sqlite3.Connection, namespace: str, run_id: str) -> Recovered:
    task_queue, status, available_at, _, workflow_type = execute(
        connection, "read_firing", (namespace, run_id)
    ).fetchone()
    return Recovered(
        namespace=namespace,
        run_id=run_id,
        task_queue=task_queue,
        status=RunStatus(status),
        available_at=available_at or 0,
        workflow_type=workflow_type,
    )


def count_firings(connection: sqlite3.Connection, schedule_id: str, runs: Sequence[Recovered], now: Instant) -> None:
    if runs:
        last = runs[-1]
        execute(connection, "count_firings", (last.namespace, schedule_id, len(runs), now, last.run_id))


def _due_of(row: tuple[Any, ...]) -> Due:
    return Due(
        namespace=row[0],
        template=Template(
            schedule_id=row[1],
            next_fire_at=row[2],
            fired_until=row[3],
            kept_until=row[4],
            max_catchup=row[5],
            overlap=Overlap(row[6]),
            jitter=row[7],
            buffered_for=row[8],
            live=bool(row[9]),
        ),
        cron_expr=row[10],
        timezone=row[11],
        enabled=bool(row[12]),
    )
