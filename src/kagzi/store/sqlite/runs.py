"""Reading runs."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

import msgspec

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
from kagzi.store.protocol.runs import FoundRuns, RunFacts
from kagzi.store.searching import NEWEST
from kagzi.store.sqlite.nouns import Noun, reads
from kagzi.store.sqlite.run_rows import STATUSES, run_of
from kagzi.store.sqlite.search import list_runs
from kagzi.store.sqlite.statements import execute
from kagzi.store.sqlite.steps import get_steps
from kagzi.store.sqlite.values import read_values


class Runs(Noun):
    """See `store.protocol.runs.Runs`."""

    @reads
    def get(self, connection: sqlite3.Connection, namespace: str, run_id: str) -> Run | None:
        return get_run(connection, namespace, run_id)

    @reads
    def get_many(self, connection: sqlite3.Connection, runs: Sequence[tuple[str, str]]) -> list[Run]:
        return get_runs(connection, runs)

    @reads
    def get_by_external_id(self, connection: sqlite3.Connection, namespace: str, external_id: str) -> Run | None:
        row = execute(connection, "get_run_by_external_id", (namespace, external_id)).fetchone()
        return None if row is None else run_of(row)

    @reads
    def find(self, connection: sqlite3.Connection, namespace: str, external_id: str) -> str | None:
        row = execute(connection, "find_run", (namespace, external_id)).fetchone()
        return None if row is None else str(row[0])

    @reads
    def search(self, connection: sqlite3.Connection, filter: RunFilter, cursor: Cursor | None, limit: int) -> FoundRuns:
        return list_runs(connection, filter, cursor, limit)

    @reads
    def steps(
        self,
        connection: sqlite3.Connection,
        namespace: str,
        run_id: str,
        payloads: bool = True,
        step_id: str | None = None,
    ) -> list[Step]:
        return get_steps(connection, namespace, run_id, payloads, step_id)

    @reads
    def values(
        self, connection: sqlite3.Connection, namespace: str, run_id: str, names: Sequence[str], after: str
    ) -> list[RunValue]:
        return read_values(connection, namespace, run_id, names, after)

    @reads
    def finished_of(self, connection: sqlite3.Connection, runs: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
        text = execute(connection, "finished_of", (msgspec.json.encode(runs).decode(),)).fetchone()[0]
        return msgspec.json.decode(text, type=list[tuple[str, str]])

    @reads
    def facts_of(self, connection: sqlite3.Connection, runs: Sequence[tuple[str, str]]) -> list[RunFacts]:
        rows = execute(connection, "facts_of", (msgspec.json.encode(runs).decode(),)).fetchall()
        return [
            RunFacts(
                namespace=namespace,
                run_id=run_id,
                workflow_type=workflow,
                task_queue=task_queue,
                worker_id=worker_id,
                started_at=started_at,
                finished_at=finished_at,
            )
            for namespace, run_id, workflow, task_queue, worker_id, started_at, finished_at in rows
        ]

    @reads
    def sample(self, connection: sqlite3.Connection, namespace: str, workflow_type: str | None) -> Sample:
        wanted = (namespace, workflow_type, LOOKED_AT, SAMPLED_RUNS)
        runs = [
            SampledRun(
                run_id=run_id,
                version=version,
                status=STATUSES[status],
                created_at=created_at,
                started_at=started_at,
                finished_at=finished_at,
            )
            for run_id, version, status, created_at, started_at, finished_at in execute(
                connection, "sample_runs", wanted
            ).fetchall()
        ]
        beyond = (namespace, NEWEST, LOOKED_AT)
        failed = msgspec.json.encode(failed_runs_of(runs)).decode()
        finished = msgspec.json.encode(step_runs_of(runs) if workflow_type is not None else []).decode()
        steps = execute(connection, "sample_steps", (namespace, finished, STEP_ROWS)).fetchall()
        return Sample(
            now=self.now(),
            runs=runs,
            errors=dict(execute(connection, "sample_errors", (namespace, failed)).fetchall()),
            steps=[
                SampledStep(
                    run_id=run_id,
                    step_id=step_id,
                    failed=bool(failed),
                    retried=bool(retried),
                    started_at=started_at,
                    finished_at=finished_at,
                )
                for run_id, step_id, failed, retried, started_at, finished_at in steps
            ],
            whole=len(runs) < SAMPLED_RUNS and execute(connection, "edge_walk", beyond).fetchone() is None,
        )

    @reads
    def count(
        self,
        connection: sqlite3.Connection,
        namespace: str | None,
        live: bool,
        created_after: Instant | None = None,
        created_before: Instant | None = None,
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


def get_run(connection: sqlite3.Connection, namespace: str, run_id: str) -> Run | None:
    row = execute(connection, "get_run", (namespace, run_id)).fetchone()
    return None if row is None else run_of(row)


def get_runs(connection: sqlite3.Connection, runs: Sequence[tuple[str, str]]) -> list[Run]:
    found = (get_run(connection, namespace, run_id) for namespace, run_id in runs)
    return [run for run in found if run is not None]


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
    return counting.Seen(namespace, workflow_type, task_queue, STATUSES[status], *more)
