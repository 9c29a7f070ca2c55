"""Requests outside of a lease: cancel, terminate, repeat. Rare, so each by itself: in one statement if the run has no
parent that would hear of its end, else in a transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, assert_never

from kagzi.api.operations import Answer, CancelAnswer, CancelRun, Fork, RepeatRun, Started, TerminateRun, WakeAnswer
from kagzi.core.cancel import cancelled_unbegun, terminated
from kagzi.core.instant import Instant
from kagzi.core.run import RunStatus
from kagzi.errors import Conflict, NotFound, Unavailable
from kagzi.store.postgres.children import lock_families
from kagzi.store.postgres.ends import end_runs, ended
from kagzi.store.postgres.forks import fork_run
from kagzi.store.postgres.restarts import free_id, note_origin
from kagzi.store.postgres.run_rows import columns_of
from kagzi.store.postgres.statements import STATEMENTS
from kagzi.store.protocol.changes import Applied, RunKey, Told
from kagzi.store.starts import id_taken, superseded

if TYPE_CHECKING:
    import asyncpg

    from kagzi.store.postgres.connection import Connection

_CANCEL_RUN = STATEMENTS["cancel_run"]
_TERMINATE_RUN = STATEMENTS["terminate_run"]
_FIND_CANCELLED_RUN = STATEMENTS["find_cancelled_run"]
_FIND_REPEATED_RUN = STATEMENTS["find_repeated_run"]
_FIND_SUPERSEDED_RUN = STATEMENTS["find_superseded_run"]
_KEEP_OF_RUN = STATEMENTS["keep_of_run"]
_REPEAT_RUN = STATEMENTS["repeat_run"]
_COPY_INPUT = STATEMENTS["copy_input"]
_COPY_FAILED_INPUT = STATEMENTS["copy_failed_input"]
_COPY_STEPS = STATEMENTS["copy_steps"]
_COPY_SIGNALS = STATEMENTS["copy_signals"]
_FIND_REPEAT = STATEMENTS["find_repeat"]
_LOCK_RUNS = STATEMENTS["lock_runs"]
_WAKE_RUN = STATEMENTS["wake_run"]

Request = CancelRun | TerminateRun | RepeatRun


async def apply_requests(connection: Connection, requests: Sequence[Request], now: Instant | None) -> Applied:
    applied = Applied([], [])
    answer: Answer | None
    for request in requests:
        match request:
            case CancelRun() | TerminateRun():
                answer = await _cancel_alone(connection, request, now)
                if answer is None:
                    async with connection.transaction():
                        answer = await cancel(connection, request, applied.woken, now)
                applied.answers.append(answer)
            case RepeatRun(fork=Fork() as fork):
                async with connection.transaction():
                    answer = await fork_run(connection, request, fork, now)
                applied.answers.append(answer)
            case RepeatRun():
                async with connection.transaction():
                    answer = await repeat(connection, request, now)
                applied.answers.append(answer)
            case _:
                assert_never(request)
    return applied


async def _cancel_alone(
    connection: Connection, request: CancelRun | TerminateRun, now: Instant | None
) -> CancelAnswer | None:
    """Tells or ends a live run in one statement, if nobody else hears of it: it goes on, or has no parent (whose child
    a run is never changes). None if it is not such a one, and nothing was done."""
    namespace, run_id = request.namespace, request.run_id
    if isinstance(request, CancelRun):
        row = await connection.fetchrow(_CANCEL_RUN, now, namespace, run_id, request.grace, cancelled_unbegun(), True)
    else:
        row = await connection.fetchrow(_TERMINATE_RUN, now, namespace, run_id, terminated(request.reason))
    return None if row is None else _answer(run_id, row)


async def cancel(
    connection: Connection, request: CancelRun | TerminateRun, woken: list[Told], now: Instant | None
) -> Answer:
    """Answers a request to end a run, in the transaction of the caller; `woken` gets those who were told of its end."""
    namespace, run_id = request.namespace, request.run_id
    await lock_families(connection, [(namespace, run_id)])
    row = None
    if isinstance(request, CancelRun):
        row = await connection.fetchrow(_CANCEL_RUN, now, namespace, run_id, request.grace, cancelled_unbegun(), False)
        if row is not None and row["status"] == RunStatus.CANCELLED:
            woken += await ended(connection, [(namespace, run_id)], [])
    else:
        error = terminated(request.reason)
        done = await end_runs(connection, [(namespace, run_id)], RunStatus.CANCELLED, error, now)
        woken += done.woken
    if row is None:
        row = await connection.fetchrow(_FIND_CANCELLED_RUN, namespace, run_id)
    if row is None:
        return NotFound(f"there is no run {run_id} in namespace {namespace}")
    return _answer(run_id, row)


def _answer(run_id: str, row: asyncpg.Record) -> CancelAnswer:
    status = RunStatus(row["status"])
    return CancelAnswer(
        run_id=run_id,
        effective=status is RunStatus.CANCELLED or (row["cancel_requested"] and not status.finished),
        status=status,
        task_queue=row["task_queue"],
        available_at=row["available_at"] or 0,
    )


async def lock_runs(connection: Connection, runs: Sequence[RunKey]) -> None:
    """Locks runs, in the one order, and waits for those who hold them."""
    await connection.fetchval(_LOCK_RUNS, *columns_of(runs))


async def wake_run(connection: Connection, namespace: str, run_id: str, now: Instant | None) -> WakeAnswer | None:
    """Makes a run claimable that waits for a moment, in a transaction that has locked it; None if there is no such run.
    The lock comes before the statement that reads where the history of the run stands: whoever held it may have written
    that."""
    row = await connection.fetchrow(_WAKE_RUN, now, namespace, run_id)
    woken = row is not None
    if row is None:
        row = await connection.fetchrow(_FIND_CANCELLED_RUN, namespace, run_id)
    if row is None:
        return None
    return WakeAnswer(
        run_id=run_id,
        woken=woken,
        status=RunStatus(row["status"]),
        task_queue=row["task_queue"],
        available_at=row["available_at"] or 0,
    )


async def repeat(connection: Connection, request: RepeatRun, now: Instant | None) -> Answer:
    """Answers a request to repeat a run, in the transaction of the caller."""
    namespace, source, run_id = request.namespace, request.of_run_id, request.run_id
    # One statement after the other: the next one sees all that was written before this lock was given.
    statement = _FIND_SUPERSEDED_RUN if request.keep_id else _FIND_REPEATED_RUN
    found = await connection.fetchrow(statement, namespace, source)
    if found is None:
        return NotFound(f"there is no run {source} in namespace {namespace}")
    status = RunStatus(found["status"])
    if not status.finished:
        return Conflict(f"run {source} is {status}; only a finished run can be repeated")
    successor = None if found["superseded_by"] is None else str(found["superseded_by"])
    if request.keep_id and successor is not None and successor != run_id:
        row = await connection.fetchrow(_FIND_CANCELLED_RUN, namespace, successor)
        state = None if row is None else RunStatus(row["status"])
        return superseded(source, successor, state, 0 if row is None else row["available_at"] or 0)
    keep = await connection.fetchval(_KEEP_OF_RUN, namespace, source) if request.keep_steps else 0
    row = await connection.fetchrow(_REPEAT_RUN, now, namespace, source, run_id, keep)
    if row is None:
        row = await connection.fetchrow(_FIND_REPEAT, namespace, run_id, source, keep)
        if row is None:
            return Unavailable("the run with this id has just been deleted; trying again is safe")
        if not row["same"]:
            return id_taken(run_id, row["workflow_type"])
    else:
        if request.keep_id and await free_id(connection, (namespace, source), run_id):
            await note_origin(connection, (namespace, source), run_id)
        if found["large"]:
            await connection.execute(_COPY_INPUT, namespace, source, run_id)
        if found["noted"]:
            await connection.execute(_COPY_FAILED_INPUT, namespace, source, run_id)
        if keep > 0:
            await connection.execute(_COPY_STEPS, namespace, source, run_id, keep)
        if request.keep_steps and found["told"]:
            await connection.execute(_COPY_SIGNALS, namespace, source, run_id, keep)
    return Started(run_id=run_id, status=RunStatus(row["status"]), available_at=row["available_at"] or 0)
