"""Schedules: making, changing, firing and reading them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from kagzi.api.schedules import CreateSchedule, DeclareSchedule, UpdateSchedule
from kagzi.core.declaration import Verdict
from kagzi.core.instant import Instant
from kagzi.core.page import Cursor
from kagzi.core.run import Run, RunStatus
from kagzi.core.schedule import Schedule, ScheduleCounts, Skip, SkipReason
from kagzi.errors import Conflict, InvalidRequest, LimitExceeded
from kagzi.store.postgres.declarations import declare_schedule
from kagzi.store.postgres.firings import fire, insert_firings
from kagzi.store.postgres.nouns import Noun, asks
from kagzi.store.postgres.run_rows import columns_of
from kagzi.store.postgres.runs import get_runs
from kagzi.store.postgres.schedule_rows import (
    Full,
    Taken,
    find_schedule,
    get_schedule,
    get_schedules,
    insert_schedule,
    note_skips,
    replace_input,
)
from kagzi.store.postgres.statements import STATEMENTS
from kagzi.store.postgres.workers import recovered_of
from kagzi.store.protocol.changes import Recovered
from kagzi.store.protocol.schedules import Fired
from kagzi.store.schedules import (
    changed_template,
    dropped,
    first_firing,
    not_fired,
    planned,
    refuse_fired,
    same_schedule,
    taken,
    too_many,
)

if TYPE_CHECKING:
    from kagzi.store.postgres.connection import Connection

_LIST_SCHEDULE_IDS = STATEMENTS["list_schedule_ids"]
_LIST_SCHEDULE_IDS_BACKWARD = STATEMENTS["list_schedule_ids_backward"]
_LOCK_TEMPLATE = STATEMENTS["lock_template"]
_READ_WATERMARK = STATEMENTS["read_watermark"]
_UPDATE_TEMPLATE = STATEMENTS["update_template"]
_DELETE_TEMPLATE_INPUT = STATEMENTS["delete_template_input"]
_UPDATE_SCHEDULE = STATEMENTS["update_schedule"]
_FORGET_DECLARATION = STATEMENTS["forget_declaration"]
_DELETE_TEMPLATE = STATEMENTS["delete_template"]
_DELETE_SCHEDULE = STATEMENTS["delete_schedule"]
_READ_FIRING = STATEMENTS["read_firing"]
_COUNT_FIRINGS = STATEMENTS["count_firings"]
_COUNT_SCHEDULES = STATEMENTS["count_schedules"]
_LIST_SKIPS = STATEMENTS["list_skips"]
_LOCK_ENDED_SCHEDULES = STATEMENTS["lock_ended_schedules"]
_FOLD_SCHEDULE_ENDS = STATEMENTS["fold_schedule_ends"]
_PRUNE_SKIPS = STATEMENTS["prune_skips"]
_LIST_SCHEDULE_RUN_IDS = STATEMENTS["list_schedule_run_ids"]
_LIST_SCHEDULE_RUN_IDS_BACKWARD = STATEMENTS["list_schedule_run_ids_backward"]
_NEWEST: Final = "ffffffff-ffff-ffff-ffff-ffffffffffff"
_INDEXES = (
    "workflow_runs_fire",
    "workflow_runs_firing",
    "workflow_runs_scheduled",
    "workflow_runs_scheduled_live",
)


class Schedules(Noun):
    """See `store.protocol.schedules.Schedules`."""

    @asks
    async def create(self, connection: Connection, create: CreateSchedule) -> Schedule | Conflict | LimitExceeded:
        self.indexes.check(*_INDEXES)
        key = (create.namespace, create.schedule_id)
        try:
            async with connection.transaction():
                await insert_schedule(connection, create, self.now())
        except (Full, Taken) as by:
            found = await get_schedule(connection, *key)
            if found is not None and same_schedule(create, found):
                return found
            return too_many(create.namespace) if isinstance(by, Full) else taken(create, by_id=by.by_id)
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
        return await get_schedules(connection, namespace, [str(row["schedule_id"]) for row in rows])

    @asks
    async def declare(self, connection: Connection, declare: DeclareSchedule) -> Verdict:
        self.indexes.check(*_INDEXES)
        return await declare_schedule(connection, declare, self.now())

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
                *changed_template(update),
            )
            if update.input is not None:
                await replace_input(connection, key, update.input)
            due = (template["cron_expr"], template["timezone"], template["next_fire_at"], template["now"])
            skips = dropped(beside["buffered_for"]) + not_fired(*due)
            await note_skips(connection, [(key, skip) for skip in skips], template["now"])
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
            runs = await insert_firings(connection, [planned(namespace, schedule_id, run_id, None, at)], at)
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
            runs = await insert_firings(
                connection, [planned(*key, run_id, instant, at) for instant, run_id in instants], at
            )
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
        async with connection.transaction():
            return await fire(connection, limit, new_run_id, self.now())

    @asks
    async def fold_ends(self, connection: Connection, limit: int) -> int:
        async with connection.transaction():
            rows = await connection.fetch(_LOCK_ENDED_SCHEDULES, limit)
            if rows:
                keys = [(row["namespace"], str(row["schedule_id"])) for row in rows]
                await connection.execute(_FOLD_SCHEDULE_ENDS, self.now(), *columns_of(keys))
        return len(rows)

    @asks
    async def prune_skips(self, connection: Connection, limit: int) -> int:
        deleted: int = await connection.fetchval(_PRUNE_SKIPS, self.now(), limit)
        return deleted
