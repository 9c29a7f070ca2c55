"""Starts of runs: the rows of a batch in one statement."""

from __future__ import annotations

import sqlite3

from kagzi.api.operations import Answer, ChildStart, Started, StartRun
from kagzi.core.carried import kept_of
from kagzi.core.family import ParentPolicy
from kagzi.core.instant import Instant, Span
from kagzi.core.run import RunStatus
from kagzi.store.protocol.changes import RunKey
from kagzi.store.sqlite.limit_rows import Limited, is_limited, read_limited
from kagzi.store.sqlite.restarts import free_id, note_origin
from kagzi.store.sqlite.run_rows import INLINE_BYTES, claim_key
from kagzi.store.sqlite.statements import Row, execute, execute_rows
from kagzi.store.starts import Identity, identity_of, refusal, restarts


def start_runs(
    connection: sqlite3.Connection,
    starts: list[tuple[int, StartRun]],
    answers: list[Answer],
    now: Instant,
) -> None:
    rows: list[Row] = []
    large: list[Row] = []
    births = any(start.lease is not None for _, start in starts)
    limited = read_limited(connection) if births else frozenset()
    for position, start in starts:
        answers[position] = started = new_run(start, limited, now)
        if len(start.input) > INLINE_BYTES:
            large.append((start.namespace, start.run_id, "input", start.input))
        rows.append(run_row(start, started, now))
    if execute_rows(connection, "insert_runs", rows) == len(rows):
        if large:
            execute_rows(connection, "insert_payloads", large)
        return
    # Some were there before, or twice in this batch.
    fresh = {identity_of(start): start.input for _, start in reversed(starts)}
    for position, start in starts:
        answers[position] = answer = _existing_run(connection, start, fresh, now)
        if isinstance(answer, Started) and answer.run_id == start.run_id and len(start.input) > INLINE_BYTES:
            execute_rows(connection, "insert_payloads", [(start.namespace, start.run_id, "input", start.input)])


def new_run(start: StartRun, limited: Limited, now: Instant) -> Started:
    # What is due in the past waits from now on: it is no older than others that are started now.
    available_at = max(now + start.delay, start.start_at or 0)
    held_back = is_limited(limited, start.namespace, start.task_queue, start.workflow_type, start.limit_name)
    if start.lease is not None and available_at <= now and not held_back:
        return Started(
            run_id=start.run_id,
            status=RunStatus.RUNNING,
            born=True,
            started_at=now,
            available_at=available_at,
        )
    return Started(run_id=start.run_id, available_at=available_at)


def run_row(start: StartRun, started: Started, now: Instant) -> Row:
    token = worker_id = poll = lease_expires_at = started_at = None
    lease_length = start.lease_length
    if started.born and start.lease is not None:
        token, worker_id, poll, started_at = start.lease.token, start.lease.worker_id, start.lease.poll, now
        lease_length = start.lease.length if lease_length is None else lease_length
        lease_expires_at = now + start.lease.length
    born = 1 if started.born else 0
    row = new_run_row(start.namespace, start, start.input, started, lease_length, now)
    by = start.started_by
    parent = (None, None, None, None) if by is None else (by.run_id, by.step_id, by.attempt, ParentPolicy.NONE.value)
    return (*row, token, worker_id, poll, lease_expires_at, started_at, born, start.limit_name, *parent)


def new_run_row(
    namespace: str,
    start: StartRun | ChildStart,
    input: bytes,
    started: Started,
    lease_length: Span | None,
    now: Instant,
) -> Row:
    """Returns what every new run has, in the order of the statements' `run_columns`."""
    return (
        namespace,
        start.run_id,
        start.external_id,
        start.task_queue,
        start.workflow_type,
        start.version,
        started.status._value_,
        start.priority,
        now,
        started.available_at,
        None if started.born else claim_key(started.available_at, start.priority, now),
        deadline_of(start, now),
        input if len(input) <= INLINE_BYTES else None,
        lease_length,
        *kept_of(start),
    )


def deadline_of(start: StartRun | ChildStart, now: Instant) -> Instant | None:
    if start.timeout is not None and (start.deadline_at is None or now + start.timeout < start.deadline_at):
        return now + start.timeout
    return start.deadline_at


def _existing_run(
    connection: sqlite3.Connection, start: StartRun, fresh: dict[Identity, bytes], now: Instant
) -> Answer:
    row = execute(connection, "find_started_run", (start.namespace, start.run_id, start.external_id)).fetchone()
    *identity, status, token, started_at, available_at, input = row
    found = Identity(*identity)
    if restarts(start, found, RunStatus(status)):
        return _restart(connection, start, (found.namespace, found.run_id), now)
    if input is None:
        # Inserted by this batch, and its large input is not written yet.
        input = fresh[found]
    if (conflict := refusal(start, found, input)) is not None:
        return conflict
    if found.run_id == start.run_id:
        # Inserted now, or by an earlier sending of this very start.
        born = start.lease is not None and token == start.lease.token and status == "RUNNING"
        return Started(
            run_id=start.run_id,
            status=RunStatus(status),
            born=born,
            started_at=started_at or 0,
            available_at=available_at,
        )
    return Started(run_id=found.run_id, already_exists=True, status=RunStatus(status), available_at=available_at)


def _restart(connection: sqlite3.Connection, start: StartRun, holder: RunKey, now: Instant) -> Started:
    """Inserts a run in the place of a finished one, whose id it gets."""
    free_id(connection, holder, start.run_id)
    started = new_run(start, frozenset() if start.lease is None else read_limited(connection), now)
    execute(connection, "insert_runs", run_row(start, started, now))
    note_origin(connection, holder, start.run_id)
    return started
