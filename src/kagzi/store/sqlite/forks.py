"""Forks: runs that go on from a chosen step of another one, live or finished."""

from __future__ import annotations

import sqlite3

from kagzi.api.operations import Answer, Fork, RepeatRun, Started
from kagzi.core.instant import Instant
from kagzi.core.run import RunStatus
from kagzi.core.step import escape
from kagzi.errors import NotFound
from kagzi.store.sqlite.run_rows import INLINE_BYTES
from kagzi.store.sqlite.statements import execute, execute_rows
from kagzi.store.starts import id_taken, step_has_no_end


def fork_run(connection: sqlite3.Connection, request: RepeatRun, fork: Fork, now: Instant) -> Answer:
    namespace, run_id = request.namespace, request.run_id
    source = (namespace, request.of_run_id)
    if execute(connection, "find_run_to_repeat", source).fetchone() is None:
        return NotFound(f"there is no run {request.of_run_id} in namespace {namespace}")
    keep = 0
    if fork.from_step is not None:
        row = execute(connection, "number_of_step", (*source, fork.from_step)).fetchone()
        if row is None:
            return step_has_no_end(request.of_run_id, fork.from_step)
        keep = row[0] - 1
    if execute(connection, "repeat_run", (*source, run_id, now, keep)).rowcount:
        inline = fork.input if len(fork.input or b"") <= INLINE_BYTES else None
        execute(connection, "change_fork", (namespace, run_id, fork.version, fork.input is not None, inline))
        if fork.input is None:
            execute(connection, "copy_input", (*source, run_id))
        elif inline is None:
            execute_rows(connection, "insert_payloads", [(namespace, run_id, "input", fork.input)])
        execute(connection, "copy_failed_input", (*source, run_id))
        if keep > 0:
            execute(connection, "copy_steps", (*source, run_id, keep))
        if fork.from_step is not None:
            execute(connection, "copy_signals", (*source, run_id, keep))
            execute(connection, "count_copied_signals", (namespace, run_id))
    wanted = (namespace, run_id, request.of_run_id, fork.input, keep)
    status, available_at, workflow_type, same = execute(connection, "find_fork", wanted).fetchone()
    if not same:
        return id_taken(run_id, workflow_type)
    return Started(run_id=run_id, status=RunStatus(status), available_at=available_at or 0)


def steps_named(connection: sqlite3.Connection, namespace: str, run_id: str, name: str) -> list[str]:
    """Returns the ids of the steps of a run that have ended and have this name, or one in which it occurs."""
    return [step_id for (step_id,) in execute(connection, "steps_named", (namespace, run_id, name, escape(name)))]
