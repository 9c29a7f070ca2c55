"""Kinds of errors, and whether trying again can help."""

from __future__ import annotations

from enum import StrEnum

from kagzi.errors import (
    InvalidRequest,
    NonDeterminismError,
    NonRetryable,
    NotFound,
    StepTimeout,
    Unavailable,
    WorkflowTimedOut,
)


class ErrorKind(StrEnum):
    """The kind of an error. The last four of the known ones do not go away by trying again."""

    NETWORK = "network"
    TIMEOUT = "timeout"
    DATABASE = "database"
    RATE_LIMIT = "rate_limit"
    UNAVAILABLE = "unavailable"
    NOT_FOUND = "not_found"
    UNAUTHORIZED = "unauthorized"
    BAD_REQUEST = "bad_request"
    VALIDATION = "validation"
    UNKNOWN = "unknown"

    @property
    def retryable(self) -> bool:
        return self not in _HOPELESS


_HOPELESS = frozenset({ErrorKind.NOT_FOUND, ErrorKind.UNAUTHORIZED, ErrorKind.BAD_REQUEST, ErrorKind.VALIDATION})
_KINDS = {kind.value: kind for kind in ErrorKind}


def classify(exc: BaseException) -> tuple[ErrorKind, bool]:
    """Returns the kind of an error, and whether trying again is known to be useless.

    An exception says its own kind in an attribute `kind`. Of the others only Kagzi's own are known to be
    hopeless: a FileNotFoundError is retried like any other, because the file may be there a moment later.
    """
    try:
        kind_said = getattr(exc, "kind", None)
        said = _KINDS.get(kind_said) if isinstance(kind_said, str) else None
    except Exception:
        said = None
    kind = said or kind_of_class(type(exc))
    return kind, not kind.retryable or isinstance(exc, (NonRetryable, NonDeterminismError))


def kind_of_class(cls: type[BaseException]) -> ErrorKind:
    if issubclass(cls, (TimeoutError, StepTimeout, WorkflowTimedOut)):
        return ErrorKind.TIMEOUT
    if issubclass(cls, ConnectionError):
        return ErrorKind.NETWORK
    if issubclass(cls, Unavailable):
        return ErrorKind.UNAVAILABLE
    if issubclass(cls, InvalidRequest):
        return ErrorKind.BAD_REQUEST
    if issubclass(cls, NotFound):
        return ErrorKind.NOT_FOUND
    if cls.__module__.partition(".")[0] in _DATABASE_MODULES:
        return ErrorKind.DATABASE
    return ErrorKind.UNKNOWN


_DATABASE_MODULES = frozenset({"sqlite3", "asyncpg", "psycopg", "psycopg2", "pymysql", "aiomysql", "oracledb"})
