"""Runs that begin anew in place: `ContinueRun`."""

from __future__ import annotations

import sqlite3

from kagzi.api.operations import Chunk, ContinueRun
from kagzi.core.instant import Instant
from kagzi.core.signal import GIVEN_KEY_KEPT, MADE_KEY_KEPT
from kagzi.store.sqlite.run_rows import INLINE_BYTES, claim_key
from kagzi.store.sqlite.statements import execute, execute_rows


def continue_run(connection: sqlite3.Connection, chunk: Chunk, anew: ContinueRun, priority: int, now: Instant) -> None:
    """Lets a run that is held under the token of this chunk begin anew."""
    run = (chunk.namespace, chunk.run_id)
    execute(connection, "keep_first_input", (*run, now))
    inline = anew.input if len(anew.input) <= INLINE_BYTES else None
    values = (*run, chunk.token, inline, anew.version, now, claim_key(now, priority, now))
    execute(connection, "continue_run", values)
    execute(connection, "delete_input", run)
    if inline is None:
        execute_rows(connection, "insert_payloads", [(*run, "input", anew.input)])
    execute(connection, "drop_incarnations", run)
    execute(connection, "set_incarnation_aside", run)
    execute(connection, "settle_taken_signals", run)
    execute(connection, "forget_taken_signals", (*run, now, MADE_KEY_KEPT, GIVEN_KEY_KEPT))
