"""Requests outside of a lease: cancel, terminate, repeat."""

from __future__ import annotations

import sqlite3

from kagzi.api.operations import Answer, CancelAnswer, CancelRun, RepeatRun, Started, TerminateRun, WakeAnswer
from kagzi.core.cancel import cancelled_unbegun, terminated
from kagzi.core.instant import Instant
from kagzi.core.run import RunStatus
from kagzi.errors import Conflict, NotFound
from kagzi.store.protocol.changes import Told
from kagzi.store.sqlite.ends import end_run, ended
from kagzi.store.sqlite.forks import fork_run
from kagzi.store.sqlite.restarts import free_id, note_origin
from kagzi.store.sqlite.run_rows import claim_key
from kagzi.store.sqlite.statements import execute
from kagzi.store.starts import id_taken, superseded


def cancel(
    connection: sqlite3.Connection, request: CancelRun | TerminateRun, woken: list[Told], now: Instant
) -> Answer:
    """Answers a request to end a run; `woken` gets those who were told that it has ended."""
    key = (request.namespace, request.run_id)
    row = execute(connection, "find_run_to_cancel", key).fetchone()
    if row is None:
        return NotFound(f"there is no run {request.run_id} in namespace {request.namespace}")
    found, unbegun, requested, task_queue, priority, available_at, place = row
    status = RunStatus(found)
    if status.finished or (requested and isinstance(request, CancelRun)):
        pass
    elif isinstance(request, TerminateRun):
        status = RunStatus.CANCELLED
        woken += end_run(connection, key, status, terminated(request.reason), now)
    elif unbegun:
        status = RunStatus.CANCELLED
        execute(connection, "cancel_unbegun_run", (*key, cancelled_unbegun(), now))
        woken += ended(connection, [key], now)
    else:
        requested = 1
        if status is not RunStatus.RUNNING and place > now:
            available_at, place = now, claim_key(now, priority, now)
        execute(connection, "request_cancel", (*key, now + request.grace, available_at, place))
    return CancelAnswer(
        run_id=request.run_id,
        effective=status is RunStatus.CANCELLED or (bool(requested) and not status.finished),
        status=status,
        task_queue=task_queue,
        available_at=available_at or 0,
    )


def wake_run(connection: sqlite3.Connection, namespace: str, run_id: str, now: Instant) -> WakeAnswer | None:
    """Makes a run claimable that waits for a moment; None if there is no such run."""
    woken = execute(connection, "wake_run", (namespace, run_id, now)).rowcount == 1
    row = execute(connection, "find_run_to_cancel", (namespace, run_id)).fetchone()
    if row is None:
        return None
    status, _, _, task_queue, _, available_at, _ = row
    return WakeAnswer(
        run_id=run_id, woken=woken, status=RunStatus(status), task_queue=task_queue, available_at=available_at or 0
    )


def repeat(connection: sqlite3.Connection, request: RepeatRun, now: Instant) -> Answer:
    if request.fork is not None:
        return fork_run(connection, request, request.fork, now)
    source = (request.namespace, request.of_run_id)
    found = execute(connection, "find_run_to_repeat", source).fetchone()
    if found is None:
        return NotFound(f"there is no run {request.of_run_id} in namespace {request.namespace}")
    state, external_id, successor, state_of_successor, due = found
    status = RunStatus(state)
    if not status.finished:
        return Conflict(f"run {request.of_run_id} is {status}; only a finished run can be repeated")
    if request.keep_id and successor not in (None, request.run_id):
        state = None if state_of_successor is None else RunStatus(state_of_successor)
        return superseded(request.of_run_id, successor, state, due or 0)
    keep = execute(connection, "keep_of_run", source).fetchone()[0] if request.keep_steps else 0
    made = execute(connection, "repeat_run", (*source, request.run_id, now, keep)).rowcount
    if made:
        if request.keep_id and external_id is not None:
            free_id(connection, source, request.run_id)
            note_origin(connection, source, request.run_id)
        execute(connection, "copy_input", (*source, request.run_id))
        execute(connection, "copy_failed_input", (*source, request.run_id))
        if keep > 0:
            execute(connection, "copy_steps", (*source, request.run_id, keep))
        if request.keep_steps:
            execute(connection, "copy_signals", (*source, request.run_id, keep))
            execute(connection, "count_copied_signals", (request.namespace, request.run_id))
    wanted = (request.namespace, request.run_id, request.of_run_id, keep)
    row = execute(connection, "find_repeat", wanted).fetchone()
    if not row[3]:
        return id_taken(request.run_id, row[2])
    return Started(run_id=request.run_id, status=RunStatus(row[0]), available_at=row[1] or 0)
