"""Sessions of SQLAlchemy for steps, on an engine of the user's own.

The transaction is ours: the session joins it by a savepoint, so that `session.commit()` in a body does what people
expect of it, and nothing is durable before the step is.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

from kagzi.errors import InvalidRequest

_JOINED: Final[dict[str, Any]] = {"join_transaction_mode": "create_savepoint", "expire_on_commit": False}


def make_session(connection: Any, *, awaited: bool) -> Any:
    """Makes a session on a connection that is in a transaction already."""
    if awaited:
        return import_module("sqlalchemy.ext.asyncio").AsyncSession(bind=connection, **_JOINED)
    return import_module("sqlalchemy.orm").Session(bind=connection, **_JOINED)


def has_ended(step: str) -> InvalidRequest:
    return InvalidRequest(
        f"the step {step} has ended the transaction of its connection itself; Kagzi commits it together with the "
        "step's result, so leave COMMIT, ROLLBACK and close() to it"
    )
