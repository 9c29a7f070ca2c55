"""Makes connections, and tells an outage from a mistake.

Every connection is made alike. It allows writes (after a failover the old primary answers, but read-only),
gives up on statements and locks that hang, and plans for the way our statements are written: each reaches
rows by an index, starting from a few arrays. The planner would not know. On a table that has just been
created it expects a handful of rows and prefers reading all of them; the plan is kept, the table grows, and
every batch reads the whole of it. So only index scans and nested loops are left to it, and where a set is
looked up in another one, the statement says so with a hashed subquery instead of a join.

Behind a PgBouncer in transaction mode there are no sessions to which settings could belong; `pooled.py` is about
that. It is found out, unless the URL says so: a PgBouncer refuses our settings, or it was told to ignore them, and
then the session that answers is not the one that greeted us.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import asyncpg
from asyncpg.connect_utils import SessionAttribute

from kagzi.errors import InvalidRequest, KagziError, Locked, SchemaMismatch, Unavailable
from kagzi.store.postgres.address import read_address
from kagzi.store.postgres.arrays import AskingOnce, ask_quickly
from kagzi.store.postgres.pooled import PooledConnection

if TYPE_CHECKING:
    from typing import TypeAlias

    Connection: TypeAlias = asyncpg.Connection[asyncpg.Record]

logger = logging.getLogger("kagzi.store.postgres")

OLDEST_VERSION = 14
STATEMENT_CACHE_SIZE = 100
# Of several servers the next one is asked when the one before has not answered for this long.
_HEAD_START_SECONDS = 0.3
# A peer that has gone without a word: noticed after this long by whoever sends, and a little later by whoever waits.
_PEER_SECONDS: Final = 6

_NAME: Final = {"application_name": "kagzi"}
_SETTINGS: Final = {
    # What waited for a row looks at it again as it is then. A database may be set to something stricter.
    "default_transaction_isolation": "read committed",
    # A row held by a stuck transaction is hidden from those that skip locked rows; nobody may hold one long.
    "statement_timeout": "10s",
    "lock_timeout": "1s",
    "idle_in_transaction_session_timeout": "10s",
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
}

# Errors that say something of the server's state, not of our statement: connections (08), resources (53),
# operators and timeouts (57), locks (55P03), a primary turned replica (25006), a transaction cut off (25P03).
_OUTAGES = (
    asyncpg.PostgresConnectionError,
    asyncpg.InsufficientResourcesError,
    asyncpg.OperatorInterventionError,
    asyncpg.LockNotAvailableError,
    asyncpg.ReadOnlySQLTransactionError,
    asyncpg.IdleInTransactionSessionTimeoutError,
    asyncpg.InternalClientError,
    OSError,
    TimeoutError,
)
# The database undid the transaction to let another one pass: the same again will do.
COLLISIONS = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError)
# A value that cannot be stored, seen by the driver or by the database.
BAD_VALUES = (
    asyncpg.DataError,
    asyncpg.exceptions.DataError,
    asyncpg.IntegrityConstraintViolationError,
    asyncpg.ProgramLimitExceededError,  # a key that is longer than an index takes
    UnicodeEncodeError,
)
_REFUSALS = (
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
    asyncpg.ClientConfigurationError,
)
# PgBouncer's words, which are not translated. PostgreSQL itself has others for a setting it does not know.
_REFUSED_SETTING: Final = "unsupported startup parameter"


class Connector:
    """Knows where the database is and what a connection to it needs.

    `era` changes when a connection turned out to lead nowhere. Those made before are then not trusted either: after a
    failover each of them would have to find out for itself, which takes seconds if the old server does not even refuse.
    """

    _connection_class: type[asyncpg.Connection[asyncpg.Record]] = AskingOnce

    def __init__(
        self,
        url: str,
        *,
        statement_cache_size: int = STATEMENT_CACHE_SIZE,
        settings: Mapping[str, str] = _SETTINGS,
        pooled: bool | None = None,
    ) -> None:
        ask_quickly()
        address = read_address(url)
        self.where = address.where
        self.pooled = address.pooled if pooled is None else pooled
        self.era = 0
        self._full_at: float | None = None
        self._servers = address.servers
        self._connect_seconds = address.connect_seconds
        self._may_look = self.pooled is None
        self._settings = settings
        self._statement_cache_size = statement_cache_size

    @classmethod
    def for_listening(cls, url: str) -> Connector:
        """Makes a connector to where notifications can be heard. An address that is given for this is believed: a
        pooler in session mode will do, and that takes no settings."""
        return cls(url, settings={}, pooled=False)

    @property
    def servers(self) -> tuple[str, ...]:
        """A URL for each server, the one that was used last first."""
        return self._servers

    def go_over_to(self, server: str) -> None:
        """Has all connections made anew, to this server if it takes writes."""
        self._prefer(server)
        self.era += 1

    def full_for(self) -> float | None:
        """Returns for how many seconds the disk of the database has not been known to be full; None if it never was."""
        return None if self._full_at is None else asyncio.get_running_loop().time() - self._full_at

    def heed(self, error: Exception) -> None:
        """Notes what an error of a statement says of the server."""
        if isinstance(error, asyncpg.DiskFullError):
            self._full_at = asyncio.get_running_loop().time()

    def doubt(self, era: int) -> None:
        """Notes that a connection made in this era is broken."""
        if era == self.era:
            self.era += 1

    async def connect(self, **settings: str) -> Connection:
        try:
            connection = await self._reach(settings)
        except _REFUSALS as error:
            raise InvalidRequest(
                f"PostgreSQL at {self.where} refuses us: {_reason(error)}. Check user, password and database in the URL"
            ) from None
        except (*_OUTAGES, asyncpg.InterfaceError) as error:
            raise Unavailable(
                f"cannot reach PostgreSQL at {self.where}: {_reason(error)}. "
                "Check that the server is running and that the URL names its host and port"
            ) from None
        version = connection.get_server_version().major
        if version < OLDEST_VERSION:
            await connection.close()
            raise InvalidRequest(
                f"PostgreSQL at {self.where} is version {version}; Kagzi needs {OLDEST_VERSION} or later"
            )
        _notice_dead_peer(connection)
        return connection

    async def _reach(self, settings: Mapping[str, str]) -> Connection:
        """Connects to the first server that takes writes, beginning with the one that did last time."""
        servers = list(self._servers)
        if len(servers) == 1:
            return await self._open(servers[0], settings)
        asked: dict[asyncio.Task[Connection], str] = {}
        chosen: asyncio.Task[Connection] | None = None
        errors: list[Exception] = []
        try:
            waiting: set[asyncio.Task[Connection]] = set()
            while chosen is None and (servers or waiting):
                if servers:
                    server = servers.pop(0)
                    task = asyncio.ensure_future(self._open(server, settings))
                    asked[task] = server
                    waiting.add(task)
                done, waiting = await asyncio.wait(
                    waiting,
                    timeout=_HEAD_START_SECONDS if servers else None,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                for task in done:
                    error = task.exception()
                    if error is None:
                        chosen = chosen or task
                    elif isinstance(error, Exception):
                        errors.append(error)
        finally:
            await _let_go([task for task in asked if task is not chosen])
        if chosen is None:
            raise next((error for error in errors if isinstance(error, _REFUSALS)), errors[0])
        self._prefer(asked[chosen])
        return chosen.result()

    def _prefer(self, server: str) -> None:
        if self._servers[0] != server:
            self._servers = (server, *(other for other in self._servers if other != server))

    async def _open(self, server: str, settings: Mapping[str, str]) -> Connection:
        if not self.pooled and (connection := await self._open_directly(server, settings)) is not None:
            return connection
        return await self._open_pooled(server, settings)

    async def _open_directly(self, server: str, settings: Mapping[str, str]) -> Connection | None:
        """Makes a connection with a session of its own; None if that cannot be had here."""
        try:
            connection = await asyncpg.connect(
                server,
                timeout=self._connect_seconds,
                statement_cache_size=self._statement_cache_size,
                max_cached_statement_lifetime=0,
                connection_class=self._connection_class,
                server_settings={**_NAME, **self._settings, **settings},
                target_session_attrs=SessionAttribute.read_write,
            )
        except asyncpg.ProtocolViolationError as error:
            if self._may_look and _REFUSED_SETTING in str(error):
                self._found(pooler=True)
                return None
            raise
        if self.pooled is False:
            return connection
        try:
            who = await connection.fetchval("SELECT pg_backend_pid()", timeout=self._connect_seconds)
        except BaseException:
            connection.terminate()
            raise
        self._found(pooler=who != connection.get_server_pid())
        if self.pooled:
            connection.terminate()
            return None
        return connection

    async def _open_pooled(self, server: str, settings: Mapping[str, str]) -> Connection:
        connection = await asyncpg.connect(
            server,
            timeout=self._connect_seconds,
            connection_class=PooledConnection,
            statement_cache_size=0,
            server_settings=_NAME,
        )
        try:
            # A pooler repeats what the server said of itself when it first connected, which may be long ago.
            read_only = await connection.fetchval(
                "SELECT pg_is_in_recovery() OR current_setting('transaction_read_only')::boolean",
                timeout=self._connect_seconds,
            )
            if read_only:
                raise asyncpg.TargetServerAttributeNotMatched
        except BaseException:
            connection.terminate()
            raise
        connection.begin_with({**self._settings, **settings})
        return connection

    def _found(self, *, pooler: bool) -> None:
        if pooler and not self.pooled:
            logger.info("there is a connection pooler before PostgreSQL at %s: keeping nothing in sessions", self.where)
        self.pooled = pooler


async def _let_go(tasks: list[asyncio.Task[Connection]]) -> None:
    for task in tasks:
        task.cancel()
    for late in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(late, asyncpg.Connection):
            late.terminate()


# How long a silent peer is waited for, where the system lets us say so: unacknowledged data, then probes of idle
# connections. A server that hangs but whose host answers is noticed by the line that waits for it.
_PEER_OPTIONS: Final = (
    ("TCP_USER_TIMEOUT", _PEER_SECONDS * 1000),
    ("TCP_KEEPIDLE", _PEER_SECONDS),
    ("TCP_KEEPALIVE", _PEER_SECONDS),  # what macOS calls it
    ("TCP_KEEPINTVL", 2),
    ("TCP_KEEPCNT", 3),
)


def _notice_dead_peer(connection: Connection) -> None:
    transport: asyncio.Transport | None = getattr(connection, "_transport", None)  # asyncpg does not offer it
    peer = None if transport is None else transport.get_extra_info("socket")
    if peer is None or peer.family not in (socket.AF_INET, socket.AF_INET6):
        return
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _PEER_OPTIONS:
        if (option := getattr(socket, name, None)) is not None:
            peer.setsockopt(socket.IPPROTO_TCP, option, value)


def is_outage(error: Exception) -> bool:
    """Returns whether the database was out of reach, as opposed to a statement that it refused."""
    return isinstance(error, (*_OUTAGES, asyncpg.InterfaceError)) and not isinstance(error, BAD_VALUES)


def translate(error: Exception) -> Exception:
    """Returns the error that callers get for a driver's: with neither its class nor its text, which quotes SQL and
    values."""
    if isinstance(error, asyncpg.LockNotAvailableError):
        return Locked("something that is needed is locked in PostgreSQL by another transaction. Trying again is safe")
    if is_outage(error):
        return Unavailable(f"PostgreSQL did not answer: {_reason(error)}. Trying again is safe")
    if isinstance(error, BAD_VALUES):
        return InvalidRequest("a value cannot be stored in the database; nothing was written")
    if isinstance(error, asyncpg.InsufficientPrivilegeError):
        return InvalidRequest(
            "our PostgreSQL role may not do that. Let it own the schema kagzi, or grant it the rights"
        )
    if isinstance(error, asyncpg.UndefinedTableError | asyncpg.UndefinedColumnError | asyncpg.DuplicateTableError):
        return SchemaMismatch(
            "the schema kagzi in PostgreSQL is not as our migrations leave it; was it changed by hand?"
        )
    if isinstance(error, asyncpg.PostgresError):
        logger.error("PostgreSQL refused a statement", exc_info=error)
        return KagziError(f"PostgreSQL refused a statement (SQLSTATE {error.sqlstate}); the log has the details")
    return error


def _reason(error: Exception) -> str:
    # Only errors about connections come here, whose text quotes neither statements nor values; but what the
    # driver says about a malformed URL quotes its password.
    if isinstance(error, TimeoutError):
        return "it took too long"
    if isinstance(error, asyncpg.ClientConfigurationError):
        return "the URL is malformed"
    if isinstance(error, asyncpg.TargetServerAttributeNotMatched):
        return "it takes no writes; it is a replica, or read-only"
    if isinstance(error, asyncpg.PostgresError | OSError):
        return str(error).partition("\n")[0] or type(error).__name__
    return "the connection was lost"
