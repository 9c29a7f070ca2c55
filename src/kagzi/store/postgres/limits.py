"""Pauses and limits of queues, workflows and namespaces."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kagzi.core.flow import FlowLimit, Scope
from kagzi.core.instant import Instant
from kagzi.core.rate import decode_rate
from kagzi.store.postgres.statements import STATEMENTS
from kagzi.store.protocol import LimitChange
from kagzi.store.workers import changes, columns, smallest

if TYPE_CHECKING:
    import asyncpg

    from kagzi.store.postgres.connection import Connection

_LIST_LIMITS = STATEMENTS["list_limits"]
_PAUSE = STATEMENTS["pause"]
_RESUME = STATEMENTS["resume"]
_SET_LIMIT = STATEMENTS["set_limit"]
_DECLARE_LIMIT = STATEMENTS["declare_limit"]
_LIVE_EXTRAS = STATEMENTS["live_extras"]
_LOCK_LIMITS = STATEMENTS["lock_limits"]
_FORGET_LIMITS = STATEMENTS["forget_limits"]
_FORGET_TURNS = STATEMENTS["forget_turns"]
_LIMITED_NAMESPACES = STATEMENTS["limited_namespaces"]


async def list_limits(connection: Connection, namespace: str) -> list[FlowLimit]:
    return [limit_of(row) for row in await connection.fetch(_LIST_LIMITS, namespace)]


async def pause(
    connection: Connection, namespace: str, scope: Scope, name: str, by: str, reason: str, now: Instant | None
) -> FlowLimit:
    row = await connection.fetchrow(_PAUSE, now, namespace, scope.value, name, by, reason)
    assert row is not None
    return limit_of(row)


async def resume(connection: Connection, namespace: str, scope: Scope, name: str, now: Instant | None) -> FlowLimit:
    await connection.execute(_RESUME, now, namespace, scope.value, name)
    return await _read_limit(connection, namespace, scope, name)


async def set_limit(
    connection: Connection,
    namespace: str,
    scope: Scope,
    name: str,
    change: LimitChange,
    now: Instant | None,
) -> FlowLimit:
    values = (change.concurrency, change.key_concurrency, change.rate, change.key_rate)
    async with connection.transaction():
        await connection.execute(_SET_LIMIT, now, namespace, scope.value, name, *values)
        await connection.execute(_FORGET_TURNS, now, namespace)
    return await _read_limit(connection, namespace, scope, name)


async def declare_limits(connection: Connection, namespace: str, now: Instant | None) -> None:
    """Has the limits be what live workers declare. Two processes that do so at once may write what one of them read
    before; the later of them has read the later state, because it waits for the lock."""
    async with connection.transaction():
        before = [limit_of(row) for row in await connection.fetch(_LOCK_LIMITS, namespace)]
        extras = await connection.fetch(_LIVE_EXTRAS, namespace)
        declared = smallest((row["queues"], row["labels"]) for row in extras)
        changed = changes(before, declared)
        for scope, limit in changed:
            await connection.execute(_DECLARE_LIMIT, now, namespace, scope.value, *columns(limit))
        if changed:
            await connection.execute(_FORGET_TURNS, now, namespace)
        await connection.execute(_FORGET_LIMITS, namespace, False)


async def limited_namespaces(connection: Connection) -> list[str]:
    return [row["namespace"] for row in await connection.fetch(_LIMITED_NAMESPACES)]


async def _read_limit(connection: Connection, namespace: str, scope: Scope, name: str) -> FlowLimit:
    """What is left of a limit after a change; what limits nothing any more is forgotten."""
    await connection.execute(_FORGET_LIMITS, namespace, False)
    found = [each for each in await list_limits(connection, namespace) if (each.scope, each.name) == (scope, name)]
    return found[0] if found else FlowLimit(namespace=namespace, scope=scope, name=name)


def limit_of(row: asyncpg.Record) -> FlowLimit:
    return FlowLimit(
        namespace=row["namespace"],
        scope=Scope(row["scope"]),
        name=row["name"],
        paused_at=row["paused_at"],
        paused_by=row["paused_by"] or "",
        pause_reason=row["pause_reason"] or "",
        concurrency=row["concurrency"],
        declared=row["declared"],
        key_concurrency=row["key_concurrency"],
        key_declared=row["key_declared"],
        shares=row["shares"],
        rate=decode_rate(row["rate"]),
        rate_declared=decode_rate(row["rate_declared"]),
        key_rate=decode_rate(row["key_rate"]),
        key_rate_declared=decode_rate(row["key_rate_declared"]),
        fair=row["fair"],
    )
