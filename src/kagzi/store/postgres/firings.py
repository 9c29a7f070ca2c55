"""Firing schedules: one transaction for many templates, decided in Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from kagzi.api.operations import CancelAnswer, CancelRun
from kagzi.core.instant import Instant
from kagzi.core.schedule import Overlap, Template
from kagzi.store.postgres.cancels import cancel
from kagzi.store.postgres.run_rows import columns_of
from kagzi.store.postgres.schedule_rows import note_skips
from kagzi.store.postgres.statements import STATEMENTS
from kagzi.store.postgres.workers import recovered_of
from kagzi.store.protocol.changes import Recovered, Told
from kagzi.store.protocol.schedules import Fired
from kagzi.store.schedules import Due, Plan, Planned, fired, plan_all

if TYPE_CHECKING:
    import asyncpg

    from kagzi.store.postgres.connection import Connection

_LOCK_DUE_SCHEDULES = STATEMENTS["lock_due_schedules"]
_READ_DUE_SCHEDULES = STATEMENTS["read_due_schedules"]
_FIND_LIVE_FIRINGS = STATEMENTS["find_live_firings"]
_INSERT_FIRINGS = STATEMENTS["insert_firings"]
_COPY_TEMPLATE_INPUTS = STATEMENTS["copy_template_inputs"]
_MOVE_TEMPLATES = STATEMENTS["move_templates"]
_MOVE_SCHEDULES = STATEMENTS["move_schedules"]


async def fire(connection: Connection, limit: int, new_run_id: Callable[[], str], now: Instant | None) -> Fired:
    """Fires what is due, in a transaction of the caller's."""
    templates = await connection.fetch(_LOCK_DUE_SCHEDULES, now, limit)
    if not templates:
        return Fired(looked=0, runs=[], told=[])
    at: Instant = templates[0]["now"]
    keys = [(row["namespace"], str(row["run_id"])) for row in templates]
    besides = await connection.fetch(_READ_DUE_SCHEDULES, *columns_of(keys))
    plans = plan_all((_due_of(*rows) for rows in zip(templates, besides, strict=True)), at, new_run_id)
    woken: list[Told] = []
    told = await _cancel_live(connection, plans, woken, at)
    runs = await insert_firings(connection, [run for each in plans for run in each.runs], at)
    skips = [(each.key, skip) for each in plans if each.firing is not None for skip in each.firing.skipped]
    await note_skips(connection, skips, at)
    await _move(connection, plans, runs, at)
    return fired(plans, list(runs.values()), told, woken, at)


async def _cancel_live(
    connection: Connection, plans: list[Plan], woken: list[Told], at: Instant
) -> list[tuple[str, CancelAnswer]]:
    keys = [each.key for each in plans if each.firing is not None and each.firing.cancel_live]
    if not keys:
        return []
    told: list[tuple[str, CancelAnswer]] = []
    for row in await connection.fetch(_FIND_LIVE_FIRINGS, *columns_of(keys)):
        request = CancelRun(namespace=row["namespace"], run_id=str(row["run_id"]))
        answer = await cancel(connection, request, woken, at)
        if isinstance(answer, CancelAnswer):
            told.append((request.namespace, answer))
    return told


async def insert_firings(connection: Connection, runs: Sequence[Planned], at: Instant) -> dict[str, Recovered]:
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
    keys = [each.key for each in plans]
    moved = [each.firing is not None for each in plans]
    fired = [[run.run_id for run in each.runs if run.run_id in runs] for each in plans]
    firings = [each.firing for each in plans]
    await connection.execute(
        _MOVE_TEMPLATES,
        *columns_of(keys),
        moved,
        [firing and firing.next_fire_at for firing in firings],
        [each.next_look(runs, at) for each in plans],
    )
    await connection.execute(
        _MOVE_SCHEDULES,
        at,
        *columns_of(keys),
        moved,
        [firing and firing.fired_until for firing in firings],
        [firing and firing.kept_until for firing in firings],
        [firing and firing.buffered_for for firing in firings],
        [each.skipped for each in plans],
        [each.error for each in plans],
        [len(run_ids) for run_ids in fired],
        [run_ids[-1] if run_ids else None for run_ids in fired],
    )


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
