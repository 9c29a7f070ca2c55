"""Schedules: making, changing, firing and reading them."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import Final

from msgspec.structs import replace

from kagzi.api.schedules import CreateSchedule, DeclareSchedule, UpdateSchedule
from kagzi.core.declaration import Verdict
from kagzi.core.instant import Instant
from kagzi.core.page import Cursor
from kagzi.core.run import Run, RunStatus
from kagzi.core.schedule import Schedule, ScheduleCounts, Skip, SkipReason
from kagzi.errors import Conflict, InvalidRequest, LimitExceeded
from kagzi.store.protocol.changes import Recovered
from kagzi.store.protocol.schedules import Fired
from kagzi.store.schedules import (
    changed_template,
    dropped,
    first_firing,
    not_fired,
    planned,
    refuse_fired,
)
from kagzi.store.sqlite.declarations import declare_schedule
from kagzi.store.sqlite.firings import count_firings, fire, insert_firings, read_firing
from kagzi.store.sqlite.nouns import Noun, reads, writes
from kagzi.store.sqlite.runs import get_runs
from kagzi.store.sqlite.schedule_rows import get_schedule, insert_schedule, note_skips, replace_input
from kagzi.store.sqlite.statements import execute

_LAST: Final = "\U0010ffff"  # sorts behind every id


class Schedules(Noun):
    """See `store.protocol.schedules.Schedules`."""

    @writes
    def create(self, connection: sqlite3.Connection, create: CreateSchedule) -> Schedule | Conflict | LimitExceeded:
        return insert_schedule(connection, create, self.now())

    @reads
    def get(self, connection: sqlite3.Connection, namespace: str, schedule_id: str) -> Schedule | None:
        return get_schedule(connection, namespace, schedule_id)

    @reads
    def find(self, connection: sqlite3.Connection, namespace: str, name: str) -> str | None:
        row = execute(connection, "find_schedule", (namespace, name)).fetchone()
        return None if row is None else str(row[0])

    @reads
    def page(
        self, connection: sqlite3.Connection, namespace: str, task_queue: str | None, cursor: Cursor | None, limit: int
    ) -> list[Schedule]:
        backward = cursor is not None and cursor.backward
        rows = execute(
            connection,
            "list_schedule_ids_backward" if backward else "list_schedule_ids",
            (namespace, _LAST if cursor is None else cursor.key, task_queue, limit),
        ).fetchall()
        found = (get_schedule(connection, namespace, schedule_id) for (schedule_id,) in rows)
        return [schedule for schedule in found if schedule is not None]

    @writes
    def declare(self, connection: sqlite3.Connection, declare: DeclareSchedule) -> Verdict:
        return declare_schedule(connection, declare, self.now())

    @writes
    def update(self, connection: sqlite3.Connection, update: UpdateSchedule) -> Schedule | InvalidRequest | None:
        now = self.now()
        key = (update.namespace, update.schedule_id)
        if update.reset:
            execute(connection, "forget_declaration", key)
            return get_schedule(connection, *key)
        row = execute(connection, "read_watermark", key).fetchone()
        if row is None:
            return None
        fired_until, buffered_for, status, cron_expr, timezone, due_at = row
        fired_until = max(fired_until, now)
        if (refused := refuse_fired(update.next_fire_at, fired_until)) is not None:
            return refused
        enabled = status == RunStatus.SCHEDULED.value if update.enabled is None else update.enabled
        following = update.next_fire_at
        if following is None:
            following = first_firing(update.cron_expr or cron_expr, update.timezone or timezone, fired_until)
        execute(
            connection,
            "update_template",
            (
                *key,
                (RunStatus.SCHEDULED if enabled else RunStatus.PAUSED).value,
                following if enabled else None,
                *changed_template(update),
            ),
        )
        if update.input is not None:
            replace_input(connection, key, update.input)
        skips = dropped(buffered_for) + not_fired(cron_expr, timezone, due_at, now)
        note_skips(connection, key, skips, now)
        skipped = sum(skip.count for skip in skips)
        overlap = None if update.overlap is None else update.overlap.value
        reason = None if enabled else update.pause_reason
        execute(
            connection,
            "update_schedule",
            (*key, overlap, update.jitter, update.timeout, fired_until, reason, now, skipped, update.is_by_hand),
        )
        return get_schedule(connection, *key)

    @writes
    def delete(self, connection: sqlite3.Connection, namespace: str, schedule_id: str) -> bool:
        key = (namespace, schedule_id)
        if not execute(connection, "delete_template", key).rowcount:
            return False
        execute(connection, "delete_schedule", key)
        execute(connection, "delete_payloads", key)
        return True

    @writes
    def trigger(
        self, connection: sqlite3.Connection, namespace: str, schedule_id: str, run_id: str
    ) -> Recovered | Conflict | None:
        now = self.now()
        if execute(connection, "read_watermark", (namespace, schedule_id)).fetchone() is None:
            return None
        runs = insert_firings(connection, [planned(namespace, schedule_id, run_id, None, now)], now)
        count_firings(connection, schedule_id, runs, now)
        if runs:
            return runs[0]
        found = execute(connection, "read_firing", (namespace, run_id)).fetchone()
        if found[3] != schedule_id:
            return Conflict(f"run id {run_id} belongs to another run")
        return replace(read_firing(connection, namespace, run_id), workflow_type="")  # it is not new

    @writes
    def backfill(
        self, connection: sqlite3.Connection, schedule: Schedule, instants: Sequence[tuple[Instant, str]]
    ) -> list[Recovered] | None:
        now = self.now()
        row = execute(connection, "read_watermark", (schedule.namespace, schedule.schedule_id)).fetchone()
        if row is None or row[3:5] != (schedule.cron_expr, schedule.timezone):
            return None
        wanted = [planned(schedule.namespace, schedule.schedule_id, run_id, at, now) for at, run_id in instants]
        runs = insert_firings(connection, wanted, now)
        count_firings(connection, schedule.schedule_id, runs, now)
        return runs

    @reads
    def count(self, connection: sqlite3.Connection, namespace: str | None) -> ScheduleCounts:
        return ScheduleCounts(*execute(connection, "count_schedules", (namespace,)).fetchone())

    @reads
    def page_of_runs(
        self, connection: sqlite3.Connection, namespace: str, schedule_id: str, cursor: Cursor | None, limit: int
    ) -> list[Run]:
        backward = cursor is not None and cursor.backward
        rows = execute(
            connection,
            "list_schedule_run_ids_backward" if backward else "list_schedule_run_ids",
            (namespace, schedule_id, _LAST if cursor is None else cursor.key, limit),
        ).fetchall()
        return get_runs(connection, [(namespace, run_id) for (run_id,) in rows])

    @reads
    def skips(self, connection: sqlite3.Connection, namespace: str, schedule_id: str, limit: int) -> list[Skip]:
        rows = execute(connection, "list_skips", (namespace, schedule_id, limit)).fetchall()
        return [
            Skip(first_at=first, last_at=last, count=count, reason=SkipReason(reason), at=at)
            for first, last, count, reason, at in rows
        ]

    @writes
    def fire(self, connection: sqlite3.Connection, limit: int, new_run_id: Callable[[], str]) -> Fired:
        return fire(connection, limit, new_run_id, self.now())

    async def fold_ends(self, limit: int) -> int:
        # Looking needs no write lock, and there is seldom anything to add.
        if not await self.database.read(_has_ends):
            return 0
        now = self.now
        return await self.database.write(lambda connection: _fold_ends(connection, limit, now()))

    async def prune_skips(self, limit: int) -> int:
        now = self.now
        old = await self.database.read(lambda connection: _find_old_skips(connection, limit, now()))
        return await self.database.write(lambda connection: _delete_skips(connection, old)) if old else 0


def _fold_ends(connection: sqlite3.Connection, limit: int, now: Instant) -> int:
    found = execute(connection, "find_schedule_ends", (limit,)).fetchall()
    for namespace, schedule_id, successful, failed, buffered_for in found:
        key = (namespace, schedule_id)
        execute(connection, "count_ends", (*key, successful, failed))
        execute(connection, "delete_schedule_ends", key)
        if buffered_for is not None:
            execute(connection, "hurry_template", (*key, now))
    return len(found)


def _has_ends(connection: sqlite3.Connection) -> bool:
    return bool(execute(connection, "find_schedule_ends", (1,)).fetchall())


def _find_old_skips(connection: sqlite3.Connection, limit: int, now: Instant) -> list[int]:
    return [skip_id for (skip_id,) in execute(connection, "find_old_skips", (now, limit))]


def _delete_skips(connection: sqlite3.Connection, skips: Sequence[int]) -> int:
    return sum(execute(connection, "delete_skip", (skip_id,)).rowcount for skip_id in skips)
