"""Links: connections for the bodies of steps with a transaction, one form for each driver.

An `async def` body gets a connection of asyncpg, a `def` body one of psycopg 3. If the app was given an engine of
SQLAlchemy, either gets a session. Connections of the first two kinds are kept for the next body, which finds nothing of
the last one in them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Protocol

import asyncpg
from msgspec import Struct

from kagzi.api.transactions import BeginTransaction, is_async_engine
from kagzi.errors import MissingDependency, Unavailable
from kagzi.store.postgres.borrowed import Borrowed, borrow
from kagzi.store.postgres.connection import Connector, is_outage
from kagzi.store.postgres.pool import hang_up
from kagzi.store.sessions import has_ended, make_session

if TYPE_CHECKING:
    from kagzi.store.postgres.connection import Connection

_RESET_SECONDS: Final = 5
# As DISCARD ALL, but for prepared statements, of which the driver keeps a list.
_FORGET: Final = (
    "SET SESSION AUTHORIZATION DEFAULT; RESET ALL; CLOSE ALL; UNLISTEN *; SELECT pg_advisory_unlock_all(); "
    "DISCARD TEMP; DISCARD SEQUENCES"
)


class Link(Protocol):
    """A connection to the database, of one driver. If it is a blocking one nothing here suspends."""

    blocking: bool
    body: Any  # what the body gets

    async def open(self) -> Borrowed:
        """Begin a transaction."""
        ...

    async def flush(self) -> None:
        """Send what the driver has kept back."""
        ...

    async def commit(self) -> None: ...

    async def roll_back(self) -> None: ...

    def interrupt(self) -> None: ...


class Links:
    """Makes links to the database at this URL, and keeps what can be used again."""

    def __init__(self, url: str) -> None:
        self.connector = _BodyConnector(url, settings={})
        self._idle: list[_Idle] = []
        self._idle_psycopg: list[Any] = []

    def link(self, wanted: BeginTransaction) -> Link:
        if wanted.engine is not None:
            return _Session(wanted.engine)
        if wanted.blocking:
            return _Psycopg(self.connector, self._idle_psycopg, _psycopg_for(wanted.step), wanted.step)
        return _Asyncpg(self.connector, self._idle)

    async def close(self) -> None:
        idle, self._idle = self._idle, []
        for each in idle:
            await asyncio.wait((each.reset,))
            await hang_up(each.connection)
        for connection in self._idle_psycopg:
            _psycopg_for("").Connection.close(connection)
        self._idle_psycopg.clear()


class _Asyncpg:
    blocking = False

    def __init__(self, connector: Connector, idle: list[_Idle]) -> None:
        self._connector = connector
        self._idle = idle
        self._era = 0
        self.body: Any = None
        self._transaction: Any = None

    async def open(self) -> Borrowed:
        while self._idle:
            idle = self._idle.pop()
            self._era, connection = idle.era, idle.connection
            if connection.is_closed() or self._era != self._connector.era:
                connection.terminate()
                continue
            try:
                await idle.reset
                return await self._begin(connection)
            except BaseException as error:
                connection.terminate()
                if not isinstance(error, Exception) or not is_outage(error):
                    raise
                self._connector.doubt(self._era)  # the server was restarted while nobody looked
        self._era = self._connector.era
        return await self._begin(await self._connector.connect())

    async def _begin(self, connection: Connection) -> Borrowed:
        # A heartbeat writes to the run's row while the body runs: a stricter isolation would refuse the fence then.
        self._transaction = connection.transaction(isolation="read_committed")
        try:
            await self._transaction.start()
        except BaseException:
            connection.terminate()
            raise
        self.body = connection
        return await borrow(connection)

    async def flush(self) -> None: ...

    async def commit(self) -> None:
        await self._transaction.commit()
        self._give_back()

    async def roll_back(self) -> None:
        if self.body is None:
            return
        try:
            async with asyncio.timeout(5):
                await self._transaction.rollback()
                self._give_back()
        except BaseException as error:
            # A task of the body may still use it, or it is broken: the server rolls back what it hears no more of.
            self.body.terminate()
            if not isinstance(error, Exception):
                raise

    def _give_back(self) -> None:
        # Whatever the body has set, taken or made goes now, while nobody waits: a lock that it forgot would be held
        # until another step needs the connection.
        connection, self.body = self.body, None
        reset = asyncio.ensure_future(connection.reset(timeout=_RESET_SECONDS))
        reset.add_done_callback(_seen)
        self._idle.append(_Idle(self._era, connection, reset))

    def interrupt(self) -> None:
        """Does nothing here: the task of the body is cancelled, and asyncpg tells the server."""


class _Psycopg:
    blocking = True

    def __init__(self, connector: _BodyConnector, idle: list[Any], driver: Any, step: str) -> None:
        self._connector = connector
        self._idle = idle
        self._driver = driver
        self._step = step
        self.body: Any = None

    async def open(self) -> Borrowed:
        connection = None
        while self._idle and connection is None:
            connection = self._idle.pop()
            try:
                # Whatever the last body has set, taken or made: settings, roles, locks, tables.
                connection.autocommit = True
                connection.execute("DISCARD ALL")
                connection.autocommit = False
            except self._driver.Error:
                self._driver.Connection.close(connection)
                connection = None
        if connection is None:
            connection = self._connector.connect_blocking(self._driver)
        connection.step = self._step
        connection.row_factory = self._driver.rows.tuple_row
        connection.cursor_factory = self._driver.Cursor
        # As with asyncpg, whatever a database says: a heartbeat writes to the run's row while the body runs.
        connection.isolation_level = self._driver.IsolationLevel.READ_COMMITTED
        connection.read_only = connection.deferrable = None
        self.body = connection
        return await borrow(connection)

    async def flush(self) -> None: ...

    async def commit(self) -> None:
        self._driver.Connection.commit(self.body)
        self._idle.append(self.body)
        self.body = None

    async def roll_back(self) -> None:
        connection, self.body = self.body, None
        if connection is None:
            return
        try:
            self._driver.Connection.rollback(connection)
        except self._driver.Error:
            self._driver.Connection.close(connection)
        else:
            self._idle.append(connection)

    def interrupt(self) -> None:
        if self.body is not None:
            self.body.cancel()  # of any thread


class _Session:
    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._awaited = is_async_engine(engine)
        self.blocking = not self._awaited
        self.body: Any = None
        self.raw: Any = None
        self._transaction: Any = None

    async def open(self) -> Borrowed:
        connecting = self._engine.connect()
        self.raw = await connecting if self._awaited else connecting
        try:
            beginning = self.raw.begin()
            self._transaction = await beginning if self._awaited else beginning
            borrowed = await borrow(self.raw)
        except BaseException:
            await self._close(self.raw)
            raise
        self.body = make_session(self.raw, awaited=self._awaited)
        return borrowed

    async def flush(self) -> None:
        committed = self.body.commit()  # of its savepoint
        if self._awaited:
            await committed

    async def commit(self) -> None:
        committed = self._transaction.commit()
        if self._awaited:
            await committed
        await self._end()

    async def roll_back(self) -> None:
        if self.body is None:
            return
        try:
            back = self._transaction.rollback()
            if self._awaited:
                await back
        except Exception:
            gone = self.raw.invalidate()
            if self._awaited:
                await gone
        await self._end()

    async def _end(self) -> None:
        body, self.body = self.body, None
        await self._close(body)
        await self._close(self.raw)

    async def _close(self, what: Any) -> None:
        closed = what.close()
        if self._awaited:
            await closed

    def interrupt(self) -> None:
        raw: Any = None if self.raw is None or self._awaited else self.raw.connection.dbapi_connection
        if hasattr(raw, "cancel"):
            raw.cancel()


class _BodyConnection(asyncpg.Connection):
    """A connection of asyncpg that forgets all of its session when it is reset: what asyncpg itself would do leaves
    temporary tables, roles and the last values of sequences to the next body."""

    def get_reset_query(self) -> str:
        return _FORGET


class _Idle(Struct, frozen=True, eq=False):
    era: int
    connection: Connection
    reset: asyncio.Future[None]  # under way since the last body has ended; the next body waits for it


def _seen(reset: asyncio.Future[None]) -> None:
    """Takes note of a failed reset, so that asyncio does not log it: it is raised when the connection is taken next."""
    if not reset.cancelled():
        reset.exception()


@cache
def _step_connection(driver: Any) -> Any:
    class StepConnection(driver.Connection):  # type: ignore[misc]
        """A connection of psycopg whose transaction is ended by Kagzi alone: a commit of the body would keep what it
        wrote, and the step would run again."""

        step = ""

        def commit(self) -> None:
            raise has_ended(self.step)

        def rollback(self) -> None:
            raise has_ended(self.step)

        def close(self) -> None:
            raise has_ended(self.step)

        def __exit__(self, *_: object) -> None:
            """`with connection:` commits and closes elsewhere; here Kagzi does, when the step has returned."""

    return StepConnection


class _BodyConnector(Connector):
    """Makes connections as their driver does, without the settings of the store's own."""

    _connection_class = _BodyConnection

    async def _open_pooled(self, server: str, settings: Mapping[str, str]) -> Connection:
        del settings
        connection: Connection = await asyncpg.connect(
            server, timeout=self._connect_seconds, statement_cache_size=0, connection_class=_BodyConnection
        )
        return connection

    def connect_blocking(self, driver: Any) -> Any:
        """A connection of psycopg's. It prepares no statements, which a PgBouncer could not keep."""
        problem: Exception | None = None
        for server in self._servers:
            try:
                return _step_connection(driver).connect(
                    server,
                    prepare_threshold=None,
                    application_name="kagzi",
                    target_session_attrs="read-write",
                    connect_timeout=max(2, round(self._connect_seconds)),
                )
            except driver.OperationalError as error:
                problem = error
        raise Unavailable(f"cannot reach PostgreSQL at {self.where}: {problem}") from problem


def _psycopg_for(step: str) -> Any:
    try:
        return import_module("psycopg")
    except ImportError as error:
        raise MissingDependency(
            f"the step {step} is a `def` function with a transaction, which on PostgreSQL needs psycopg: "
            'pip install "psycopg[binary]", or make it `async def`, or give the app an engine of SQLAlchemy'
        ) from error
