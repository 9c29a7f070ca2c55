"""Reading runs."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from kagzi.api.admin import RunCount
from kagzi.core.carried import TO_PEOPLE
from kagzi.core.family import policy_of
from kagzi.core.flow import Scope
from kagzi.core.instant import Instant
from kagzi.core.run import AGEING, Run, RunStatus
from kagzi.store import counting
from kagzi.store.columns import SHOWN_RUN, reader
from kagzi.store.protocol import Horizon, Queue
from kagzi.store.sqlite.limits import read_paused
from kagzi.store.sqlite.statements import execute
from kagzi.store.waits import read_waits

# Payloads up to this size stay in their run's row.
INLINE_BYTES: Final = 1024

_STATUSES: Final = {status.value: status for status in RunStatus}


def claim_key(available_at: Instant, priority: int, now: Instant) -> Instant:
    """The order of claiming. In the past exactly if the run is due, so one index serves both questions."""
    if available_at > now:
        return available_at
    return min(available_at - priority * AGEING, now)


_run_of: Final = reader(
    Run,
    SHOWN_RUN,
    TO_PEOPLE,
    read={"parent_policy": policy_of},
    given=("status", "waiting_for", "lease_expires_at", "cancel_deadline"),
)


def run_of(row: tuple[Any, ...]) -> Run:
    status = _STATUSES[row[6]]
    return _run_of(
        row,
        status,
        read_waits(row[20], status),
        row[21] if status is RunStatus.RUNNING else None,
        None if status.finished else row[22],
    )


def get_run(connection: sqlite3.Connection, namespace: str, run_id: str) -> Run | None:
    row = execute(connection, "get_run", (namespace, run_id)).fetchone()
    return None if row is None else run_of(row)


def get_runs(connection: sqlite3.Connection, runs: Sequence[tuple[str, str]]) -> list[Run]:
    found = (get_run(connection, namespace, run_id) for namespace, run_id in runs)
    return [run for run in found if run is not None]


def get_run_by_external_id(connection: sqlite3.Connection, namespace: str, external_id: str) -> Run | None:
    row = execute(connection, "get_run_by_external_id", (namespace, external_id)).fetchone()
    return None if row is None else run_of(row)


def count_runs(
    connection: sqlite3.Connection,
    namespace: str | None,
    live: bool,
    created_after: Instant | None,
    created_before: Instant | None,
) -> list[RunCount]:
    window = (created_after, created_before)
    wanted = _counted_namespaces(connection, namespace)
    unfinished = count_live_runs(connection, namespace, *window)
    if live:
        return counting.folded(unfinished)
    newest: list[counting.Seen] = []
    room = counting.IN_ALL
    for name in wanted:
        limits = (min(room, counting.OF_A_NAMESPACE), counting.GROUPS)
        rows = execute(connection, "count_newest_runs", (name, *window, *limits)).fetchall()
        newest += map(_seen, rows)
        room -= sum(row[4] for row in rows)
    return counting.folded(unfinished, newest)


def count_live_runs(
    connection: sqlite3.Connection,
    namespace: str | None,
    created_after: Instant | None = None,
    created_before: Instant | None = None,
) -> list[counting.Seen]:
    window = (created_after, created_before)
    leased = execute(connection, "count_leased_runs", (namespace, *window, counting.IN_ALL, counting.GROUPS)).fetchall()
    unfinished = [_seen(row) for row in leased]
    room = counting.IN_ALL
    for name in _counted_namespaces(connection, namespace):
        queue = ""
        for _ in range(counting.QUEUES):
            following = execute(connection, "next_queue", (name, queue)).fetchone()
            if following is None or room <= 0:
                break
            (queue,) = following
            limits = (min(room, counting.OF_A_QUEUE), counting.GROUPS)
            rows = execute(connection, "count_waiting_runs", (name, queue, *window, *limits)).fetchall()
            unfinished += map(_seen, rows)
            room -= sum(row[4] for row in rows)
    return unfinished


def _counted_namespaces(connection: sqlite3.Connection, namespace: str | None) -> list[str]:
    if namespace is not None:
        return [namespace]
    return [row[0] for row in execute(connection, "counted_namespaces", (counting.NAMESPACES,))]


def _seen(row: tuple[Any, ...]) -> counting.Seen:
    namespace, workflow_type, task_queue, status, *more = row
    return counting.Seen(namespace, workflow_type, task_queue, _STATUSES[status], *more)


def finished_of(connection: sqlite3.Connection, runs: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    text = execute(connection, "finished_of", (msgspec.json.encode(runs).decode(),)).fetchone()[0]
    return msgspec.json.decode(text, type=list[tuple[str, str]])


def horizon(connection: sqlite3.Connection, queues: Sequence[Queue], now: Instant) -> Horizon:
    due: dict[Queue, Instant] = {}
    paused = read_paused(connection)
    for queue in queues:
        namespace, name = queue
        if (namespace, Scope.QUEUE.value, name) in paused or (namespace, Scope.NAMESPACE.value, "") in paused:
            continue  # what is paused nobody need look for
        earliest = execute(connection, "earliest_claim", queue).fetchone()[0]
        if earliest is not None:
            due[queue] = earliest
    row = execute(connection, "horizon").fetchone()
    lease, step_timeout, deadline, cancel, heartbeat, schedule, end, cascade, job, limited = row
    return Horizon(
        now=now,
        due=due,
        lease=lease,
        step_timeout=step_timeout,
        deadline=deadline,
        cancel=cancel,
        heartbeat=heartbeat,
        schedule=schedule,
        schedule_end=end,
        cascade=cascade,
        job=job,
        limited=bool(limited),
    )


def ensure_namespace(connection: sqlite3.Connection, namespace: str, retention_days: int, now: Instant) -> None:
    execute(connection, "ensure_namespace", (namespace, now, retention_days))
