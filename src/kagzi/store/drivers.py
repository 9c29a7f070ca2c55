"""Tells the drivers of callers' connections apart, without importing any."""

from __future__ import annotations

from inspect import iscoroutinefunction
from typing import Any, Final

from kagzi.errors import InvalidRequest

# By the package that a class comes from; a subclass of the caller's own has it among its bases.
_DRIVERS: Final = frozenset({"asyncpg", "psycopg", "sqlalchemy", "django", "sqlite3"})


def driver_of(connection: object) -> str | None:
    """Returns the driver of a connection; None if it is not one that we know."""
    # Django's `connection` is a proxy, whose class says nothing and whose `__class__` would be asked of the real one.
    for kind in type(connection).__mro__:
        root = kind.__module__.partition(".")[0]
        if root in _DRIVERS:
            return root
    return None


def unsupported(connection: object) -> InvalidRequest:
    return InvalidRequest(
        "connection= takes one of asyncpg, psycopg 3, SQLAlchemy 2 (Connection or Session, also async ones), Django "
        f"or sqlite3, not {type(connection).__module__}.{type(connection).__qualname__}; nothing was written"
    )


def not_in_transaction() -> InvalidRequest:
    return InvalidRequest(
        "connection= is in autocommit, so the run would not be started together with anything; begin a transaction on "
        "it first. Nothing was written"
    )


def is_closed() -> InvalidRequest:
    return InvalidRequest("connection= is closed; nothing was written")


class OtherDatabase(InvalidRequest):
    """Refuses a connection that leads to another database than the app's."""


def other_database() -> OtherDatabase:
    return OtherDatabase(
        "connection= leads to another database than the app's, where its workers would not see the run; nothing was "
        "written"
    )


def is_async(connection: Any) -> bool:
    """Returns whether the calls of a connection are awaited, so that only a running event loop can make them."""
    driver = driver_of(connection)
    kind = type(connection)
    return driver == "asyncpg" or (
        driver in ("psycopg", "sqlalchemy") and iscoroutinefunction(getattr(kind, "execute", None))
    )


def sync_connection_of(connection: Any) -> Any:
    """Returns SQLAlchemy's plain Connection of a Connection or Session, sync or async."""
    return getattr(connection, "sync_connection", None) or connection
