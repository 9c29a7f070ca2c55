"""Reading runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kagzi.api.admin import RunCount
from kagzi.api.workflows import RunFilter
from kagzi.core.instant import Instant
from kagzi.core.page import Cursor
from kagzi.core.run import Run
from kagzi.core.run_value import RunValue
from kagzi.core.step import Step
from kagzi.core.workflow_report import (
    LOOKED_AT,
    SAMPLED_RUNS,
    STEP_ROWS,
    Sample,
    SampledRun,
    SampledStep,
    failed_runs_of,
    step_runs_of,
)
from kagzi.store import counting
from kagzi.store.postgres.nouns import Noun, asks
from kagzi.store.postgres.run_rows import STATUSES, columns_of, is_id, run_of
from kagzi.store.postgres.search import list_runs
from kagzi.store.postgres.statements import STATEMENTS
from kagzi.store.postgres.steps import get_steps
from kagzi.store.postgres.values import read_values
from kagzi.store.protocol.changes import RunKey
from kagzi.store.protocol.runs import FoundRuns, RunFacts
from kagzi.store.searching import NEWEST

if TYPE_CHECKING:
    import asyncpg

    from kagzi.store.postgres.connection import Connection
_GET_RUN = STATEMENTS["get_run"]
_GET_RUNS = STATEMENTS["get_runs"]
_GET_RUN_BY_EXTERNAL_ID = STATEMENTS["get_run_by_external_id"]
_COUNT_LIVE_RUNS = STATEMENTS["count_live_runs"]
_COUNT_NEWEST_RUNS = STATEMENTS["count_newest_runs"]
_FINISHED_OF = STATEMENTS["finished_of"]
_FACTS_OF = STATEMENTS["facts_of"]
_EDGE_WALK = STATEMENTS["edge_walk"]
_SAMPLE_RUNS = STATEMENTS["sample_runs"]
_SAMPLE_ERRORS = STATEMENTS["sample_errors"]
_SAMPLE_STEPS = STATEMENTS["sample_steps"]


class Runs(Noun):
    """See `store.protocol.runs.Runs`."""

    async def get(self, namespace: str, run_id: str) -> Run | None:
        if not is_id(run_id):
            return None
        return await self.pool.run(lambda connection: _get(connection, namespace, run_id))

    async def get_many(self, runs: Sequence[RunKey]) -> list[Run]:
        asked = [run for run in runs if is_id(run[1])]
        return await self.pool.run(lambda connection: get_runs(connection, asked))

    @asks
    async def get_by_external_id(self, connection: Connection, namespace: str, external_id: str) -> Run | None:
        row = await connection.fetchrow(_GET_RUN_BY_EXTERNAL_ID, namespace, external_id)
        return None if row is None else run_of(row)

    @asks
    async def find(self, connection: Connection, namespace: str, external_id: str) -> str | None:
        found = await connection.fetchval(STATEMENTS["find_run"], namespace, external_id)
        return None if found is None else str(found)

    @asks
    async def search(self, connection: Connection, filter: RunFilter, cursor: Cursor | None, limit: int) -> FoundRuns:
        return await list_runs(connection, filter, cursor, limit, self.indexes.missing)

    async def steps(self, namespace: str, run_id: str, payloads: bool = True, step_id: str | None = None) -> list[Step]:
        if not is_id(run_id):
            return []
        return await self.pool.run(lambda connection: get_steps(connection, namespace, run_id, payloads, step_id))

    async def values(self, namespace: str, run_id: str, names: Sequence[str], after: str) -> list[RunValue]:
        if not is_id(run_id):
            return []
        return await self.pool.run(lambda connection: read_values(connection, namespace, run_id, names, after))

    async def finished_of(self, runs: Sequence[RunKey]) -> list[RunKey]:
        asked: list[RunKey] = []
        malformed: list[RunKey] = []
        for run in runs:
            (asked if is_id(run[1]) else malformed).append(run)
        if not asked:
            return malformed
        return malformed + await self.pool.run(lambda connection: _finished_of(connection, asked))

    async def facts_of(self, runs: Sequence[RunKey]) -> list[RunFacts]:
        asked = [run for run in runs if is_id(run[1])]
        return await self.pool.run(lambda connection: _facts_of(connection, asked)) if asked else []

    @asks
    async def sample(self, connection: Connection, namespace: str, workflow_type: str | None) -> Sample:
        rows = await connection.fetch(_SAMPLE_RUNS, namespace, workflow_type, LOOKED_AT, SAMPLED_RUNS)
        runs = [
            SampledRun(
                run_id=str(row["run_id"]),
                version=row["version"],
                status=STATUSES[row["status"]],
                created_at=row["created_at"],
                started_at=row["started_at"],
                finished_at=row["finished_at"],
            )
            for row in rows
        ]
        whole = len(runs) < SAMPLED_RUNS
        if whole:
            whole = await connection.fetchval(_EDGE_WALK, namespace, NEWEST, LOOKED_AT) is None
        errors = await connection.fetch(_SAMPLE_ERRORS, namespace, failed_runs_of(runs), self.now())
        looked_at = step_runs_of(runs) if workflow_type is not None else []
        steps = await connection.fetch(_SAMPLE_STEPS, namespace, looked_at, STEP_ROWS) if looked_at else []
        return Sample(
            now=errors[0]["now"],
            runs=runs,
            errors={str(row["run_id"]): row["error"] for row in errors if row["run_id"] is not None},
            steps=[
                SampledStep(
                    run_id=str(row["run_id"]),
                    step_id=row["step_id"],
                    failed=row["failed"],
                    retried=row["retried"],
                    started_at=row["started_at"],
                    finished_at=row["finished_at"],
                )
                for row in steps
            ],
            whole=whole,
        )

    @asks
    async def count(
        self,
        connection: Connection,
        namespace: str | None,
        live: bool,
        created_after: Instant | None = None,
        created_before: Instant | None = None,
    ) -> list[RunCount]:
        unfinished = await count_live_runs(connection, namespace, created_after, created_before)
        if live:
            return counting.folded(unfinished)
        asked = (namespace, created_after, created_before, counting.NAMESPACES)
        newest = await connection.fetch(
            _COUNT_NEWEST_RUNS, *asked, counting.OF_A_NAMESPACE, counting.IN_ALL, counting.GROUPS
        )
        return counting.folded(unfinished, map(_seen, newest))


async def _get(connection: Connection, namespace: str, run_id: str) -> Run | None:
    row = await connection.fetchrow(_GET_RUN, namespace, run_id)
    return None if row is None else run_of(row)


async def get_runs(connection: Connection, runs: Sequence[RunKey]) -> list[Run]:
    rows = await connection.fetch(_GET_RUNS, *columns_of(runs))
    return [run_of(row) for row in rows]


async def count_live_runs(
    connection: Connection,
    namespace: str | None,
    created_after: Instant | None = None,
    created_before: Instant | None = None,
) -> list[counting.Seen]:
    asked = (namespace, created_after, created_before, counting.NAMESPACES)
    limits = (counting.QUEUES, counting.OF_A_QUEUE, counting.IN_ALL, counting.GROUPS)
    return [_seen(row) for row in await connection.fetch(_COUNT_LIVE_RUNS, *asked, *limits)]


def _seen(row: asyncpg.Record) -> counting.Seen:
    namespace, workflow_type, task_queue, status, *more = row
    return counting.Seen(namespace, workflow_type, task_queue, STATUSES[status], *more)


async def _finished_of(connection: Connection, runs: Sequence[RunKey]) -> list[RunKey]:
    rows = await connection.fetch(_FINISHED_OF, *columns_of(runs))
    return [(row["namespace"], str(row["run_id"])) for row in rows]


async def _facts_of(connection: Connection, runs: Sequence[RunKey]) -> list[RunFacts]:
    rows = await connection.fetch(_FACTS_OF, *columns_of(runs))
    return [
        RunFacts(
            namespace=row["namespace"],
            run_id=str(row["run_id"]),
            workflow_type=row["workflow_type"],
            task_queue=row["task_queue"],
            worker_id=None if row["worker_id"] is None else str(row["worker_id"]),
            started_at=row["started_at"],
            finished_at=row["finished_at"],
        )
        for row in rows
    ]
