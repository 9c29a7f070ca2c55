"""Counts of everything in a database, and the moments at which something is next due."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kagzi.core.instant import Span
from kagzi.core.load import MOST_NAMESPACES, MOST_QUEUES, QUEUES_OF_NAMESPACE, Load, QueueLoad, WorkerLoad
from kagzi.core.worker import WorkerStatus
from kagzi.store.postgres.locks import find_blocker
from kagzi.store.postgres.nouns import Noun, asks
from kagzi.store.postgres.statements import STATEMENTS
from kagzi.store.protocol.changes import Queue
from kagzi.store.protocol.overview import MOST_SURVEYED, Blocker, DueRun, Horizon, Survey

if TYPE_CHECKING:
    from kagzi.store.postgres.connection import Connection
if TYPE_CHECKING:
    from kagzi.store.postgres.connection import Connection

_SURVEY = STATEMENTS["survey"]
_QUEUE_LOADS = STATEMENTS["queue_loads"]
_WORKER_LOADS = STATEMENTS["worker_loads"]
_RUNNING_LOADS = STATEMENTS["running_loads"]
_HORIZON = STATEMENTS["horizon"]


class Overview(Noun):
    """See `store.protocol.overview.Overview`."""

    @asks
    async def blocker(self, connection: Connection) -> Blocker | None:
        return await find_blocker(connection)

    @asks
    async def horizon(self, connection: Connection, queues: Sequence[Queue]) -> Horizon:
        now = self.now()
        rows = await connection.fetch(
            _HORIZON, now, [namespace for namespace, _ in queues], [queue for _, queue in queues]
        )
        row = rows[0]
        due = zip(queues, row["due"], strict=True)
        return Horizon(
            now=row["now"],
            due={queue: instant for queue, instant in due if instant is not None},
            lease=row["lease"],
            step_timeout=row["step_timeout"],
            deadline=row["deadline"],
            cancel=row["cancel"],
            heartbeat=row["heartbeat"],
            schedule=row["schedule"],
            schedule_end=row["schedule_end"],
            cascade=row["cascade"],
            job=row["job"],
            limited=row["limited"],
        )

    @asks
    async def survey(self, connection: Connection, stale: Span) -> Survey:
        (row,) = await connection.fetch(_SURVEY, self.now(), MOST_SURVEYED, stale)
        found = dict(row)
        place = [found.pop(field) for field in DueRun.__struct_fields__]
        if found["oldest_due_at"] is None:
            return Survey(**found)
        namespace, run_id, *rest = place
        return Survey(**found, oldest_due=DueRun(namespace, str(run_id), *rest))

    @asks
    async def load(self, connection: Connection, stale: Span) -> Load:
        now = self.now()
        queues = await connection.fetch(_QUEUE_LOADS, now, MOST_QUEUES, MOST_SURVEYED, QUEUES_OF_NAMESPACE)
        workers = await connection.fetch(_WORKER_LOADS, MOST_NAMESPACES, now, stale)
        running = await connection.fetch(_RUNNING_LOADS, now, MOST_NAMESPACES)
        return Load(
            now=running[0]["now"],
            queues=tuple(QueueLoad(**dict(row)) for row in queues),
            workers=tuple(
                WorkerLoad(
                    namespace=row["namespace"],
                    status=WorkerStatus(row["status"]),
                    workers=row["workers"],
                    slots=row["slots"],
                )
                for row in workers
            ),
            running={row["namespace"]: row["running"] for row in running if row["namespace"] is not None},
        )
