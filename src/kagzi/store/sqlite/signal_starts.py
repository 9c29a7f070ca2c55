"""Starts that tell the run something which has their id, made or found."""

from __future__ import annotations

import sqlite3

from msgspec.structs import replace

from kagzi.api.operations import Answer, SignalAnswer, Started, StartRun
from kagzi.core.instant import Instant
from kagzi.core.run import RunStatus
from kagzi.store.protocol.changes import RunKey
from kagzi.store.sqlite.restarts import free_id, note_origin
from kagzi.store.sqlite.run_rows import INLINE_BYTES
from kagzi.store.sqlite.signals import send_signal
from kagzi.store.sqlite.starts import new_run, run_row
from kagzi.store.sqlite.statements import execute, execute_rows
from kagzi.store.starts import Identity, refusal, restarts, signal_of


def start_with_signal(connection: sqlite3.Connection, start: StartRun, now: Instant) -> Answer:
    """Tells the run that has this id something, or makes one that is told; in the transaction of the caller."""
    row = execute(connection, "find_started_run", (start.namespace, start.run_id, start.external_id)).fetchone()
    holder: RunKey | None = None
    if row is not None:
        *identity, status, _, _, available_at, input = row
        found = Identity(*identity)
        if (conflict := refusal(start, found, input)) is not None:
            return conflict
        # A finished run that knows the key has been told before: this start comes twice, and makes no other run.
        sent = send_signal(connection, signal_of(start, found.run_id), now)
        if isinstance(sent, SignalAnswer):
            return Started(
                run_id=found.run_id,
                already_exists=found.run_id != start.run_id,
                status=sent.status,
                available_at=available_at or 0,
                signal=sent,
            )
        if not restarts(start, found, RunStatus(status)):
            return sent
        holder = (found.namespace, found.run_id)
        free_id(connection, holder, start.run_id)
    started = new_run(start, frozenset(), now)
    execute(connection, "insert_runs", run_row(start, started, now))
    if len(start.input) > INLINE_BYTES:
        execute_rows(connection, "insert_payloads", [(start.namespace, start.run_id, "input", start.input)])
    if holder is not None:
        note_origin(connection, holder, start.run_id)
    sent = send_signal(connection, signal_of(start, start.run_id), now)
    assert isinstance(sent, SignalAnswer)
    return replace(started, signal=sent)
