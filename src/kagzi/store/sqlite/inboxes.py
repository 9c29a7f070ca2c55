"""Inboxes of runs: each entry may wake its run."""

from __future__ import annotations

import sqlite3

import msgspec

from kagzi.core.instant import Instant
from kagzi.core.run import RunStatus
from kagzi.store.protocol.changes import RunKey, Told
from kagzi.store.sqlite.run_rows import claim_key
from kagzi.store.sqlite.statements import execute


def raise_inbox(connection: sqlite3.Connection, run: RunKey, wakes: tuple[str, ...], now: Instant) -> Told:
    """Adds one to the inbox of a live run. If it sleeps and waits for one of these, it can be claimed from now on."""
    found, task_queue, priority, available_at, place, inbox_seq, waiting_for = execute(
        connection, "find_inbox_of_run", run
    ).fetchone()
    status = RunStatus(found)
    # One that is due already and held for a limit keeps its place: the claim brings the news.
    if status is RunStatus.SLEEPING and available_at > now and waiting_for is not None:
        awaited = msgspec.json.decode(waiting_for, type=list[str])
        if any(name in awaited for name in wakes):
            available_at, place = now, claim_key(now, priority, now)
    execute(connection, "raise_inbox", (*run, inbox_seq + 1, available_at, place))
    return Told(
        namespace=run[0],
        run_id=run[1],
        task_queue=task_queue,
        status=status,
        available_at=available_at or 0,
        inbox_seq=inbox_seq + 1,
    )
