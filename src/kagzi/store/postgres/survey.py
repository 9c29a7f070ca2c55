"""How much there is of everything."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kagzi.core.instant import Instant, Span
from kagzi.core.load import Load, QueueLoad, WorkerLoad
from kagzi.core.worker import WorkerStatus
from kagzi.store.postgres.statements import STATEMENTS
from kagzi.store.protocol import MOST_LOADS, MOST_SURVEYED, RunFacts, Survey

if TYPE_CHECKING:
    from kagzi.store.postgres.connection import Connection

_SURVEY = STATEMENTS["survey"]
_QUEUE_LOADS = STATEMENTS["queue_loads"]
_WORKER_LOADS = STATEMENTS["worker_loads"]
_RUNNING_LOADS = STATEMENTS["running_loads"]
_FACTS_OF = STATEMENTS["facts_of"]


async def survey(connection: Connection, now: Instant | None, stale: Span) -> Survey:
    (row,) = await connection.fetch(_SURVEY, now, MOST_SURVEYED, stale)
    return Survey(**dict(row))


async def load(connection: Connection, now: Instant | None, stale: Span) -> Load:
    queues = await connection.fetch(_QUEUE_LOADS, now, MOST_LOADS, MOST_SURVEYED)
    workers = await connection.fetch(_WORKER_LOADS, MOST_LOADS, now, stale)
    running = await connection.fetch(_RUNNING_LOADS, now, MOST_LOADS)
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


async def facts_of(connection: Connection, runs: Sequence[tuple[str, str]]) -> list[RunFacts]:
    rows = await connection.fetch(_FACTS_OF, [namespace for namespace, _ in runs], [run_id for _, run_id in runs])
    return [
        RunFacts(
            namespace=row["namespace"],
            run_id=str(row["run_id"]),
            workflow_type=row["workflow_type"],
            started_at=row["started_at"],
            finished_at=row["finished_at"],
        )
        for row in rows
    ]
