"""Counts of everything in a database, and the moments at which something is next due."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence

from kagzi.core.flow import Scope
from kagzi.core.instant import Instant, Span
from kagzi.core.load import MOST_NAMESPACES, MOST_QUEUES, QUEUES_OF_NAMESPACE, Load, QueueLoad, WorkerLoad
from kagzi.core.worker import WorkerStatus
from kagzi.store.protocol.changes import Queue
from kagzi.store.protocol.overview import MOST_SURVEYED, Blocker, DueRun, Horizon, Survey
from kagzi.store.sqlite.limit_rows import read_paused
from kagzi.store.sqlite.nouns import Noun, reads
from kagzi.store.sqlite.statements import execute


class Overview(Noun):
    """See `store.protocol.overview.Overview`."""

    async def blocker(self) -> Blocker | None:
        return None  # there is one lock, of the whole file, and who waits for it says so

    @reads
    def horizon(self, connection: sqlite3.Connection, queues: Sequence[Queue]) -> Horizon:
        now = self.now()
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

    @reads
    def survey(self, connection: sqlite3.Connection, stale: Span) -> Survey:
        now = self.now()
        row = execute(connection, "survey", (MOST_SURVEYED, now - stale)).fetchone()
        pending, sleeping, running, online, draining, schema = row
        oldest = execute(connection, "oldest_due", (now, MOST_SURVEYED)).fetchone()
        return Survey(
            now=now,
            pending=pending or 0,
            sleeping=sleeping or 0,
            running=running,
            oldest_due_at=None if oldest is None else oldest[0],
            oldest_due=None if oldest is None else DueRun(*oldest[1:]),
            workers_online=online,
            workers_draining=draining,
            schema=schema,
        )

    @reads
    def load(self, connection: sqlite3.Connection, stale: Span) -> Load:
        now = self.now()
        workers = execute(connection, "worker_loads", (MOST_NAMESPACES, now - stale)).fetchall()
        running = execute(connection, "running_loads", (MOST_NAMESPACES,)).fetchall()
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
    of_namespace = 0
    for _ in range(MOST_QUEUES):
        same = None
        if of_namespace < QUEUES_OF_NAMESPACE:
            same = execute(connection, "next_queue", (namespace, queue)).fetchone()
        if same is not None:
            (queue,) = same
            of_namespace += 1
        elif (other := execute(connection, "first_queue_after", (namespace,)).fetchone()) is not None:
            namespace, queue = other
            of_namespace = 1
        else:
            return
        ready, oldest = execute(connection, "queue_load", (namespace, queue, now, MOST_SURVEYED)).fetchone()
        yield QueueLoad(namespace=namespace, task_queue=queue, ready=ready, oldest_due_at=oldest)
