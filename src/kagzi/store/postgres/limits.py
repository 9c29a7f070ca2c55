"""Pauses of queues, workflows and namespaces."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kagzi.core.flow import FlowLimit, Scope
from kagzi.core.instant import Instant
from kagzi.store.postgres.statements import STATEMENTS

if TYPE_CHECKING:
    import asyncpg

    from kagzi.store.postgres.connection import Connection

_LIST_LIMITS = STATEMENTS["list_limits"]
_PAUSE = STATEMENTS["pause"]
_RESUME = STATEMENTS["resume"]


async def list_limits(connection: Connection, namespace: str) -> list[FlowLimit]:
    return [limit_of(row) for row in await connection.fetch(_LIST_LIMITS, namespace)]


async def pause(
    connection: Connection, namespace: str, scope: Scope, name: str, by: str, reason: str, now: Instant | None
) -> FlowLimit:
    row = await connection.fetchrow(_PAUSE, now, namespace, scope.value, name, by, reason)
    assert row is not None
    return limit_of(row)


async def resume(connection: Connection, namespace: str, scope: Scope, name: str) -> FlowLimit:
    await connection.execute(_RESUME, namespace, scope.value, name)
    return FlowLimit(namespace=namespace, scope=scope, name=name)


def limit_of(row: asyncpg.Record) -> FlowLimit:
    return FlowLimit(
        namespace=row["namespace"],
        scope=Scope(row["scope"]),
        name=row["name"],
        paused_at=row["paused_at"],
        paused_by=row["paused_by"] or "",
        pause_reason=row["pause_reason"] or "",
    )
