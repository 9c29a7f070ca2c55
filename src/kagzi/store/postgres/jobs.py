"""Jobs over many runs: see `store/jobs.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

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
from kagzi.store.postgres.cancels import cancel, lock_runs, repeat, wake_run
from kagzi.store.postgres.children import lock_families
from kagzi.store.postgres.forks import fork_run, steps_named
from kagzi.store.postgres.nouns import Noun, asks
from kagzi.store.postgres.run_rows import columns_of
from kagzi.store.postgres.search import list_runs
from kagzi.store.postgres.statements import STATEMENTS
from kagzi.store.protocol.jobs import JobTurn
from kagzi.store.searching import NEWEST

if TYPE_CHECKING:
    import asyncpg

    from kagzi.store.postgres.connection import Connection

_INSERT_JOB = STATEMENTS["insert_job"]
_GET_JOB = STATEMENTS["get_job"]
_LIST_JOBS = STATEMENTS["list_jobs"]
_CANCEL_JOB = STATEMENTS["cancel_job"]
_LOCK_JOB = STATEMENTS["lock_job"]
_MOVE_JOB = STATEMENTS["move_job"]
_DELETE_RUNS = STATEMENTS["delete_runs"]
_IS_ENABLED = STATEMENTS["is_enabled"]
_MOVE_RUNS = STATEMENTS["move_runs"]
_REPEATED_RUNS = STATEMENTS["repeated_runs"]
_REPEATS = "workflow_runs_repeats"
_PRUNE_JOBS = STATEMENTS["prune_jobs"]


class Jobs(Noun):
    """See `store.protocol.jobs.Jobs`."""

    @asks
    async def start(self, connection: Connection, job: Job, most: int) -> Job | None:
        row = await connection.fetchrow(
            _INSERT_JOB,
            self.now(),
            job.namespace,
            job.job_id,
            job.action,
            job.filter,
            job.rate,
            job.children,
            job.created_by,
            most,
            encode_options(job.options),
        )
        return None if row is None else _job_of(row)

    @asks
    async def get(self, connection: Connection, namespace: str, job_id: str) -> Job | None:
        row = await connection.fetchrow(_GET_JOB, namespace, job_id)
        return None if row is None else _job_of(row)

    @asks
    async def page(self, connection: Connection, namespace: str, cursor: Cursor | None, limit: int) -> list[Job]:
        rows = await connection.fetch(_LIST_JOBS, namespace, NEWEST if cursor is None else cursor.key, limit)
        return [_job_of(row) for row in rows]

    @asks
    async def cancel(self, connection: Connection, namespace: str, job_id: str) -> None:
        await connection.execute(_CANCEL_JOB, namespace, job_id, self.now())

    @asks
    async def run_batch(self, connection: Connection, new_run_id: Callable[[], str]) -> JobTurn:
        """One batch of the job that has waited longest."""
        now = self.now()
        async with connection.transaction():
            row = await connection.fetchrow(_LOCK_JOB, now)
            if row is None:
                return JobTurn()
            job, at, cursor = _job_of(row), row["now"], str(row["cursor"])
            if job.action.repeats and not await connection.fetchval(_IS_ENABLED, job.namespace):
                stopped = Move(cursor=cursor, status=JobStatus.FAILED, finished_at=at, error=DISABLED)
                return JobTurn(job=await _move(connection, job, stopped))
            limit = batch_of(job.action, job.rate)
            found = await list_runs(connection, searched(job), Cursor(cursor, True), limit, self.indexes.missing)
            batch = Batch(job, found, cursor, str(row["last_run_id"]), limit)
            if job.action is JobAction.DELETE:
                batch.deleted(len(await connection.fetch(_DELETE_RUNS, *columns_of(batch.keys))))
            elif job.action is JobAction.WAKE:
                await lock_runs(connection, batch.keys)
                for run in batch.wanted:
                    batch.woke(run, await wake_run(connection, run.namespace, run.run_id, now))
            elif job.action is JobAction.MOVE:
                moved = await connection.fetch(_MOVE_RUNS, *_moving(job, batch))
                batch.moved({str(each["run_id"]) for each in moved})
            elif job.action is JobAction.FORK:
                for run in batch.wanted:
                    await _fork(connection, batch, run, new_run_id(), now)
            else:
                if job.action.once:
                    self.indexes.check(_REPEATS)
                    await lock_runs(connection, batch.keys)
                    wanted = [run.run_id for run in batch.wanted]
                    repeated = await connection.fetch(_REPEATED_RUNS, job.namespace, wanted)
                    batch.pass_over({str(each["run_id"]) for each in repeated})
                elif batch.wanted:
                    await lock_families(connection, batch.keys)  # all of them in one order, before the first is changed
                for run in batch.wanted:
                    request = batch.request(run, new_run_id() if job.action.repeats else "")
                    if isinstance(request, RepeatRun):
                        batch.answered(run, await repeat(connection, request, now))
                    else:
                        batch.answered(run, await cancel(connection, request, batch.woken, now))
            return batch.turn(await _move(connection, job, batch.move(at)))

    @asks
    async def delete_run(self, connection: Connection, namespace: str, run_id: str) -> bool:
        return bool(await connection.fetch(_DELETE_RUNS, [namespace], [run_id]))

    @asks
    async def prune(self, connection: Connection, kept: Span, limit: int) -> None:
        await connection.execute(_PRUNE_JOBS, self.now(), kept, limit)


def _moving(job: Job, batch: Batch) -> tuple[Any, ...]:
    return (job.namespace, [run.run_id for run in batch.wanted], job.options.from_version, job.options.version)


async def _fork(connection: Connection, batch: Batch, run: Run, new_run_id: str, now: Instant | None) -> None:
    asked, from_step = batch.job.options.from_step, None
    if asked is not None:
        found = step_to_fork_from(asked, await steps_named(connection, run.namespace, run.run_id, asked))
        if isinstance(found, Skipped):
            batch.skip(found)
            return
        from_step = found
    request = batch.request(run, new_run_id, from_step)
    assert isinstance(request, RepeatRun)
    assert request.fork is not None
    batch.answered(run, await fork_run(connection, request, request.fork, now))


async def _move(connection: Connection, job: Job, move: Move) -> Job:
    row = await connection.fetchrow(
        _MOVE_JOB,
        job.namespace,
        job.job_id,
        move.cursor,
        move.matched,
        move.done,
        move.skipped,
        move.failed,
        move.status,
        move.next_at,
        move.finished_at,
        move.error,
        move.reasons,
    )
    assert row is not None  # it is locked
    return _job_of(row)


def _job_of(row: asyncpg.Record) -> Job:
    return Job(
        namespace=row["namespace"],
        job_id=str(row["job_id"]),
        action=JobAction(row["action"]),
        filter=row["filter"],
        rate=row["rate"],
        children=row["children"],
        options=decode_options(row["options"]),
        status=JobStatus(row["status"]),
        matched=row["matched"],
        done=row["done"],
        skipped=row["skipped"],
        failed=row["failed"],
        reasons=decode_reasons(row["reasons"]),
        created_by=row["created_by"],
        created_at=row["created_at"],
        finished_at=row["finished_at"],
        error=row["error"],
    )
