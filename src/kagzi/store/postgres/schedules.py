"""Schedules: making, changing and firing them. Firing is one transaction for many templates, decided in Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from kagzi.api.operations import CancelAnswer, CancelRun
from kagzi.api.schedules import CreateSchedule, DeclareSchedule, UpdateSchedule
from kagzi.core.declaration import Declaration, Standing, Verdict, judge
from kagzi.core.instant import Instant
from kagzi.core.page import Cursor
from kagzi.core.run import Run, RunStatus
from kagzi.core.schedule import MOST_COUNTED, Overlap, Schedule, ScheduleCounts, Skip, SkipReason, Template
from kagzi.core.tags import decode_tags, encode_tags
from kagzi.errors import Conflict, InvalidRequest
from kagzi.store.postgres.cancels import cancel
from kagzi.store.postgres.nouns import Noun, asks
from kagzi.store.postgres.runs import get_runs
from kagzi.store.postgres.single import INLINE_BYTES
from kagzi.store.postgres.statements import STATEMENTS
from kagzi.store.postgres.workers import recovered_of
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

if TYPE_CHECKING:
    import asyncpg

    from kagzi.store.postgres.connection import Connection

_SCHEDULE_CLOCK = STATEMENTS["schedule_clock"]
_INSERT_TEMPLATE = STATEMENTS["insert_template"]
_INSERT_SCHEDULE = STATEMENTS["insert_schedule"]
_STORE_INPUTS = STATEMENTS["store_inputs"]
_GET_SCHEDULES = STATEMENTS["get_schedules"]
_FIND_SCHEDULE = STATEMENTS["find_schedule"]
_LIST_SCHEDULE_IDS = STATEMENTS["list_schedule_ids"]
_LIST_SCHEDULE_IDS_BACKWARD = STATEMENTS["list_schedule_ids_backward"]
_LOCK_TEMPLATE = STATEMENTS["lock_template"]
_READ_WATERMARK = STATEMENTS["read_watermark"]
_UPDATE_TEMPLATE = STATEMENTS["update_template"]
_UPDATE_TEMPLATE_INPUT = STATEMENTS["update_template_input"]
_DELETE_TEMPLATE_INPUT = STATEMENTS["delete_template_input"]
_UPDATE_SCHEDULE = STATEMENTS["update_schedule"]
_READ_DECLARATION = STATEMENTS["read_declaration"]
_NOTE_DECLARATION = STATEMENTS["note_declaration"]
_DECLARE_TEMPLATE = STATEMENTS["declare_template"]
_DECLARE_SCHEDULE = STATEMENTS["declare_schedule"]
_MOVE_TEMPLATE = STATEMENTS["move_template"]
_MOVE_WATERMARK = STATEMENTS["move_watermark"]
_FORGET_DECLARATION = STATEMENTS["forget_declaration"]
_DELETE_TEMPLATE = STATEMENTS["delete_template"]
_DELETE_SCHEDULE = STATEMENTS["delete_schedule"]
_LOCK_DUE_SCHEDULES = STATEMENTS["lock_due_schedules"]
_READ_DUE_SCHEDULES = STATEMENTS["read_due_schedules"]
_FIND_LIVE_FIRINGS = STATEMENTS["find_live_firings"]
_INSERT_FIRINGS = STATEMENTS["insert_firings"]
_COPY_TEMPLATE_INPUTS = STATEMENTS["copy_template_inputs"]
_READ_FIRING = STATEMENTS["read_firing"]
_MOVE_TEMPLATES = STATEMENTS["move_templates"]
_MOVE_SCHEDULES = STATEMENTS["move_schedules"]
_COUNT_FIRINGS = STATEMENTS["count_firings"]
_COUNT_SCHEDULES = STATEMENTS["count_schedules"]
_INSERT_SKIPS = STATEMENTS["insert_skips"]
_LIST_SKIPS = STATEMENTS["list_skips"]
_LOCK_ENDED_SCHEDULES = STATEMENTS["lock_ended_schedules"]
_FOLD_SCHEDULE_ENDS = STATEMENTS["fold_schedule_ends"]
_PRUNE_SKIPS = STATEMENTS["prune_skips"]
_LIST_SCHEDULE_RUN_IDS = STATEMENTS["list_schedule_run_ids"]
_LIST_SCHEDULE_RUN_IDS_BACKWARD = STATEMENTS["list_schedule_run_ids_backward"]
_NEWEST: Final = "ffffffff-ffff-ffff-ffff-ffffffffffff"
_Key = tuple[str, str]  # (namespace, schedule id)

_INDEXES = (
    "workflow_runs_fire",
    "workflow_runs_firing",
    "workflow_runs_scheduled",
    "workflow_runs_scheduled_live",
)


class Schedules(Noun):
    """See `store.protocol.schedules.Schedules`."""

    @asks
    async def create(self, connection: Connection, create: CreateSchedule) -> Schedule | Conflict:
        self.indexes.check(*_INDEXES)
        key = (create.namespace, create.schedule_id)
        inserted = False
        try:
            async with connection.transaction():
                at: Instant = await connection.fetchval(_SCHEDULE_CLOCK, self.now())
                inserted = await _insert_template(connection, create, at)
                beside = (create.name, create.overlap.value, create.jitter, create.timeout, at)
                if not inserted or await connection.fetchval(_INSERT_SCHEDULE, *key, *beside) is None:
                    raise _Taken
        except _Taken:
            found = await get_schedule(connection, *key)
            if found is None or not same_schedule(create, found):
                return taken(create, by_id=not inserted)
            return found
        made = await get_schedule(connection, *key)
        # Somebody else may have deleted it in this moment.
        return Conflict(f"schedule {create.schedule_id} was deleted meanwhile") if made is None else made

    @asks
    async def get(self, connection: Connection, namespace: str, schedule_id: str) -> Schedule | None:
        return await get_schedule(connection, namespace, schedule_id)

    @asks
    async def find(self, connection: Connection, namespace: str, name: str) -> str | None:
        return await find_schedule(connection, namespace, name)

    @asks
    async def page(
        self, connection: Connection, namespace: str, task_queue: str | None, cursor: Cursor | None, limit: int
    ) -> list[Schedule]:
        backward = cursor is not None and cursor.backward
        statement = _LIST_SCHEDULE_IDS_BACKWARD if backward else _LIST_SCHEDULE_IDS
        rows = await connection.fetch(
            statement, namespace, _NEWEST if cursor is None else cursor.key, task_queue, limit
        )
        found = await connection.fetch(_GET_SCHEDULES, namespace, [row["schedule_id"] for row in rows])
        return [_schedule_of(row) for row in found]

    @asks
    async def declare(self, connection: Connection, declare: DeclareSchedule) -> Verdict:
        self.indexes.check(*_INDEXES)
        now = self.now()
        while True:
            schedule_id = await find_schedule(connection, declare.namespace, declare.declaration.name)
            if schedule_id is None:
                verdict = await _create_declared(connection, declare, now)
            else:
                verdict = await _declare(connection, (declare.namespace, schedule_id), declare, now)
            if verdict is not None:
                return verdict

    @asks
    async def update(self, connection: Connection, update: UpdateSchedule) -> Schedule | InvalidRequest | None:
        now = self.now()
        key = (update.namespace, update.schedule_id)
        async with connection.transaction():
            template = await connection.fetchrow(_LOCK_TEMPLATE, *key, now)
            beside = None if template is None else await connection.fetchrow(_READ_WATERMARK, *key)
            if template is None or beside is None:
                return None
            if update.reset:
                await connection.execute(_FORGET_DECLARATION, *key)
                return await get_schedule(connection, *key)
            fired_until: Instant = max(beside["fired_until"], template["now"])
            if (refused := refuse_fired(update.next_fire_at, fired_until)) is not None:
                return refused
            enabled = template["status"] == "SCHEDULED" if update.enabled is None else update.enabled
            following = update.next_fire_at
            if following is None:
                cron_expr, timezone = update.cron_expr or template["cron_expr"], update.timezone or template["timezone"]
                following = first_firing(cron_expr, timezone, fired_until)
            await connection.execute(
                _UPDATE_TEMPLATE,
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
            )
            if update.input is not None:
                await _replace_input(connection, key, update.input)
            due = (template["cron_expr"], template["timezone"], template["next_fire_at"], template["now"])
            skips = dropped(beside["buffered_for"]) + not_fired(*due)
            await _note_skips(connection, [(key, skip) for skip in skips], template["now"])
            await connection.execute(
                _UPDATE_SCHEDULE,
                *key,
                None if update.overlap is None else update.overlap.value,
                update.jitter,
                update.timeout,
                fired_until,
                None if enabled else update.pause_reason,
                template["now"],
                sum(skip.count for skip in skips),
                update.is_by_hand,
            )
        return await get_schedule(connection, *key)

    @asks
    async def delete(self, connection: Connection, namespace: str, schedule_id: str) -> bool:
        async with connection.transaction():
            if await connection.fetchval(_DELETE_TEMPLATE, namespace, schedule_id) is None:
                return False
            await connection.execute(_DELETE_TEMPLATE_INPUT, namespace, schedule_id)
            await connection.execute(_DELETE_SCHEDULE, namespace, schedule_id)
        return True

    @asks
    async def trigger(
        self, connection: Connection, namespace: str, schedule_id: str, run_id: str
    ) -> Recovered | Conflict | None:
        self.indexes.check(*_INDEXES)
        now = self.now()
        async with connection.transaction():
            template = await connection.fetchrow(_LOCK_TEMPLATE, namespace, schedule_id, now)
            if template is None:
                return None
            at: Instant = template["now"]
            runs = await _insert(connection, [planned(namespace, schedule_id, run_id, None, at)], at)
            if runs:
                await connection.execute(_COUNT_FIRINGS, namespace, schedule_id, 1, at, run_id)
                return runs[run_id]
            found = await connection.fetchrow(_READ_FIRING, namespace, run_id)
        if found is None or str(found["schedule_group_id"]) != schedule_id:
            return Conflict(f"run id {run_id} belongs to another run")
        return recovered_of(found)

    @asks
    async def backfill(
        self, connection: Connection, schedule: Schedule, instants: Sequence[tuple[Instant, str]]
    ) -> list[Recovered] | None:
        self.indexes.check(*_INDEXES)
        now = self.now()
        key = (schedule.namespace, schedule.schedule_id)
        async with connection.transaction():
            template = await connection.fetchrow(_LOCK_TEMPLATE, *key, now)
            if template is None or (template["cron_expr"], template["timezone"]) != (
                schedule.cron_expr,
                schedule.timezone,
            ):
                return None
            at: Instant = template["now"]
            runs = await _insert(connection, [planned(*key, run_id, instant, at) for instant, run_id in instants], at)
            if runs:
                await connection.execute(_COUNT_FIRINGS, *key, len(runs), at, max(runs))
        return list(runs.values())

    @asks
    async def count(self, connection: Connection, namespace: str | None) -> ScheduleCounts:
        row = await connection.fetchrow(_COUNT_SCHEDULES, namespace)
        assert row is not None
        return ScheduleCounts(*row)

    @asks
    async def page_of_runs(
        self, connection: Connection, namespace: str, schedule_id: str, cursor: Cursor | None, limit: int
    ) -> list[Run]:
        self.indexes.check(*_INDEXES)
        backward = cursor is not None and cursor.backward
        statement = _LIST_SCHEDULE_RUN_IDS_BACKWARD if backward else _LIST_SCHEDULE_RUN_IDS
        rows = await connection.fetch(
            statement, namespace, schedule_id, _NEWEST if cursor is None else cursor.key, limit
        )
        found = await get_runs(connection, [(namespace, str(row["run_id"])) for row in rows])
        return sorted(found, key=lambda run: run.run_id, reverse=not backward)

    @asks
    async def skips(self, connection: Connection, namespace: str, schedule_id: str, limit: int) -> list[Skip]:
        rows = await connection.fetch(_LIST_SKIPS, namespace, schedule_id, limit)
        return [
            Skip(
                first_at=row["first_at"],
                last_at=row["last_at"],
                count=row["count"],
                reason=SkipReason(row["reason"]),
                at=row["at"],
            )
            for row in rows
        ]

    @asks
    async def fire(self, connection: Connection, limit: int, new_run_id: Callable[[], str]) -> Fired:
        if not set(_INDEXES).isdisjoint(self.indexes.missing):
            return Fired(looked=0, runs=[], told=[])  # there are no schedules yet
        now = self.now()
        async with connection.transaction():
            templates = await connection.fetch(_LOCK_DUE_SCHEDULES, now, limit)
            if not templates:
                return Fired(looked=0, runs=[], told=[])  # there are no schedules yet
            at: Instant = templates[0]["now"]
            keys = [(row["namespace"], str(row["run_id"])) for row in templates]
            besides = await connection.fetch(_READ_DUE_SCHEDULES, *_columns(keys))
            plans: list[Plan] = []
            counted = MOST_COUNTED
            for template, beside in zip(templates, besides, strict=True):
                plans.append(plan(_due_of(template, beside), at, new_run_id, counted))
                counted = max(1, counted - plans[-1].skipped)
            woken: list[Told] = []
            told = await _cancel_live(connection, plans, woken, at)
            runs = await _insert(connection, [run for each in plans for run in each.runs], at)
            skips = [(_key(each), skip) for each in plans if each.firing is not None for skip in each.firing.skipped]
            await _note_skips(connection, skips, at)
            await _move(connection, plans, runs, at)
        return Fired(
            looked=len(plans),
            runs=list(runs.values()),
            told=told,
            woken=woken,
            late=lateness(plans, at),
            turns=turns(plans, runs),
            errors=[(*_key(each), each.error) for each in plans if each.error],
        )

    @asks
    async def fold_ends(self, connection: Connection, limit: int) -> int:
        async with connection.transaction():
            rows = await connection.fetch(_LOCK_ENDED_SCHEDULES, limit)
            if rows:
                keys = [(row["namespace"], str(row["schedule_id"])) for row in rows]
                await connection.execute(_FOLD_SCHEDULE_ENDS, self.now(), *_columns(keys))
        return len(rows)

    @asks
    async def prune_skips(self, connection: Connection, limit: int) -> int:
        deleted: int = await connection.fetchval(_PRUNE_SKIPS, self.now(), limit)
        return deleted


class _Taken(Exception):
    """Rolls back what was inserted before the name turned out to be taken."""


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


async def get_schedule(connection: Connection, namespace: str, schedule_id: str) -> Schedule | None:
    rows = await connection.fetch(_GET_SCHEDULES, namespace, [schedule_id])
    return _schedule_of(rows[0]) if rows else None


async def find_schedule(connection: Connection, namespace: str, name: str) -> str | None:
    found = await connection.fetchval(_FIND_SCHEDULE, namespace, name)
    return None if found is None else str(found)


async def _create_declared(connection: Connection, declare: DeclareSchedule, now: Instant | None) -> Verdict | None:
    create = created(declare)
    key = (create.namespace, create.schedule_id)
    try:
        async with connection.transaction():
            at: Instant = await connection.fetchval(_SCHEDULE_CLOCK, now)
            beside = (create.name, create.overlap.value, create.jitter, create.timeout, at)
            inserted = await _insert_template(connection, create, at)
            if inserted and await connection.fetchval(_INSERT_SCHEDULE, *key, *beside) is None:
                raise _Taken
            if not inserted:
                raise taken(create, by_id=True)
            await connection.execute(_NOTE_DECLARATION, *key, declare.declaration.hash, declare.worker_id)
    except _Taken:
        return None
    return Verdict.CREATED


async def _declare(connection: Connection, key: _Key, declare: DeclareSchedule, now: Instant | None) -> Verdict | None:
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
    connection: Connection, key: _Key, declared: Declaration, template: asyncpg.Record, beside: asyncpg.Record
) -> None:
    now: Instant = template["now"]
    fires = (declared.cron_expr, declared.timezone, declared.max_catchup, declared.priority, declared.retry_policy)
    handled = (declared.on_failure, declared.on_failure_queue, declared.limit_key)
    await connection.execute(_DECLARE_TEMPLATE, *key, declared.task_queue, declared.workflow_type, *fires, *handled)
    await connection.execute(_DECLARE_SCHEDULE, *key, declared.overlap.value, declared.jitter, declared.timeout, now)
    await _replace_input(connection, key, declared.input)
    fired_until: Instant = beside["fired_until"]
    if (template["cron_expr"], template["timezone"]) != (declared.cron_expr, declared.timezone):
        fired_until = max(fired_until, now)
        enabled = template["status"] == RunStatus.SCHEDULED.value
        following = first_firing(declared.cron_expr, declared.timezone, fired_until) if enabled else None
        await connection.execute(_MOVE_TEMPLATE, *key, following)
    elif beside["overlap"] == declared.overlap.value:
        return
    skips = dropped(beside["buffered_for"])
    await _note_skips(connection, [(key, skip) for skip in skips], now)
    await connection.execute(_MOVE_WATERMARK, *key, fired_until, len(skips))


async def _replace_input(connection: Connection, key: _Key, input: bytes) -> None:
    await connection.execute(_DELETE_TEMPLATE_INPUT, *key)
    inline = len(input) <= INLINE_BYTES
    await connection.execute(_UPDATE_TEMPLATE_INPUT, *key, input if inline else None)
    if not inline:
        await connection.execute(_STORE_INPUTS, [key[0]], [key[1]], [input])


async def _cancel_live(
    connection: Connection, plans: list[Plan], woken: list[Told], at: Instant
) -> list[tuple[str, CancelAnswer]]:
    keys = [_key(each) for each in plans if each.firing is not None and each.firing.cancel_live]
    if not keys:
        return []
    told: list[tuple[str, CancelAnswer]] = []
    for row in await connection.fetch(_FIND_LIVE_FIRINGS, *_columns(keys)):
        request = CancelRun(namespace=row["namespace"], run_id=str(row["run_id"]))
        answer = await cancel(connection, request, woken, at)
        if isinstance(answer, CancelAnswer):
            told.append((request.namespace, answer))
    return told


async def _insert(connection: Connection, runs: Sequence[Planned], at: Instant) -> dict[str, Recovered]:
    """Inserts what has no run yet, by run id. The unique index is the guard; an id that somebody has taken is only a
    label, and such a run goes without."""
    inserted: dict[str, Recovered] = {}
    for labelled in (True, False):
        missing = [run for run in runs if run.run_id not in inserted and (labelled or run.external_id is not None)]
        if not missing:
            break
        rows = await connection.fetch(
            _INSERT_FIRINGS,
            at,
            [run.namespace for run in missing],
            [run.schedule_id for run in missing],
            [run.run_id for run in missing],
            [run.external_id if labelled else None for run in missing],
            [run.available_at for run in missing],
            [run.scheduled_for for run in missing],
        )
        inserted |= {str(row["run_id"]): recovered_of(row) for row in rows}
    done = [run for run in runs if run.run_id in inserted]
    if done:
        await connection.execute(
            _COPY_TEMPLATE_INPUTS,
            [run.namespace for run in done],
            [run.schedule_id for run in done],
            [run.run_id for run in done],
        )
    return inserted


async def _move(connection: Connection, plans: list[Plan], runs: dict[str, Recovered], at: Instant) -> None:
    keys = [_key(each) for each in plans]
    moved = [each.firing is not None for each in plans]
    fired = [[run.run_id for run in each.runs if run.run_id in runs] for each in plans]
    firings = [each.firing for each in plans]
    await connection.execute(
        _MOVE_TEMPLATES,
        *_columns(keys),
        moved,
        [firing and firing.next_fire_at for firing in firings],
        [each.next_look(runs, at) for each in plans],
    )
    await connection.execute(
        _MOVE_SCHEDULES,
        at,
        *_columns(keys),
        moved,
        [firing and firing.fired_until for firing in firings],
        [firing and firing.kept_until for firing in firings],
        [firing and firing.buffered_for for firing in firings],
        [each.skipped for each in plans],
        [each.error for each in plans],
        [len(run_ids) for run_ids in fired],
        [run_ids[-1] if run_ids else None for run_ids in fired],
    )


async def _note_skips(connection: Connection, skips: Sequence[tuple[_Key, Skip]], at: Instant) -> None:
    if skips:
        await connection.execute(
            _INSERT_SKIPS,
            at,
            *_columns([key for key, _ in skips]),
            [skip.first_at for _, skip in skips],
            [skip.last_at for _, skip in skips],
            [skip.count for _, skip in skips],
            [skip.reason.value for _, skip in skips],
        )


def _key(plan: Plan) -> _Key:
    return plan.due.namespace, plan.due.template.schedule_id


def _columns(keys: Sequence[_Key]) -> tuple[list[str], list[str]]:
    return [namespace for namespace, _ in keys], [schedule_id for _, schedule_id in keys]


def _due_of(template: asyncpg.Record, beside: asyncpg.Record) -> Due:
    return Due(
        namespace=template["namespace"],
        template=Template(
            schedule_id=str(template["run_id"]),
            next_fire_at=template["next_fire_at"],
            fired_until=beside["fired_until"],
            kept_until=beside["kept_until"],
            max_catchup=template["max_catchup"],
            overlap=Overlap(beside["overlap"]),
            jitter=beside["jitter"],
            buffered_for=beside["buffered_for"],
            live=beside["live"],
        ),
        cron_expr=template["cron_expr"],
        timezone=template["timezone"],
        enabled=beside["enabled"],
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
