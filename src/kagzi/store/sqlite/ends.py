"""Ends: what follows when a run becomes terminal, in the transaction that makes it so.

Everything that ends a run calls `ended`: a chunk, a deadline, a run that kills its workers, a cancellation of what
nobody has begun, the end of a grace, a termination.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from kagzi.core.instant import Instant
from kagzi.core.run import RunStatus
from kagzi.store.protocol.changes import RunKey, Told
from kagzi.store.sqlite.children import tell_parent
from kagzi.store.sqlite.handlers import start_handlers
from kagzi.store.sqlite.statements import execute


def ended(connection: sqlite3.Connection, runs: Sequence[RunKey], now: Instant) -> list[Told]:
    """Draws the consequences for others of runs that this transaction has ended. Returns those that were told, and the
    handlers that were started."""
    told = [tell_parent(connection, run, now) for run in runs]
    return [*(run for run in told if run is not None), *start_handlers(connection, runs, now)]


def end_run(connection: sqlite3.Connection, run: RunKey, status: RunStatus, error: bytes, now: Instant) -> list[Told]:
    """Ends a live run, whatever it is doing; its holder is fenced off. Returns who was told."""
    execute(connection, "end_run", (*run, status.value, error, now))
    execute(connection, "forget_step_timeouts", run)
    return ended(connection, [run], now)
