"""Starting a run in the caller's own transaction, on a connection of the driver they use.

The statements are those of every start, so such a run has everything that others have. They number their values as
asyncpg does (`$1`); for other drivers each becomes a named one. Nothing is committed here and nothing rolled back: the
run is there when the caller commits, and workers are told by the same commit.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import cache
from importlib import import_module
from typing import Any, Final, Protocol, cast

from kagzi.api.operations import Started, StartRun
from kagzi.core.instant import Instant
from kagzi.errors import InvalidRequest, KagziError
from kagzi.store.drivers import (
    driver_of,
    is_async,
    is_closed,
    not_in_transaction,
    other_database,
    sync_connection_of,
    unsupported,
)
from kagzi.store.migrate import PAGE_SECRET
from kagzi.store.postgres.starts import apply_starts
from kagzi.store.postgres.statements import STATEMENTS
from kagzi.store.postgres.wakeups import WORK, payloads

_IS_OURS: Final = STATEMENTS["is_our_database"]
_NOTIFY: Final = STATEMENTS["notify"]
_NUMBERED: Final = re.compile(r"\$(\d+)")
# What PostgreSQL says of a schema or a table that is not there, and what psycopg calls states of a connection.
_ABSENT: Final = ("42P01", "3F000")
_IDLE, _FAILED, _UNKNOWN = 0, 3, 4


class Borrowed(Protocol):
    """A connection as the statements of a store need it."""

    async def fetch(self, statement: str, *values: Any) -> Sequence[Mapping[str, Any]]: ...

    async def execute(self, statement: str, *values: Any) -> object: ...

    def transaction(self) -> AbstractAsyncContextManager[object]: ...


async def start_in(connection: object, start: StartRun, *, secret: bytes, now: Instant | None) -> Started:
    """Starts a run in the transaction of this connection. Suspends only if the connection is an async one."""
    borrowed = await borrow(connection)
    await check_database(borrowed, secret)
    (answer,) = (await apply_starts(cast("Any", borrowed), [start], now)).answers
    if isinstance(answer, Exception):
        raise answer
    assert isinstance(answer, Started)
    # Delivered at the caller's commit, and never if that does not come.
    (payload,) = payloads([(start.namespace, start.task_queue)])
    await borrowed.fetch(_NOTIFY, [WORK], [payload])
    return answer


async def borrow(connection: Any) -> Borrowed:
    """Returns the connection as statements need it; InvalidRequest if it is of no use, and nothing was sent on it."""
    match driver_of(connection):
        case "asyncpg":
            if connection.is_closed():
                raise is_closed()
            if not connection.is_in_transaction():
                raise not_in_transaction()
            return cast("Borrowed", connection)
        case "psycopg":
            _check_psycopg(connection)
            return _Psycopg(connection)
        case "sqlalchemy":
            return await _of_sqlalchemy(connection)
        case "django":
            return _of_django(connection)
        case "sqlite3":
            raise other_database()
        case _:
            raise unsupported(connection)


async def check_database(borrowed: Borrowed, secret: bytes) -> None:
    try:
        rows = await borrowed.fetch(_IS_OURS, PAGE_SECRET, secret)
    except KagziError:
        raise
    except Exception as error:
        cause = getattr(error, "orig", None) or error.__cause__ or error
        if getattr(error, "sqlstate", None) in _ABSENT or getattr(cause, "sqlstate", None) in _ABSENT:
            raise other_database() from error
        raise
    if not rows or not rows[0]["ours"]:
        raise other_database()


def _check_psycopg(connection: Any) -> None:
    if connection.closed:
        raise is_closed()
    state = int(connection.info.transaction_status)
    if state in (_FAILED, _UNKNOWN):
        raise InvalidRequest("the transaction of connection= has failed already; roll it back. Nothing was written")
    if connection.autocommit and state == _IDLE:
        raise not_in_transaction()


async def _of_sqlalchemy(connection: Any) -> Borrowed:
    """A Session or Connection, sync or async. Both begin a transaction by themselves, unless told otherwise."""
    awaited = is_async(connection)
    if hasattr(connection, "flush"):  # a Session
        held = await connection.connection() if awaited else connection.connection()
    elif hasattr(connection, "exec_driver_sql"):
        if connection.closed:
            raise is_closed()
        held = connection
    else:
        raise unsupported(connection)
    plain = sync_connection_of(held)
    if plain.dialect.name != "postgresql":
        raise other_database()
    raw = plain.connection.dbapi_connection
    if getattr(raw, "autocommit", False) is True:
        raise not_in_transaction()
    return _SqlAlchemy(held, awaited)


def _of_django(connection: Any) -> Borrowed:
    if getattr(connection, "vendor", None) is None:
        raise unsupported(connection)
    if connection.vendor != "postgresql":
        raise other_database()
    if not connection.in_atomic_block:
        raise not_in_transaction()
    return _Django(connection)


class _Plain:
    """A connection that is in a transaction of the caller's already."""

    async def execute(self, statement: str, *values: Any) -> object:
        return await self.fetch(statement, *values)

    async def fetch(self, statement: str, *values: Any) -> Sequence[Mapping[str, Any]]:
        raise NotImplementedError

    def transaction(self) -> AbstractAsyncContextManager[object]:
        return nullcontext()


class _Psycopg(_Plain):
    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._rows = import_module("psycopg.rows").dict_row
        self._awaited = is_async(connection)

    async def fetch(self, statement: str, *values: Any) -> Sequence[Mapping[str, Any]]:
        cursor = self._connection.cursor(row_factory=self._rows)
        asked = cursor.execute(_named(statement, "%({})s"), _by_name(values))
        if self._awaited:
            await asked
            return list(await cursor.fetchall()) if cursor.description is not None else []
        return list(cursor.fetchall()) if cursor.description is not None else []


class _SqlAlchemy(_Plain):
    def __init__(self, connection: Any, awaited: bool) -> None:
        self._connection = connection
        self._text = import_module("sqlalchemy").text
        self._awaited = awaited

    async def fetch(self, statement: str, *values: Any) -> Sequence[Mapping[str, Any]]:
        result = self._connection.execute(self._text(_named(statement, ":{}")), _by_name(values))
        if self._awaited:
            result = await result
        return list(result.mappings()) if result.returns_rows else []


class _Django(_Plain):
    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def fetch(self, statement: str, *values: Any) -> Sequence[Mapping[str, Any]]:
        try:
            cursor = self._connection.cursor()
        except Exception as error:
            if type(error).__name__ == "SynchronousOnlyOperation":
                raise InvalidRequest(
                    "Django's connection is for blocking code: use start_sync() with it. Nothing was written"
                ) from error
            raise
        with cursor:
            cursor.execute(_named(statement, "%({})s"), _by_name(values))
            if cursor.description is None:
                return []
            names = [column[0] for column in cursor.description]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def _by_name(values: Sequence[Any]) -> dict[str, Any]:
    return {f"p{number}": value for number, value in enumerate(values, 1)}


@cache
def _named(statement: str, form: str) -> str:
    """Returns the statement with named values. They are in brackets, because a cast follows, whose colons SQLAlchemy
    would take for another name."""
    if form.startswith("%"):
        statement = statement.replace("%", "%%")
    return _NUMBERED.sub(lambda found: f"({form.format('p' + found[1])})", statement)
