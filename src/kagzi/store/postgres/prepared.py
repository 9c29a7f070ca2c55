"""Preparing statements before a transaction locks what others wait for.

When a connection uses a statement for the first time, asyncpg asks the server what it is, and sends its values in a
second message. In between the transaction does not count as idle for the server, so none of its timeouts ends it. A
process that is frozen in that moment, by SIGSTOP or with its machine, would keep its locks for as long as it stays so.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from kagzi.store.postgres.pooled import PooledConnection

if TYPE_CHECKING:
    from kagzi.store.postgres.connection import Connection


async def prepare(connection: Connection, statements: Iterable[str]) -> None:
    """Prepares those that this connection has not used yet. Behind a pooler nothing stays prepared."""
    ask = getattr(connection, "_get_statement", None)  # asyncpg does not offer it
    # isinstance() is true of any two connections of asyncpg.
    if ask is None or issubclass(type(connection), PooledConnection):
        return
    for statement in statements:
        await ask(statement, None)
