"""Namespaces: making, describing, disabling."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kagzi.core.instant import Instant
from kagzi.core.namespace import Namespace
from kagzi.store.postgres.nouns import Noun, asks
from kagzi.store.postgres.online import IndexBuilds
from kagzi.store.postgres.pool import Pool
from kagzi.store.postgres.statements import STATEMENTS

if TYPE_CHECKING:
    import asyncpg

    from kagzi.store.postgres.connection import Connection
if TYPE_CHECKING:
    from kagzi.store.postgres.connection import Connection

_CREATE_NAMESPACE = STATEMENTS["create_namespace"]
_GET_NAMESPACE = STATEMENTS["get_namespace"]
_LIST_NAMESPACES = STATEMENTS["list_namespaces"]
_UPDATE_NAMESPACE = STATEMENTS["update_namespace"]
_DISABLED_NAMESPACES = STATEMENTS["disabled_namespaces"]
_ENSURE_NAMESPACE = STATEMENTS["ensure_namespace"]


class Namespaces(Noun):
    """See `store.protocol.namespaces.Namespaces`."""

    def __init__(
        self, pool: Pool, now: Callable[[], Instant | None], indexes: IndexBuilds, retention_days: int
    ) -> None:
        super().__init__(pool, now, indexes)
        self._retention_days = retention_days

    @asks
    async def ensure(self, connection: Connection, namespace: str) -> None:
        await connection.execute(_ENSURE_NAMESPACE, self.now(), namespace, self._retention_days)

    @asks
    async def create(
        self, connection: Connection, namespace: str, display_name: str, description: str
    ) -> Namespace | None:
        row = await connection.fetchrow(
            _CREATE_NAMESPACE, self.now(), namespace, display_name, description, self._retention_days
        )
        return None if row is None else namespace_of(row)

    @asks
    async def get(self, connection: Connection, namespace: str) -> Namespace | None:
        row = await connection.fetchrow(_GET_NAMESPACE, namespace)
        return None if row is None else namespace_of(row)

    @asks
    async def page(self, connection: Connection, after: str, limit: int) -> list[Namespace]:
        return [namespace_of(row) for row in await connection.fetch(_LIST_NAMESPACES, after, limit)]

    @asks
    async def update(
        self,
        connection: Connection,
        namespace: str,
        display_name: str | None,
        description: str | None,
        enabled: bool | None,
        handler: tuple[str, str | None] | None = None,
    ) -> Namespace | None:
        said = (display_name, description, enabled, *(handler or (None, None)))
        row = await connection.fetchrow(_UPDATE_NAMESPACE, self.now(), namespace, *said)
        return None if row is None else namespace_of(row)

    @asks
    async def disabled(self, connection: Connection) -> list[str]:
        return [row["namespace"] for row in await connection.fetch(_DISABLED_NAMESPACES)]


def namespace_of(row: asyncpg.Record) -> Namespace:
    return Namespace(
        namespace=row["namespace"],
        display_name=row["display_name"],
        description=row["description"],
        enabled=row["enabled"],
        created_at=row["created_at"],
        updated_at=row["updated_at"],
        on_failure=row["on_failure"],
        on_failure_queue=row["on_failure_queue"],
    )
