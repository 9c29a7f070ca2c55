"""Jobs over many runs: see `store/jobs.py`."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from typing import Any

from kagzi.api.operations import RepeatRun
from kagzi.core.instant import Instant, Span
from kagzi.core.job import Job, JobAction, JobStatus, Skipped, batch_of
from kagzi.core.page import Cursor
from kagzi.core.run import Run
from kagzi.store.jobs import (
    DISABLED,
    Batch,
    Move,
    decode_options,
    decode_reasons,
    encode_options,
    searched,
    step_to_fork_from,
)
from kagzi.store.protocol.jobs import JobTurn
from kagzi.store.searching import NEWEST
from kagzi.store.sqlite.cancels import cancel, repeat, wake_run
from kagzi.store.sqlite.duties import delete_runs
from kagzi.store.sqlite.forks import steps_named
from kagzi.store.sqlite.nouns import Noun, reads, writes
from kagzi.store.sqlite.search import list_runs
from kagzi.store.sqlite.statements import execute


class Jobs(Noun):
    """See `store.protocol.jobs.Jobs`."""

    @writes
    def start(self, connection: sqlite3.Connection, job: Job, most: int) -> Job | None:
        values = (job.namespace, job.job_id, job.action.value, job.filter, job.rate, int(job.children), job.created_by)
        options = encode_options(job.options)
        if not execute(connection, "insert_job", (*values, self.now(), most, options)).rowcount:
            return None
        return _get(connection, job.namespace, job.job_id)

    @reads
    def get(self, connection: sqlite3.Connection, namespace: str, job_id: str) -> Job | None:
        return _get(connection, namespace, job_id)

    @reads
    def page(self, connection: sqlite3.Connection, namespace: str, cursor: Cursor | None, limit: int) -> list[Job]:
        values = (namespace, NEWEST if cursor is None else cursor.key, limit)
        return [_job_of(row) for row in execute(connection, "list_jobs", values).fetchall()]

    @writes
    def cancel(self, connection: sqlite3.Connection, namespace: str, job_id: str) -> None:
        execute(connection, "cancel_job", (namespace, job_id, self.now()))

    @writes
    def run_batch(self, connection: sqlite3.Connection, new_run_id: Callable[[], str]) -> JobTurn:
        """One batch of the job that has waited longest."""
        now = self.now()
        row = execute(connection, "next_job", (now,)).fetchone()
        if row is None:
            return JobTurn()
        job, cursor, last_run_id = _job_of(row), row[17], row[18]
        if job.action.repeats and not execute(connection, "is_enabled", (job.namespace,)).fetchone()[0]:
            stopped = Move(cursor=cursor, status=JobStatus.FAILED, finished_at=now, error=DISABLED)
            return JobTurn(job=_move(connection, job, stopped))
        limit = batch_of(job.action, job.rate)
        batch = Batch(
            job, list_runs(connection, searched(job), Cursor(cursor, True), limit), cursor, last_run_id, limit
        )
        if job.action is JobAction.DELETE:
            batch.deleted(delete_runs(connection, batch.keys))
        elif job.action is JobAction.WAKE:
            for run in batch.wanted:
                batch.woke(run, wake_run(connection, run.namespace, run.run_id, now))
        elif job.action is JobAction.MOVE:
            batch.moved([run.run_id for run in batch.wanted if _move_run(connection, job, run.run_id)])
        elif job.action is JobAction.FORK:
            for run in batch.wanted:
                _fork(connection, batch, run, new_run_id(), now)
        else:
            if job.action.once:
                wanted = json.dumps([run.run_id for run in batch.wanted])
                batch.pass_over({row[0] for row in execute(connection, "repeated_runs", (job.namespace, wanted))})
            for run in batch.wanted:
                request = batch.request(run, new_run_id() if job.action.repeats else "")
                if isinstance(request, RepeatRun):
                    batch.answered(run, repeat(connection, request, now))
                else:
                    batch.answered(run, cancel(connection, request, batch.woken, now))
        return batch.turn(_move(connection, job, batch.move(now)))

    @writes
    def delete_run(self, connection: sqlite3.Connection, namespace: str, run_id: str) -> bool:
        return delete_runs(connection, [(namespace, run_id)]) == 1

    @writes
    def prune(self, connection: sqlite3.Connection, kept: Span, limit: int) -> None:  # noqa: ARG002
        execute(connection, "prune_jobs", (self.now() - kept,))


def _get(connection: sqlite3.Connection, namespace: str, job_id: str) -> Job | None:
    row = execute(connection, "get_job", (namespace, job_id)).fetchone()
    return None if row is None else _job_of(row)


def _fork(connection: sqlite3.Connection, batch: Batch, run: Run, new_run_id: str, now: Instant) -> None:
    asked, from_step = batch.job.options.from_step, None
    if asked is not None:
        found = step_to_fork_from(asked, steps_named(connection, run.namespace, run.run_id, asked))
        if isinstance(found, Skipped):
            batch.skip(found)
            return
        from_step = found
    request = batch.request(run, new_run_id, from_step)
    assert isinstance(request, RepeatRun)
    batch.answered(run, repeat(connection, request, now))


def _move_run(connection: sqlite3.Connection, job: Job, run_id: str) -> bool:
    return execute(connection, "move_run", (job.namespace, run_id, job.options.version)).rowcount == 1


def _move(connection: sqlite3.Connection, job: Job, move: Move) -> Job:
    counts = (move.matched, move.done, move.skipped, move.failed)
    state = (move.status.value, move.next_at, move.finished_at, move.error, move.reasons)
    execute(connection, "move_job", (job.namespace, job.job_id, move.cursor, *counts, *state))
    moved = _get(connection, job.namespace, job.job_id)
    assert moved is not None
    return moved


def _job_of(row: tuple[Any, ...]) -> Job:
    return Job(
        namespace=row[0],
        job_id=row[1],
        action=JobAction(row[2]),
        filter=row[3],
        rate=row[4],
        children=bool(row[5]),
        options=decode_options(row[6]),
        status=JobStatus(row[7]),
        matched=row[8],
        done=row[9],
        skipped=row[10],
        failed=row[11],
        reasons=decode_reasons(row[12]),
        created_by=row[13],
        created_at=row[14],
        finished_at=row[15],
        error=row[16],
    )
