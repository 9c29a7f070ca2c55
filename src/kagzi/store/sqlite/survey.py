"""How much there is of everything."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence

import msgspec

from kagzi.core.instant import Instant, Span
from kagzi.core.load import Load, QueueLoad, WorkerLoad
from kagzi.core.worker import WorkerStatus
from kagzi.store.protocol import MOST_LOADS, MOST_SURVEYED, RunFacts, Survey
from kagzi.store.sqlite.statements import execute


def survey(connection: sqlite3.Connection, now: Instant, stale: Span) -> Survey:
    row = execute(connection, "survey", (now, MOST_SURVEYED, now - stale)).fetchone()
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


def load(connection: sqlite3.Connection, now: Instant, stale: Span) -> Load:
    workers = execute(connection, "worker_loads", (MOST_LOADS, now - stale)).fetchall()
    running = execute(connection, "running_loads", (MOST_LOADS,)).fetchall()
    return Load(
        now=now,
        queues=tuple(_queue_loads(connection, now)),
        workers=tuple(
            WorkerLoad(namespace=namespace, status=WorkerStatus(status), workers=count, slots=slots)
            for namespace, status, count, slots in workers
        ),
        running=dict(running),
    )


def _queue_loads(connection: sqlite3.Connection, now: Instant) -> Iterator[QueueLoad]:
    """Steps over the index of claims from queue to queue, so that it does not matter how much sleeps in them."""
    namespace = queue = ""
    for _ in range(MOST_LOADS):
        if (same := execute(connection, "next_queue", (namespace, queue)).fetchone()) is not None:
            (queue,) = same
        elif (other := execute(connection, "first_queue_after", (namespace,)).fetchone()) is not None:
            namespace, queue = other
        else:
            return
        ready, oldest = execute(connection, "queue_load", (namespace, queue, now, MOST_SURVEYED)).fetchone()
        yield QueueLoad(namespace=namespace, task_queue=queue, ready=ready, oldest_due_at=oldest)


def facts_of(connection: sqlite3.Connection, runs: Sequence[tuple[str, str]]) -> list[RunFacts]:
    rows = execute(connection, "facts_of", (msgspec.json.encode(runs).decode(),)).fetchall()
    return [
        RunFacts(
            namespace=namespace, run_id=run_id, workflow_type=workflow, started_at=started_at, finished_at=finished_at
        )
        for namespace, run_id, workflow, started_at, finished_at in rows
    ]
