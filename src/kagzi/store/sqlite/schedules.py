"""Schedules: making, changing and firing them. A transaction holds the only write lock, so Python decides."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from msgspec.structs import replace

from kagzi.api.operations import CancelAnswer, CancelRun
from kagzi.api.schedules import CreateSchedule, DeclareSchedule, UpdateSchedule
from kagzi.core.declaration import Declaration, Standing, Verdict, judge
from kagzi.core.instant import Instant
from kagzi.core.page import Cursor
from kagzi.core.run import Run, RunStatus
from kagzi.core.schedule import MOST_COUNTED, Overlap, Schedule, ScheduleCounts, Skip, SkipReason, Template
from kagzi.core.tags import decode_tags, encode_tags
from kagzi.errors import Conflict, InvalidRequest
from kagzi.store.protocol.changes import Recovered, Told
from kagzi.store.protocol.schedules import Fired
from kagzi.store.schedules import (
    Due,
    Plan,
    Planned,
    created,
    dropped,
    first_firing,
    lateness,
    not_fired,
    plan,
    planned,
    refuse_fired,
    same_schedule,
    taken,
    turns,
)
from kagzi.store.sqlite.cancels import cancel
from kagzi.store.sqlite.nouns import Noun, reads, writes
from kagzi.store.sqlite.run_rows import INLINE_BYTES
from kagzi.store.sqlite.runs import get_runs
from kagzi.store.sqlite.statements import execute, execute_rows

_LAST: Final = "\U0010ffff"  # sorts behind every id


class Schedules(Noun):
    """See `store.protocol.schedules.Schedules`."""

    @writes
    def create(self, connection: sqlite3.Connection, create: CreateSchedule) -> Schedule | Conflict:
        return create_schedule(connection, create, self.now())

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
        now = self.now()
        declared = declare.declaration
        row = execute(connection, "read_declaration", (declare.namespace, declared.name)).fetchone()
        if row is None:
            made = create_schedule(connection, created(declare), now)
            if isinstance(made, Conflict):
                raise made
            execute(connection, "note_declaration", (*_key(declare), declared.hash, declare.worker_id))
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
                update.task_queue,
                update.workflow_type,
                update.version,
                update.cron_expr,
                update.timezone,
                update.max_catchup,
                update.priority,
                update.retry_policy,
                update.on_failure,
                update.on_failure_queue,
                None if update.tags is None else encode_tags(update.tags) or "{}",
                update.limit_key,
            ),
        )
        if update.input is not None:
            _replace_input(connection, key, update.input)
        skips = dropped(buffered_for) + not_fired(cron_expr, timezone, due_at, now)
        _note_skips(connection, key, skips, now)
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
        runs = _insert(connection, [planned(namespace, schedule_id, run_id, None, now)], now)
        _count(connection, schedule_id, runs, now)
        if runs:
            return runs[0]
        found = execute(connection, "read_firing", (namespace, run_id)).fetchone()
        if found[3] != schedule_id:
            return Conflict(f"run id {run_id} belongs to another run")
        return replace(_read_firing(connection, namespace, run_id), workflow_type="")  # it is not new

    @writes
    def backfill(
        self, connection: sqlite3.Connection, schedule: Schedule, instants: Sequence[tuple[Instant, str]]
    ) -> list[Recovered] | None:
        now = self.now()
        row = execute(connection, "read_watermark", (schedule.namespace, schedule.schedule_id)).fetchone()
        if row is None or row[3:5] != (schedule.cron_expr, schedule.timezone):
            return None
        wanted = [planned(schedule.namespace, schedule.schedule_id, run_id, at, now) for at, run_id in instants]
        runs = _insert(connection, wanted, now)
        _count(connection, schedule.schedule_id, runs, now)
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
        now = self.now()
        found = [_due_of(row) for row in execute(connection, "find_due_schedules", (now, limit)).fetchall()]
        counted, plans = MOST_COUNTED, []
        for due in found:
            plans.append(plan(due, now, new_run_id, counted))
            counted = max(1, counted - plans[-1].skipped)
        runs: list[Recovered] = []
        told: list[tuple[str, CancelAnswer]] = []
        woken: list[Told] = []
        for each in plans:
            runs += _carry_out(connection, each, told, woken, now)
        return Fired(
            looked=len(plans),
            runs=runs,
            told=told,
            woken=woken,
            late=lateness(plans, now),
            turns=turns(plans, {run.run_id for run in runs}),
            errors=[(each.due.namespace, each.due.template.schedule_id, each.error) for each in plans if each.error],
        )

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


def create_schedule(connection: sqlite3.Connection, create: CreateSchedule, now: Instant) -> Schedule | Conflict:
    key = (create.namespace, create.schedule_id)
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


def get_schedule(connection: sqlite3.Connection, namespace: str, schedule_id: str) -> Schedule | None:
    row = execute(connection, "get_schedule", (namespace, schedule_id)).fetchone()
    return None if row is None else _schedule_of(row)


def _take_over(
    connection: sqlite3.Connection, key: tuple[str, str], declared: Declaration, times: Sequence[Any], now: Instant
) -> None:
    cron_expr, timezone, status, fired_until, buffered_for, overlap = times
    fires = (declared.cron_expr, declared.timezone, declared.max_catchup, declared.priority, declared.retry_policy)
    handled = (declared.on_failure, declared.on_failure_queue, declared.limit_key)
    execute(connection, "declare_template", (*key, declared.task_queue, declared.workflow_type, *fires, *handled))
    execute(connection, "declare_schedule", (*key, declared.overlap.value, declared.jitter, declared.timeout, now))
    _replace_input(connection, key, declared.input)
    if (cron_expr, timezone) != (declared.cron_expr, declared.timezone):
        fired_until = max(fired_until, now)
        enabled = status == RunStatus.SCHEDULED.value
        following = first_firing(declared.cron_expr, declared.timezone, fired_until) if enabled else None
        execute(connection, "move_template", (*key, following, following))
    elif overlap == declared.overlap.value:
        return
    skips = dropped(buffered_for)
    _note_skips(connection, key, skips, now)
    execute(connection, "move_watermark", (*key, fired_until, len(skips)))


def _key(declare: DeclareSchedule) -> tuple[str, str]:
    return (declare.namespace, declare.schedule_id)


def _replace_input(connection: sqlite3.Connection, key: tuple[str, str], input: bytes) -> None:
    execute(connection, "delete_payloads", key)
    inline = len(input) <= INLINE_BYTES
    execute(connection, "update_template_input", (*key, input if inline else None))
    if not inline:
        execute_rows(connection, "insert_payloads", [(*key, "input", input)])


def _carry_out(
    connection: sqlite3.Connection,
    plan: Plan,
    told: list[tuple[str, CancelAnswer]],
    woken: list[Told],
    now: Instant,
) -> list[Recovered]:
    namespace, schedule_id = key = (plan.due.namespace, plan.due.template.schedule_id)
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
    runs = _insert(connection, plan.runs, now)
    _note_skips(connection, key, firing.skipped, now)
    look_at = plan.next_look([run.run_id for run in runs], now)
    execute(connection, "move_template", (*key, firing.next_fire_at, look_at))
    moved = (firing.fired_until, firing.kept_until, firing.buffered_for, plan.skipped)
    execute(connection, "move_schedule", (*key, *moved))
    _count(connection, schedule_id, runs, now)
    return runs


def _insert(connection: sqlite3.Connection, runs: Iterable[Planned], now: Instant) -> list[Recovered]:
    """Inserts what has no run yet. The unique index is the guard; an id that somebody has taken is only a label."""
    inserted = []
    for run in runs:
        for external_id in dict.fromkeys((run.external_id, None)):
            values = (now, run.available_at, run.scheduled_for)
            key = (run.namespace, run.schedule_id, run.run_id)
            if execute(connection, "insert_firing", (*key, external_id, *values)).rowcount:
                execute(connection, "copy_input", key)
                inserted.append(_read_firing(connection, run.namespace, run.run_id))
                break
    return inserted


def _read_firing(connection: sqlite3.Connection, namespace: str, run_id: str) -> Recovered:
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


def _count(connection: sqlite3.Connection, schedule_id: str, runs: Sequence[Recovered], now: Instant) -> None:
    if runs:
        last = runs[-1]
        execute(connection, "count_firings", (last.namespace, schedule_id, len(runs), now, last.run_id))


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


def _note_skips(connection: sqlite3.Connection, key: tuple[str, str], skips: Iterable[Skip], now: Instant) -> None:
    for skip in skips:
        about = (skip.first_at, skip.last_at, skip.count, skip.reason.value, now)
        execute(connection, "insert_skip", (*key, *about))


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
