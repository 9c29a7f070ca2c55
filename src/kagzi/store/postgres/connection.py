"""Making connections, and telling an outage from a mistake.

Every connection is made alike. It allows writes (after a failover the old primary answers, but read-only),
gives up on statements and locks that hang, and plans for the way our statements are written: each reaches
rows by an index, starting from a few arrays. The planner would not know. On a table that has just been
created it expects a handful of rows and prefers reading all of them; the plan is kept, the table grows, and
every batch reads the whole of it. So only index scans and nested loops are left to it, and where a set is
looked up in another one, the statement says so with a hashed subquery instead of a join.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import asyncpg
from asyncpg.connect_utils import SessionAttribute

from kagzi.errors import InvalidRequest, KagziError, SchemaMismatch, Unavailable

if TYPE_CHECKING:
    from typing import TypeAlias

    Connection: TypeAlias = asyncpg.Connection[asyncpg.Record]

logger = logging.getLogger("kagzi.store.postgres")

OLDEST_VERSION = 14
CONNECT_SECONDS = 10.0

_SETTINGS = {
    "application_name": "kagzi",
    # A row held by a stuck transaction is hidden from those that skip locked rows; nobody may hold one long.
    "statement_timeout": "10s",
    "lock_timeout": "2s",
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
    UnicodeEncodeError,
)
_REFUSALS = (
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
    asyncpg.ClientConfigurationError,
)


class Connector:
    """Knows where the database is and what a connection to it needs."""

    def __init__(self, url: str, *, statement_cache_size: int) -> None:
        self.where = describe(url)
        self._url = url
        self._statement_cache_size = statement_cache_size

    async def connect(self, **settings: str) -> Connection:
        try:
            connection = await asyncpg.connect(
                self._url,
                timeout=CONNECT_SECONDS,
                statement_cache_size=self._statement_cache_size,
                max_cached_statement_lifetime=0,
                server_settings={**_SETTINGS, **settings},
                target_session_attrs=SessionAttribute.read_write,
            )
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
        return connection


def describe(url: str) -> str:
    """Where the database is, in words fit for a message: without the password and without options."""
    try:
        parts = urlsplit(url)
        hosts = parts.netloc.rpartition("@")[2] or "the local socket"
        user = parts.username
    except ValueError:
        raise InvalidRequest(
            "the database URL is malformed; it looks like postgresql://user:password@host:5432/database"
        ) from None
    if parts.scheme not in ("postgresql", "postgres"):
        raise InvalidRequest("a PostgreSQL URL begins with postgresql://")
    return f"{hosts}{parts.path}" + (f" as {user}" if user else "")


def is_outage(error: Exception) -> bool:
    """Whether the database was out of reach, as opposed to a statement that it refused."""
    return isinstance(error, (*_OUTAGES, asyncpg.InterfaceError)) and not isinstance(error, BAD_VALUES)


def translate(error: Exception) -> Exception:
    """What callers get to see of a driver's error: neither its class nor its text, which quotes SQL and values."""
    if is_outage(error):
        return Unavailable(f"PostgreSQL did not answer: {_reason(error)}. Trying again is safe")
    if isinstance(error, BAD_VALUES):
        return InvalidRequest("a value cannot be stored in PostgreSQL; nothing was written")
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
    if isinstance(error, asyncpg.PostgresError | OSError):
        return str(error).partition("\n")[0] or type(error).__name__
    return "the connection was lost"
