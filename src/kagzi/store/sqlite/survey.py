"""How much there is of everything."""

from __future__ import annotations

import sqlite3

from kagzi.core.instant import Instant
from kagzi.store.protocol import MOST_SURVEYED, Survey
from kagzi.store.sqlite.statements import SQL


def survey(connection: sqlite3.Connection, now: Instant) -> Survey:
    row = connection.execute(SQL["survey"], (now, MOST_SURVEYED)).fetchone()
    pending, sleeping, oldest_due_at, running, online, draining, schema = row
    return Survey(
        now=now,
        pending=pending or 0,
        sleeping=sleeping or 0,
        running=running,
        oldest_due_at=oldest_due_at,
        workers_online=online,
        workers_draining=draining,
        schema=schema,
    )
