"""Namespaces: making, describing, disabling."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kagzi.core.instant import Instant
from kagzi.core.namespace import Namespace
from kagzi.store.postgres.statements import STATEMENTS

if TYPE_CHECKING:
    import asyncpg

    from kagzi.store.postgres.connection import Connection

_CREATE_NAMESPACE = STATEMENTS["create_namespace"]
_GET_NAMESPACE = STATEMENTS["get_namespace"]
_LIST_NAMESPACES = STATEMENTS["list_namespaces"]
_UPDATE_NAMESPACE = STATEMENTS["update_namespace"]
_DISABLED_NAMESPACES = STATEMENTS["disabled_namespaces"]


async def create_namespace(
    connection: Connection, name: str, display_name: str, description: str, retention_days: int, now: Instant | None
) -> Namespace | None:
    row = await connection.fetchrow(_CREATE_NAMESPACE, now, name, display_name, description, retention_days)
    return None if row is None else namespace_of(row)


async def get_namespace(connection: Connection, name: str) -> Namespace | None:
    row = await connection.fetchrow(_GET_NAMESPACE, name)
    return None if row is None else namespace_of(row)


async def list_namespaces(connection: Connection, after: str, limit: int) -> list[Namespace]:
    return [namespace_of(row) for row in await connection.fetch(_LIST_NAMESPACES, after, limit)]


async def update_namespace(
    connection: Connection,
    name: str,
    display_name: str | None,
    description: str | None,
    enabled: bool | None,
    handler: tuple[str, str | None] | None,
    now: Instant | None,
) -> Namespace | None:
    said = (display_name, description, enabled, *(handler or (None, None)))
    row = await connection.fetchrow(_UPDATE_NAMESPACE, now, name, *said)
    return None if row is None else namespace_of(row)


async def disabled_namespaces(connection: Connection) -> list[str]:
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
