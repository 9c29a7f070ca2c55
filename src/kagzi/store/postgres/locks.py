"""Rows that somebody has locked: writing the others of a batch, waiting for them apart, and telling who holds them.

The connections that many share wait for a lock for `SHARED_MILLISECONDS`. After that, the batch that met it is cut in
halves, each tried for `_SIFTING_MILLISECONDS`, until what is locked is alone. A lock of a whole table is another thing.
All wait for it, so nothing is cut, and the batch is repeated.

Which rows are free cannot be asked beforehand. A start waits for an id that another transaction has inserted and not
committed, so there is no row yet; an end waits for the row of a parent.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import asyncpg

from kagzi.api.operations import Write
from kagzi.core.duration import format_span
from kagzi.core.instant import SECOND
from kagzi.errors import InvalidRequest, Locked
from kagzi.store.postgres.connection import BAD_VALUES, translate
from kagzi.store.postgres.pooled import PooledConnection
from kagzi.store.postgres.statements import STATEMENTS
from kagzi.store.protocol.changes import Applied
from kagzi.store.protocol.overview import Blocker

if TYPE_CHECKING:
    from kagzi.store.postgres.connection import Connection
    from kagzi.store.postgres.pool import Pool

R = TypeVar("R")
Run = Callable[[Sequence[Any]], Awaitable[Applied]]

SHARED_MILLISECONDS: Final = 50
PATIENT_MILLISECONDS: Final = 500
_SIFTING_MILLISECONDS: Final = 4
_MOST_SIFTED: Final = 50  # locks met in one batch; what has not been tried by then waits apart with the others
_LOOK_AFTER: Final = 0.2  # seconds of waiting, after which it is asked for whom
_LONG_FOR_OURS: Final = 5.0  # seconds; transactions of ours wait for one another all the time
_FIND_HOLDER: Final = STATEMENTS["find_holder"]
_FIND_TABLE_LOCK: Final = STATEMENTS["find_table_lock"]


async def apply_apart(run: Run, writes: Sequence[Any], reason: Exception) -> Applied:
    """Applies writes of which some cannot be applied, by halves, so that these fail alone. Nothing of a run is applied
    after a write that was not: its chunks stay in order."""
    if len(writes) == 1:
        return Applied([reason], [])
    middle = len(writes) // 2
    applied = await _attempt(run, writes[:middle])
    refused = {
        _key(write): answer
        for write, answer in zip(writes[:middle], applied.answers, strict=True)
        if isinstance(answer, InvalidRequest | Locked)
    }
    rest = [write for write in writes[middle:] if _key(write) not in refused] if refused else writes[middle:]
    later = await _attempt(run, rest) if rest else Applied([], [])
    answers = iter(later.answers)
    applied.answers.extend(refused.get(_key(write)) or next(answers) for write in writes[middle:])
    applied.woken.extend(later.woken)
    return applied


async def _attempt(run: Run, writes: Sequence[Any]) -> Applied:
    try:
        return await run(writes)
    except (InvalidRequest, Locked) as error:
        return await apply_apart(run, writes, error)


def _key(write: Write) -> tuple[str, str]:
    return write.namespace, write.run_id


async def sift(connection: Connection, apply: Run, writes: Sequence[Any], reason: Locked) -> Applied:
    """Applies those of a batch that met a lock which need not wait for it; the others are answered with `Locked`.
    Raises `Locked` if it is a lock of a whole table."""
    row = await connection.fetchrow(_FIND_TABLE_LOCK)
    if row is not None:
        raise Locked(_held(row, "everything waits for a lock"))
    met = 0

    async def run(some: Sequence[Any]) -> Applied:
        nonlocal met
        if met >= _MOST_SIFTED:
            return Applied([reason] * len(some), [])
        try:
            return await apply(some)
        except (asyncpg.LockNotAvailableError, *BAD_VALUES) as error:
            met += isinstance(error, asyncpg.LockNotAvailableError)
            raise translate(error) from None

    async with _waiting_for(connection, _SIFTING_MILLISECONDS):
        return await apply_apart(run, writes, reason)


async def patiently(pool: Pool, work: Callable[[Connection], Awaitable[R]]) -> R:
    """Does work on a connection of the pool that waits for locks; `Locked` says who holds them."""
    holders: list[asyncpg.Record | None] = []

    async def ask(waiting: Connection) -> None:
        await asyncio.sleep(_LOOK_AFTER)
        holders.append(await pool.run(lambda connection: find_holder(connection, waiting)))

    async def wait(connection: Connection) -> R:
        asking = asyncio.create_task(ask(connection))
        try:
            async with _waiting_for(connection, PATIENT_MILLISECONDS):
                return await work(connection)
        except asyncpg.LockNotAvailableError:
            await asyncio.wait([asking], timeout=_LOOK_AFTER)
            holder = holders[0] if holders else None
            if holder is None:
                raise Locked("what it needs was locked by several transactions, one after the other") from None
            raise Locked(_held(holder, "what it needs is locked")) from None
        finally:
            asking.cancel()
            asking.add_done_callback(lambda task: task.cancelled() or task.exception())

    return await pool.run(wait)


async def find_holder(connection: Connection, waiting: Connection | None = None) -> asyncpg.Record | None:
    """Finds who holds up this connection, or any of ours. Behind a pooler its session is not known."""
    pid = None if waiting is None or _is_pooled(waiting) else waiting.get_server_pid()
    return await connection.fetchrow(_FIND_HOLDER, pid)


async def find_blocker(connection: Connection) -> Blocker | None:
    """Finds who holds up transactions of ours: a whole table, or rows that one of them waits for right now."""
    row = await connection.fetchrow(_FIND_TABLE_LOCK)
    if row is not None:
        return Blocker(now=row["now"], who=describe(row), everything=True)
    row = await find_holder(connection)
    if row is None or (row["application"] == "kagzi" and (row["seconds"] or 0.0) < _LONG_FOR_OURS):
        return None
    return Blocker(now=row["now"], who=describe(row), everything=False)


@asynccontextmanager
async def _waiting_for(connection: Connection, milliseconds: int) -> AsyncIterator[None]:
    """Has the statements in this block wait for locks for so long."""
    if _is_pooled(connection):
        with cast("PooledConnection", connection).treated(lock_timeout=f"{milliseconds}ms"):
            yield
        return
    await connection.execute(f"SET lock_timeout = {milliseconds}")
    try:
        yield
    finally:
        if not connection.is_closed():
            await connection.execute("RESET lock_timeout")


def _is_pooled(connection: Connection) -> bool:
    return issubclass(type(connection), PooledConnection)  # asyncpg has isinstance() say yes of any connection


def _held(row: asyncpg.Record, what: str) -> str:
    return f"{what} by {describe(row)}. Trying again is safe"


def describe(row: asyncpg.Record) -> str:
    """Names who holds a lock, as `find_holder` and `find_table_lock` find it."""
    if not row["pid"]:
        return "a prepared transaction (see pg_prepared_xacts)"
    known = [f"application {row['application']}" if row["application"] else "an application without a name"]
    if row["seconds"] is not None:
        known.append(f"in its transaction for {format_span(round(row['seconds'] * SECOND))}")
    if row["state"]:
        known.append(row["state"])
    table = f", which has all of table {row['relation']}" if row["relation"] else ""
    return f"PostgreSQL process {row['pid']} ({', '.join(known)}){table}"
