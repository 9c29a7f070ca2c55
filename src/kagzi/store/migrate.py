"""Reads numbered migrations, and decides which ones a database still needs.

Migrations are `migrations/0001_initial.sql` and on, beside each store. They go forward only and are never
edited once released: the database remembers the checksum of each one it has applied, and a difference is
refused rather than guessed at. Applying them, in one transaction under a lock, is the store's part, because
locks differ.

Indexes on tables that may have grown are in a file of their own, `0008_search.online.sql` beside `0008_search.sql`:
statements that PostgreSQL can run while rows are written, outside of a transaction (`postgres/online.py`). SQLite
builds its indexes in the migration itself.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from importlib.resources import files
from typing import Final

from msgspec import Struct

from kagzi.errors import SchemaMismatch

RETENTION_DAYS = 30  # what the first migration gives the namespace `default`
PAGE_SECRET = "page tokens"  # the name of what these are signed with, among the database's secrets
_FILE_NAME = re.compile(r"^(\d{4})_([a-z0-9_]+)\.sql$")
_ONLINE: Final = ".online.sql"
_BUILD = re.compile(r"CREATE (?:UNIQUE )?INDEX CONCURRENTLY IF NOT EXISTS (\w+)\s+ON kagzi\.(\w+)\b")
_DROP = re.compile(r"DROP INDEX CONCURRENTLY IF EXISTS kagzi\.(\w+)$")


class IndexStatement(Struct, frozen=True):
    """Builds an index of a table, or drops one (`table` is None), while rows are written."""

    index: str
    table: str | None
    sql: str

    @property
    def inline(self) -> str:
        """Returns the statement for use in a transaction, which keeps writers out until its end."""
        return self.sql.replace(" CONCURRENTLY", "", 1)


class Migration(Struct, frozen=True):
    number: int
    name: str
    checksum: str
    sql: str
    online: tuple[IndexStatement, ...] = ()


class Applied(Struct, frozen=True):
    """What a database says about a migration it has."""

    number: int
    name: str
    checksum: str


def load_migrations(package: str) -> tuple[Migration, ...]:
    """Returns the migrations in the `migrations` folder of a package, in order, numbered from 1 without gaps."""
    folder = files(package).joinpath("migrations")
    texts = {entry.name: entry.read_text(encoding="utf-8") for entry in folder.iterdir() if entry.name.endswith(".sql")}
    online = {name: texts.pop(name) for name in list(texts) if name.endswith(_ONLINE)}
    found = [parse_migration(name, text, online.pop(name[:-4] + _ONLINE, None)) for name, text in texts.items()]
    found.sort(key=lambda migration: migration.number)
    if [migration.number for migration in found] != list(range(1, len(found) + 1)):
        raise ValueError(f"migrations of {package} are not numbered from 0001 without gaps")
    if online:
        raise ValueError(f"{min(online)} of {package} has no migration beside it")
    return tuple(found)


def parse_migration(file_name: str, text: str, online: str | None = None) -> Migration:
    match = _FILE_NAME.match(file_name)
    if match is None:
        raise ValueError(f"{file_name} is not named like 0001_initial.sql")
    # A checkout may have changed the ends of lines; that is not a change of the migration.
    text = text.replace("\r\n", "\n")
    checked = text
    statements: tuple[IndexStatement, ...] = ()
    if online is not None:
        online = online.replace("\r\n", "\n")
        checked += online
        statements = tuple(_index_statements(online, file_name[:-4] + _ONLINE))
    return Migration(int(match[1]), match[2], hashlib.sha256(checked.encode()).hexdigest(), text, statements)


def _index_statements(text: str, file_name: str) -> Iterator[IndexStatement]:
    lines = [line for line in text.splitlines() if not line.startswith("--")]
    for sql in filter(None, map(str.strip, "\n".join(lines).split(";"))):
        if built := _BUILD.match(sql):
            yield IndexStatement(built[1], built[2], sql)
        elif dropped := _DROP.match(sql):
            yield IndexStatement(dropped[1], None, sql)
        else:
            raise ValueError(
                f"{file_name}: a statement is neither CREATE [UNIQUE] INDEX CONCURRENTLY IF NOT EXISTS name ON "
                f"kagzi.table … nor DROP INDEX CONCURRENTLY IF EXISTS kagzi.name: {sql.partition(chr(10))[0]}"
            )


def plan_migrations(known: Sequence[Migration], applied: Iterable[Applied]) -> tuple[Migration, ...]:
    """Returns the migrations that this database lacks, in order; SchemaMismatch if those it has are not the ones that
    this version knows."""
    present = {entry.number: entry for entry in applied}
    newest = max(present, default=0)
    if newest > len(known):
        raise SchemaMismatch(
            f"the database is at migration {newest:04} ({present[newest].name}), this version of Kagzi knows "
            f"only {len(known):04}: a newer version has migrated it. Upgrade Kagzi in this process"
        )
    for migration in known[:newest]:
        entry = present.get(migration.number)
        if entry is None:
            raise SchemaMismatch(
                f"the database has migration {newest:04} but lacks {migration.number:04} ({migration.name}): "
                "its schema was changed by hand. Restore it from a backup or use another database"
            )
        if entry.checksum != migration.checksum:
            raise SchemaMismatch(
                f"migration {migration.number:04} ({entry.name}) of the database has another content than "
                f"{migration.name} of this version of Kagzi. Use the version that created the database"
            )
    return tuple(known[newest:])


def check_secret(value: bytes | None, name: str) -> bytes:
    """Checks that a secret is there, which it is unless somebody has deleted it."""
    if not value:
        raise SchemaMismatch(
            f"the secret {name!r} of the database is missing: it was deleted by hand. Put 32 random bytes under this "
            "name into the table `secrets`"
        )
    return value
