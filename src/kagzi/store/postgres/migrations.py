"""Applying migrations: all that are missing, in one transaction under a lock.

Any number of processes may start at once on an empty database: one of them migrates, the others wait for it.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

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
        for migration in missing:
            await connection.execute(migration.sql)
            await connection.execute(
                STATEMENTS["record_migration"], migration.number, migration.name, migration.checksum
            )
        if missing and missing[0].number == 1 and retention_days != RETENTION_DAYS:
            await connection.execute(STATEMENTS["keep_default_namespace"], retention_days)


async def missing_migrations(connection: Connection) -> tuple[Migration, ...]:
    """What this database lacks."""
    known = known_migrations()
    if not await connection.fetchval(STATEMENTS["migrations_exist"]):
        return known
    return await _missing(connection, known)


@cache
def known_migrations() -> tuple[Migration, ...]:
    return load_migrations("kagzi.store.postgres")


async def _missing(connection: Connection, known: tuple[Migration, ...]) -> tuple[Migration, ...]:
    rows = await connection.fetch(STATEMENTS["list_migrations"])
    return plan_migrations(known, [Applied(row["number"], row["name"], row["checksum"]) for row in rows])
