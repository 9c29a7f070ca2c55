"""Applying migrations: all that are missing, in one transaction under a lock.

Any number of processes may start at once on an empty database: one of them migrates, the others wait for it. Indexes of
small tables are built in the transaction, too; those of large ones afterwards, beside the work (`online.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Final

import asyncpg

from kagzi.errors import InvalidRequest
from kagzi.store.migrate import RETENTION_DAYS, Applied, Migration, load_migrations, plan_migrations
from kagzi.store.postgres.statements import STATEMENTS

if TYPE_CHECKING:
    from kagzi.store.postgres.connection import Connection

# Building an index on a grown table takes its time, and so does waiting for another process that does.
SETTINGS = {
    "statement_timeout": "10min",
    "lock_timeout": "10min",
    "idle_in_transaction_session_timeout": "10min",
}
# Up to here an index is built in a few dozen milliseconds, for which writers may well wait.
SMALL_TABLE_ROWS: Final = 100_000


async def migrate(connection: Connection, retention_days: int = RETENTION_DAYS) -> None:
    known = known_migrations()
    # Usually there is nothing to do, and then there is nothing to lock.
    if await connection.fetchval(STATEMENTS["migrations_exist"]) and not await _missing(connection, known):
        return
    try:
        await _apply_missing(connection, known, retention_days)
    except asyncpg.InsufficientPrivilegeError:
        raise InvalidRequest(
            "the tables of Kagzi are missing or old, and our PostgreSQL role may not change them; run `kagzi migrate` "
            "with one that may, and grant this one what docs/security.md says"
        ) from None


async def _apply_missing(connection: Connection, known: tuple[Migration, ...], retention_days: int) -> None:
    async with connection.transaction():
        await connection.fetch(STATEMENTS["lock_migrations"])
        if not await connection.fetchval(STATEMENTS["schema_exists"]):
            await connection.execute(STATEMENTS["create_schema"])
        if not await connection.fetchval(STATEMENTS["migrations_exist"]):
            await connection.execute(STATEMENTS["create_migrations"])
        missing = await _missing(connection, known)
        if any(migration.online for migration in missing):
            await connection.execute(STATEMENTS["extend_migrations"])
        for migration in missing:
            if _says_something(migration.sql):
                await connection.execute(migration.sql)
            await connection.execute(
                STATEMENTS["record_migration"], migration.number, migration.name, migration.checksum
            )
            if migration.online and await _is_small(connection, migration):
                for statement in migration.online:
                    await connection.execute(statement.inline)
                await connection.execute(STATEMENTS["record_built"], migration.number)
        if missing and missing[0].number == 1 and retention_days != RETENTION_DAYS:
            await connection.execute(STATEMENTS["keep_default_namespace"], retention_days)


async def missing_migrations(connection: Connection) -> tuple[Migration, ...]:
    """Returns the migrations that this database lacks."""
    known = known_migrations()
    if not await connection.fetchval(STATEMENTS["migrations_exist"]):
        return known
    return await _missing(connection, known)


async def unbuilt_migrations(connection: Connection) -> list[Migration]:
    """Returns the applied migrations whose indexes are not all built yet, in order."""
    online = {migration.number: migration for migration in known_migrations() if migration.online}
    if not online or not await connection.fetchval(STATEMENTS["migrations_exist"]):
        return []
    applied = {row["number"] for row in await connection.fetch(STATEMENTS["list_migrations"])}
    numbers: Sequence[int] = [number for number in online if number in applied]
    if not numbers:
        return []  # and perhaps not even the columns that tell
    return [online[row["number"]] for row in await connection.fetch(STATEMENTS["list_unbuilt"], numbers)]


async def _is_small(connection: Connection, migration: Migration) -> bool:
    tables = [statement.table for statement in migration.online if statement.table is not None]
    rows: int | None = await connection.fetchval(STATEMENTS["count_rows"], tables)
    return rows is None or rows < SMALL_TABLE_ROWS


@cache
def known_migrations() -> tuple[Migration, ...]:
    return load_migrations("kagzi.store.postgres")


async def _missing(connection: Connection, known: tuple[Migration, ...]) -> tuple[Migration, ...]:
    rows = await connection.fetch(STATEMENTS["list_migrations"])
    return plan_migrations(known, [Applied(row["number"], row["name"], row["checksum"]) for row in rows])


def _says_something(sql: str) -> bool:
    """Returns whether a script is more than a comment, which asyncpg cannot execute."""
    return any(line and not line.startswith("--") for line in map(str.strip, sql.splitlines()))
