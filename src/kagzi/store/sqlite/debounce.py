"""Debounced starts. See `kagzi.store.debounce`."""

from __future__ import annotations

import sqlite3

from kagzi.api.operations import Answer, Started, StartRun
from kagzi.core.instant import Instant
from kagzi.core.run import RunStatus
from kagzi.store.debounce import Found, stands_in_the_way
from kagzi.store.sqlite.run_rows import INLINE_BYTES
from kagzi.store.sqlite.starts import deadline_of, new_run_row
from kagzi.store.sqlite.statements import execute, execute_rows


def start_debounced(connection: sqlite3.Connection, start: StartRun, now: Instant) -> Answer:
    """Joins the run with this key that nobody has begun, or makes one; in the transaction of the caller."""
    debounce = start.debounce
    assert debounce is not None
    asked = (start.namespace, start.workflow_type, debounce.key, start.task_queue, start.run_id, now)
    row = execute(connection, "find_joined", (*asked, debounce.wait, debounce.most)).fetchone()
    if row is not None:
        return _join(connection, start, row, now)
    started = Started(run_id=start.run_id, available_at=now + debounce.wait)
    values = new_run_row(start.namespace, start, start.input, started, start.lease_length, now)
    made = execute(connection, "start_debounced_run", (*values, start.limit_name, debounce.key))
    if made.rowcount == 1:
        _store_large(connection, start, start.run_id)
        return started
    key = (start.namespace, start.run_id, start.workflow_type, debounce.key)
    return stands_in_the_way(start, Found(*execute(connection, "find_debounced", key).fetchone()))


def _join(connection: sqlite3.Connection, start: StartRun, row: tuple[str, str, Instant, int], now: Instant) -> Started:
    run_id, status, available_at, left_line = row
    execute(
        connection,
        "join_run",
        (
            start.namespace,
            run_id,
            start.input if len(start.input) <= INLINE_BYTES else None,
            start.version,
            start.trace_context,
            start.limit_name,
            start.limit_key,
            deadline_of(start, now),
            available_at,
            now,
            start.run_id,
        ),
    )
    execute(connection, "drop_input", (start.namespace, run_id))
    _store_large(connection, start, run_id)
    return Started(
        run_id=run_id,
        already_exists=run_id != start.run_id,
        status=RunStatus(status),
        available_at=available_at,
        left_line=bool(left_line),
    )


def _store_large(connection: sqlite3.Connection, start: StartRun, run_id: str) -> None:
    if len(start.input) > INLINE_BYTES:
        execute_rows(connection, "insert_payloads", [(start.namespace, run_id, "input", start.input)])
