"""How much there is of everything."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

import msgspec

from kagzi.core.instant import Instant
from kagzi.core.load import Load, QueueLoad, WorkerLoad
from kagzi.core.worker import WorkerStatus
from kagzi.store.protocol import MOST_LOADS, MOST_SURVEYED, RunFacts, Survey
from kagzi.store.sqlite.statements import SQL


def survey(connection: sqlite3.Connection, now: Instant) -> Survey:
    row = connection.execute(SQL["survey"], (now, MOST_SURVEYED)).fetchone()
    pending, sleeping, oldest_due_at, running, online, draining, schema = row
    return Survey(
        now=now,
        pending=pending or 0,
        sleeping=sleeping or 0,
        running=running,
        oldest_due_at=oldest_due_at,
        workers_online=online,
        workers_draining=draining,
        schema=schema,
    )


def load(connection: sqlite3.Connection, now: Instant) -> Load:
    queues = connection.execute(SQL["queue_loads"], (now, MOST_LOADS, MOST_SURVEYED)).fetchall()
    workers = connection.execute(SQL["worker_loads"], (MOST_LOADS,)).fetchall()
    running = connection.execute(SQL["running_loads"], (MOST_LOADS,)).fetchall()
    return Load(
        now=now,
        queues=tuple(
            QueueLoad(namespace=namespace, task_queue=queue, ready=ready, oldest_due_at=oldest)
            for namespace, queue, ready, oldest in queues
        ),
        workers=tuple(
            WorkerLoad(namespace=namespace, status=WorkerStatus(status), workers=count, slots=slots)
            for namespace, status, count, slots in workers
        ),
        running=dict(running),
    )


def facts_of(connection: sqlite3.Connection, runs: Sequence[tuple[str, str]]) -> list[RunFacts]:
    rows = connection.execute(SQL["facts_of"], (msgspec.json.encode(runs).decode(),)).fetchall()
    return [
        RunFacts(
            namespace=namespace, run_id=run_id, workflow_type=workflow, started_at=started_at, finished_at=finished_at
        )
        for namespace, run_id, workflow, started_at, finished_at in rows
    ]
