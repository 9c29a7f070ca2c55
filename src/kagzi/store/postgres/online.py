"""Builds the indexes of migrations on tables that have grown, while rows are written.

A plain CREATE INDEX keeps writers out until it has read the table, a minute for ten million rows. So indexes that a
migration names in its `.online.sql` are built beside the work, by whichever process comes first:

    applied ──lease──▶ building ──▶ built          (kagzi.migrations: building_until, built_at)
       ▲                  │
       └── lease ran out ─┘  a build that was interrupted leaves an invalid index, which is dropped first

Until then the store works without them, and what cannot do without answers Unavailable (`IndexBuilds.check`).

Should a lease run out while its build goes on (the process died, PostgreSQL did not notice), the next one sees that
somebody is at work on the table and waits. Two builds of one index could not harm each other anyway: PostgreSQL lets
one into a table at a time, and the second finds the index there.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final, TypeGuard

import asyncpg

from kagzi.errors import InvalidRequest, KagziError, SchemaMismatch, Unavailable
from kagzi.store.migrate import IndexStatement, Migration
from kagzi.store.postgres.connection import Connector, logger, translate
from kagzi.store.postgres.migrations import unbuilt_migrations
from kagzi.store.postgres.pool import Pool, hang_up
from kagzi.store.postgres.pooled import PooledConnection
from kagzi.store.postgres.statements import STATEMENTS

if TYPE_CHECKING:
    from kagzi.store.postgres.connection import Connection

LEASE_SECONDS: Final = 60
_RENEW_SECONDS: Final = 20.0
# How often a process looks whether another one has built them. The first look comes after as long, too: a command that
# is over in a moment should not begin what takes minutes.
LOOK_SECONDS: Final = 5.0
_LONGEST_PAUSE: Final = 600.0  # between tries that fail
# A build is no longer shown as under way a moment before it commits that its index is valid. Who looks in between takes
# it for one that was left half built: so nothing is dropped that has not been found like that twice, this far apart.
_SECONDS_TO_COMMIT: Final = 0.5


def not_built(*indexes: str) -> Unavailable:
    """Makes the error for a request that needs these indexes, which are missing."""
    return Unavailable(
        f"this needs indexes that are being built: {', '.join(indexes)}. Try again when they are there; "
        "`kagzi migrate` waits for them"
    )


class IndexBuilds:
    """The indexes that this database still lacks, and the building of them."""

    def __init__(self, connector: Connector, pool: Pool) -> None:
        self._connector = connector
        self._pool = pool
        self._unbuilt: Sequence[Migration] = ()
        self._task: asyncio.Task[None] | None = None

    @property
    def missing(self) -> tuple[str, ...]:
        """The names of the indexes that were missing at the last look."""
        return names_of(self._unbuilt)

    def check(self, *indexes: str) -> None:
        """Raises Unavailable if one of these indexes is not built yet."""
        if self._unbuilt and (wanted := set(self.missing).intersection(indexes)):
            raise not_built(*sorted(wanted))

    async def read(self, connection: Connection) -> None:
        """Looks for what is missing, with the connection that has migrated."""
        self._unbuilt = await unbuilt_migrations(connection)

    def start(self) -> None:
        """Builds what is missing, in the background."""
        if self._unbuilt and self._task is None:
            logger.info("indexes are missing and will be built while the work goes on: %s", ", ".join(self.missing))
            self._task = asyncio.get_running_loop().create_task(self._keep_building(), name="kagzi-indexes")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def finish(self) -> None:
        """Returns when all are built, here or by another process."""
        while await self._look():
            if not await self._build_first():
                await asyncio.sleep(LOOK_SECONDS)

    async def _keep_building(self) -> None:
        pause = LOOK_SECONDS
        while self._unbuilt:
            await asyncio.sleep(pause)
            try:
                await self.finish()
            except InvalidRequest as error:
                # Somebody with more rights has to: until then there is nothing to be done but to look.
                if pause == LOOK_SECONDS:
                    logger.warning("indexes are missing and cannot be built by this process: %s", error)
                pause = min(pause * 2, 60.0)
            except Exception as error:
                logger.error("building indexes failed, and is tried again: %s", error, exc_info=True)
                pause = min(pause * 2, _LONGEST_PAUSE)

    async def _look(self) -> bool:
        """Says whether some are missing."""
        self._unbuilt = await self._pool.run(unbuilt_migrations)
        return bool(self._unbuilt)

    async def _build_first(self) -> bool:
        """Builds those of the first migration that lacks some; False if another process does."""
        migration = self._unbuilt[0]
        try:
            leased = await self._pool.run(
                lambda connection: connection.fetchval(STATEMENTS["lease_building"], migration.number, LEASE_SECONDS)
            )
        except InvalidRequest:
            raise _no_rights() from None
        if leased is None:
            return False
        async with self._lease(migration.number):
            await self._build(migration)
        return True

    @contextlib.asynccontextmanager
    async def _lease(self, number: int) -> AsyncIterator[None]:
        renewing = asyncio.get_running_loop().create_task(self._renew(number))
        try:
            yield
        except BaseException:
            # Should this fail, too, the lease runs out.
            with contextlib.suppress(KagziError):
                await self._pool.run(lambda connection: connection.execute(STATEMENTS["release_building"], number))
            raise
        finally:
            renewing.cancel()

    async def _renew(self, number: int) -> None:
        while True:
            await asyncio.sleep(_RENEW_SECONDS)
            # One that cannot be renewed in time costs nothing but another process that looks on.
            with contextlib.suppress(KagziError):
                await self._pool.run(
                    lambda connection: connection.execute(STATEMENTS["renew_building"], number, LEASE_SECONDS)
                )

    async def _build(self, migration: Migration) -> None:
        connection = await self._connector.connect()
        try:
            await _give_time(connection)
            for statement in migration.online:
                await _run(connection, statement)
            await connection.execute(STATEMENTS["record_built"], migration.number)
        except asyncpg.InsufficientPrivilegeError:
            raise _no_rights() from None
        except KagziError:
            raise
        except Exception as error:
            raise translate(error) from None
        finally:
            await hang_up(connection)


def names_of(migrations: Sequence[Migration]) -> tuple[str, ...]:
    """Returns the names of the indexes that these migrations build."""
    return tuple(
        statement.index for migration in migrations for statement in migration.online if statement.table is not None
    )


async def _give_time(connection: Connection) -> None:
    if not _is_pooled(connection):
        await connection.execute("SET statement_timeout = 0; SET lock_timeout = 0")
    elif await connection.fetchval(STATEMENTS["longest_statement"]):
        # A pooler has no sessions in which more time could be asked for.
        raise InvalidRequest(
            "behind a connection pooler statements are interrupted before an index is built (statement_timeout); run "
            "`kagzi migrate` with an address that leads to PostgreSQL itself"
        )


def _is_pooled(connection: Connection) -> TypeGuard[PooledConnection]:
    # For asyncpg every connection is an instance of every class of connections.
    return type(connection) is PooledConnection


async def _run(connection: Connection, statement: IndexStatement) -> None:
    # Not in a transaction, which is what a pooled connection would make of it.
    send = connection.command if _is_pooled(connection) else connection.execute
    if statement.table is None:
        await send(statement.sql)
        return
    left = False
    # Looked at again after each of these: "IF NOT EXISTS" is content with the invalid one of another process, too.
    while (found := await connection.fetchrow(STATEMENTS["find_index"], statement.index)) is None or not found["valid"]:
        if found is None:
            await _create(send, statement)
        elif found["busy"]:
            left = False
            await asyncio.sleep(LOOK_SECONDS)
        elif not left:
            left = True
            await asyncio.sleep(_SECONDS_TO_COMMIT)
        else:
            logger.info("dropping index %s, which was left half built", statement.index)
            await send(f"DROP INDEX CONCURRENTLY IF EXISTS kagzi.{statement.index}")


async def _create(send: Callable[[str], Awaitable[object]], statement: IndexStatement) -> None:
    time = asyncio.get_running_loop().time
    began = time()
    logger.info("building index %s of %s; runs go on meanwhile", statement.index, statement.table)
    try:
        await send(statement.sql)
    except asyncpg.UniqueViolationError:
        raise SchemaMismatch(
            f"index {statement.index} cannot be built: table {statement.table} has rows that must not be there twice"
        ) from None
    logger.info("built index %s in %.1f s", statement.index, time() - began)


def _no_rights() -> InvalidRequest:
    return InvalidRequest("our PostgreSQL role may not build indexes; run `kagzi migrate` with one that may")
