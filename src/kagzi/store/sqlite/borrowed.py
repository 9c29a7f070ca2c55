"""Starting a run in the caller's own transaction, on their connection to the app's own file.

While that transaction lasts, nobody else can write to the file, Kagzi included: it should be short.
"""

from __future__ import annotations

import os
import sqlite3
from typing import Any

from kagzi.api.operations import Answer, Started, StartRun
from kagzi.core.instant import Instant
from kagzi.errors import InvalidRequest
from kagzi.store.drivers import driver_of, is_closed, not_in_transaction, other_database, unsupported
from kagzi.store.sqlite.starts import start_runs


def start_in(connection: object, start: StartRun, *, path: str | None, now: Instant) -> Started:
    raw = _borrow(connection)
    factory, raw.row_factory = raw.row_factory, None  # our statements read tuples
    answers: list[Answer] = [Started(run_id=start.run_id)]
    try:
        check_file(raw, path)
        start_runs(raw, [(0, start)], answers, now)
    finally:
        raw.row_factory = factory
    (answer,) = answers
    if isinstance(answer, Exception):
        raise answer
    assert isinstance(answer, Started)
    return answer


def _borrow(connection: Any) -> sqlite3.Connection:
    driver = driver_of(connection)
    if driver == "sqlalchemy":
        if hasattr(connection, "sync_session") or hasattr(connection, "sync_connection"):
            raise InvalidRequest(
                "an async SQLAlchemy connection to SQLite is on a thread of its own; use a sync one with connection=. "
                "Nothing was written"
            )
        held = connection.connection() if hasattr(connection, "flush") else connection
        if held.closed:
            raise is_closed()
        connection = held.connection.dbapi_connection
    elif driver == "django":
        if getattr(connection, "vendor", None) == "sqlite" and not connection.in_atomic_block:
            raise not_in_transaction()
        connection = connection.connection
    elif driver in ("asyncpg", "psycopg"):
        raise other_database()
    if not isinstance(connection, sqlite3.Connection):
        raise other_database() if driver in ("sqlalchemy", "django") else unsupported(connection)
    try:
        in_transaction = connection.in_transaction
        autocommits = connection.isolation_level is None if getattr(connection, "autocommit", -1) == -1 else False
        autocommits = autocommits or getattr(connection, "autocommit", None) is True
    except sqlite3.ProgrammingError:
        raise is_closed() from None
    if autocommits and not in_transaction:
        raise not_in_transaction()
    return connection


def check_file(connection: sqlite3.Connection, path: str | None) -> None:
    try:
        files = connection.execute("PRAGMA database_list").fetchall()
    except sqlite3.ProgrammingError as error:
        if "closed" in str(error):
            raise is_closed() from None
        raise InvalidRequest(f"connection= cannot be used here: {error}. Nothing was written") from None
    main = next((file for _, name, file in files if name == "main"), "")
    if path is None or not main or not os.path.exists(main) or not os.path.samefile(main, path):
        raise other_database()
