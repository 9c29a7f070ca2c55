"""Ends: what follows when a run becomes terminal, in the transaction that makes it so.

Everything that ends a run calls `ended`: a chunk, a deadline, a run that kills its workers, a cancellation of what
nobody has begun, the end of a grace, a termination.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kagzi.core.instant import Instant
from kagzi.core.run import RunStatus
from kagzi.store.postgres.children import tell_parents
from kagzi.store.postgres.handlers import start_handlers
from kagzi.store.postgres.run_rows import columns_of
from kagzi.store.postgres.statements import STATEMENTS
from kagzi.store.postgres.workers import recovered_of
from kagzi.store.protocol.changes import Changed, RunKey, Told

if TYPE_CHECKING:
    import asyncpg

    from kagzi.store.postgres.connection import Connection

_END_RUNS = STATEMENTS["end_runs"]


async def ended(connection: Connection, children: Sequence[RunKey], failed: Sequence[RunKey]) -> list[Told]:
    """Draws the consequences for others of runs that this transaction has ended: tells the parents of those that may
    have one, and starts what handles the failures. Returns those that were told, and the handlers. Their families are
    locked: see `lock_families` and `lock_parents`."""
    told = await tell_parents(connection, children) if children else []
    return [*told, *await start_handlers(connection, failed)] if failed else told


async def end_runs(
    connection: Connection, runs: Sequence[RunKey], status: RunStatus, error: bytes, now: Instant | None
) -> Changed:
    """Ends those of these runs that are live, whatever they are doing; their holders are fenced off."""
    rows = await connection.fetch(_END_RUNS, now, *columns_of(runs), status, error)
    keys = keys_of(rows)
    return Changed(
        [recovered_of(row) for row in rows],
        await ended(connection, keys, [] if status is RunStatus.CANCELLED else keys),
    )


def keys_of(rows: Sequence[asyncpg.Record]) -> list[RunKey]:
    return [(row["namespace"], str(row["run_id"])) for row in rows]
