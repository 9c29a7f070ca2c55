"""Brings a database up to date: the first process to come migrates, in one transaction; the others find it done."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Final

from kagzi.errors import MissingDependency
from kagzi.store.migrate import RETENTION_DAYS, Applied, Migration, load_migrations, plan_migrations
from kagzi.store.sqlite.errors import translate

OLDEST_SQLITE: Final = (3, 35, 0)  # UPDATE … FROM, RETURNING
_STRICT_SINCE: Final = (3, 37, 0)

# Migrating takes 20 ms, copying the result one; suites of tests open a database in memory for each of their tests.
_originals: Final[list[sqlite3.Connection]] = []
_copying: Final = threading.Lock()


def migrate(
    connection: sqlite3.Connection,
    begin: Callable[[sqlite3.Connection], None],
    retention_days: int = RETENTION_DAYS,
) -> None:
    check_version(sqlite3.sqlite_version_info)
    known = _known()
    # Looking first spares a database that is up to date the write lock.
    if not plan_migrations(known, _applied(connection)):
        return
    begin(connection)
    try:
        connection.execute(
            "CREATE TABLE IF NOT EXISTS schema_migrations (number INTEGER PRIMARY KEY, name TEXT NOT NULL,"
            " checksum TEXT NOT NULL, applied_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP)"
        )
        missing = plan_migrations(known, _applied(connection))
        for migration in missing:
            for statement in _statements(migration.sql):
                connection.execute(statement)
            connection.execute(
                "INSERT INTO schema_migrations (number, name, checksum) VALUES (?, ?, ?)",
                (migration.number, migration.name, migration.checksum),
            )
        if missing and missing[0].number == 1 and retention_days != RETENTION_DAYS:
            connection.execute(
                "UPDATE namespaces SET retention_days = ? WHERE namespace = 'default'", (retention_days,)
            )
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def migrate_in_memory(
    connection: sqlite3.Connection,
    begin: Callable[[sqlite3.Connection], None],
    retention_days: int = RETENTION_DAYS,
) -> None:
    """Makes a new database in memory a copy of one that this process has migrated before, with a secret of its own."""
    with _copying:
        if not _originals:
            original = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
            migrate(original, begin)
            _originals.append(original)
        _originals[0].backup(connection)
    connection.execute("UPDATE secrets SET value = randomblob(32)")
    connection.execute("UPDATE namespaces SET retention_days = ?", (retention_days,))


def check_version(version: tuple[int, ...]) -> None:
    if version < OLDEST_SQLITE:
        raise MissingDependency(
            f"this Python comes with SQLite {'.'.join(map(str, version))}; Kagzi needs 3.35 or newer. "
            "Use a newer Python or system, or a PostgreSQL database (postgresql://…)"
        )


def missing_migrations(path: str | None) -> tuple[Migration, ...]:
    """Returns the migrations that a database lacks, without touching it."""
    if path is None or not Path(path).exists():
        return _known()
    try:
        with closing(sqlite3.connect(f"{Path(path).absolute().as_uri()}?mode=ro", uri=True)) as connection:
            return plan_migrations(_known(), _applied(connection))
    except sqlite3.Error as error:
        raise translate(error, path) from error


def known_migrations() -> tuple[Migration, ...]:
    return _known()


@cache
def _known() -> tuple[Migration, ...]:
    known = load_migrations("kagzi.store.sqlite")
    assert not any(migration.online for migration in known), "SQLite builds indexes in the migration itself"
    return known


def _applied(connection: sqlite3.Connection) -> list[Applied]:
    exists = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'schema_migrations'").fetchone()
    if exists is None:
        return []
    return [Applied(*row) for row in connection.execute("SELECT number, name, checksum FROM schema_migrations")]


def _statements(script: str) -> Iterator[str]:
    """Yields the statements of a script one by one: executescript() would commit before it begins."""
    if sqlite3.sqlite_version_info < _STRICT_SINCE:
        script = script.replace(") STRICT, WITHOUT ROWID;", ") WITHOUT ROWID;").replace(") STRICT;", ");")
    pending = ""
    for line in script.splitlines(keepends=True):
        pending += line
        if sqlite3.complete_statement(pending):
            yield pending
            pending = ""
    if pending.strip():
        yield pending
