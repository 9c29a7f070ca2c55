"""Reading a lease: a held run with its history, for its holder."""

from __future__ import annotations

import sqlite3

from kagzi.api.workers import LeaseState
from kagzi.core.instant import Instant
from kagzi.core.run import RunStatus
from kagzi.store.sqlite.statements import execute
from kagzi.store.sqlite.steps import read_history


def confirm_lease(connection: sqlite3.Connection, namespace: str, run_id: str, token: str, now: Instant) -> None:
    execute(connection, "confirm_lease", (namespace, run_id, token, now))


def read_lease(
    connection: sqlite3.Connection, namespace: str, run_id: str, token: str, now: Instant
) -> LeaseState | None:
    row = execute(connection, "read_lease", (namespace, run_id, token)).fetchone()
    if row is None:
        return None
    return LeaseState(
        namespace=namespace,
        run_id=run_id,
        token=token,
        worker_id=row[0],
        status=RunStatus(row[1]),
        now=now,
        confirmed=bool(row[2]),
        input=row[3],
        lease=row[4],
        attempts=row[5],
        inbox_seq=row[6],
        retry_policy=row[7],
        history=read_history(connection, namespace, [run_id]).get(run_id, ()),
        failed_input=row[8],
        depth=row[9],
        incarnation=row[10],
    )
