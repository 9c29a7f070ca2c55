"""Reading runs."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from kagzi.api.admin import RunCount
from kagzi.api.workflows import RunFilter
from kagzi.core.instant import Instant
from kagzi.core.page import Cursor
from kagzi.core.run import AGEING, Run, RunStatus
from kagzi.store.protocol import Horizon, Queue
from kagzi.store.sqlite.statements import SQL

# Payloads up to this size stay in their run's row.
INLINE_BYTES: Final = 1024
_LAST: Final = "\U0010ffff"  # sorts behind every run id

_STATUSES: Final = {status.value: status for status in RunStatus}


def claim_key(available_at: Instant, priority: int, now: Instant) -> Instant:
    """The order of claiming. In the past exactly if the run is due, so one index serves both questions."""
    if available_at > now:
        return available_at
    return min(available_at - priority * AGEING, now)


def run_of(row: tuple[Any, ...]) -> Run:
    return Run(
        namespace=row[0],
        run_id=row[1],
        external_id=row[2],
        task_queue=row[3],
        workflow_type=row[4],
        version=row[5],
        status=_STATUSES[row[6]],
        priority=row[7],
        attempts=row[8],
        executions=row[9],
        crashes=row[10],
        created_at=row[11],
        available_at=row[12],
        started_at=row[13],
        finished_at=row[14],
        deadline_at=row[15],
        worker_id=row[16],
        input=row[17],
        output=row[18],
        error=row[19],
    )


def get_run(connection: sqlite3.Connection, namespace: str, run_id: str) -> Run | None:
    row = connection.execute(SQL["get_run"], (namespace, run_id)).fetchone()
    return None if row is None else run_of(row)


def get_run_by_external_id(connection: sqlite3.Connection, namespace: str, external_id: str) -> Run | None:
    row = connection.execute(SQL["get_run_by_external_id"], (namespace, external_id)).fetchone()
    return None if row is None else run_of(row)


def count_runs(connection: sqlite3.Connection, namespace: str | None, live: bool) -> list[RunCount]:
    rows = connection.execute(SQL["count_live_runs" if live else "count_runs"], (namespace,)).fetchall()
    return [
        RunCount(workflow_type, task_queue, RunStatus(status), count)
        for workflow_type, task_queue, status, count in rows
    ]


def list_runs(connection: sqlite3.Connection, filter: RunFilter, cursor: Cursor | None, limit: int) -> list[Run]:
    statement = SQL["list_runs_backward" if cursor is not None and cursor.backward else "list_runs"]
    rows = connection.execute(
        statement,
        (
            filter.namespace,
            _LAST if cursor is None else cursor.key,
            None if filter.status is None else filter.status.value,
            filter.workflow_type,
            filter.task_queue,
            filter.created_after,
            filter.created_before,
            limit,
        ),
    ).fetchall()
    return [run_of(row) for row in rows]


def finished_of(connection: sqlite3.Connection, runs: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    text = connection.execute(SQL["finished_of"], (msgspec.json.encode(runs).decode(),)).fetchone()[0]
    return msgspec.json.decode(text, type=list[tuple[str, str]])


def horizon(connection: sqlite3.Connection, queues: Sequence[Queue], now: Instant) -> Horizon:
    due: dict[Queue, Instant] = {}
    for queue in queues:
        earliest = connection.execute(SQL["earliest_claim"], queue).fetchone()[0]
        if earliest is not None:
            due[queue] = earliest
    lease, step_timeout, deadline, cancel, heartbeat = connection.execute(SQL["horizon"]).fetchone()
    return Horizon(
        now=now,
        due=due,
        lease=lease,
        step_timeout=step_timeout,
        deadline=deadline,
        cancel=cancel,
        heartbeat=heartbeat,
    )


def ensure_namespace(connection: sqlite3.Connection, namespace: str, retention_days: int, now: Instant) -> None:
    connection.execute(SQL["ensure_namespace"], (namespace, now, retention_days))
