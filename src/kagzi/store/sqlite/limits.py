"""Pauses and limits of queues, workflows and namespaces."""

from __future__ import annotations

import sqlite3
from typing import Any

import msgspec

from kagzi.core.flow import FlowLimit, Scope
from kagzi.core.instant import Instant
from kagzi.core.rate import decode_rate
from kagzi.store.protocol import LimitChange
from kagzi.store.sqlite.statements import execute
from kagzi.store.workers import changes, columns, smallest

Limited = frozenset[tuple[str, str, str]]  # (namespace, scope, name)


def list_limits(connection: sqlite3.Connection, namespace: str) -> list[FlowLimit]:
    return [limit_of(row) for row in execute(connection, "list_limits", (namespace,))]


def pause(
    connection: sqlite3.Connection, namespace: str, scope: Scope, name: str, by: str, reason: str, now: Instant
) -> FlowLimit:
    execute(connection, "pause", (namespace, scope.value, name, by, reason, now))
    return next(limit for limit in list_limits(connection, namespace) if (limit.scope, limit.name) == (scope, name))


def resume(connection: sqlite3.Connection, namespace: str, scope: Scope, name: str, now: Instant) -> FlowLimit:
    execute(connection, "resume", (namespace, scope.value, name, now))
    return read_limit(connection, namespace, scope, name)


def read_limit(connection: sqlite3.Connection, namespace: str, scope: Scope, name: str) -> FlowLimit:
    """What is left of a limit after a change; what limits nothing any more is forgotten."""
    execute(connection, "forget_limits", (namespace, False))
    found = [limit for limit in list_limits(connection, namespace) if (limit.scope, limit.name) == (scope, name)]
    return found[0] if found else FlowLimit(namespace=namespace, scope=scope, name=name)


def set_limit(
    connection: sqlite3.Connection,
    namespace: str,
    scope: Scope,
    name: str,
    change: LimitChange,
    now: Instant,
) -> FlowLimit:
    values = (change.concurrency, change.key_concurrency, change.rate, change.key_rate)
    execute(connection, "set_limit", (namespace, scope.value, name, *values, now))
    execute(connection, "forget_turns", (namespace, now))
    return read_limit(connection, namespace, scope, name)


def declare_limits(connection: sqlite3.Connection, namespace: str, now: Instant) -> None:
    """Has the limits be what live workers declare."""
    extras = execute(connection, "live_extras", (namespace,)).fetchall()
    declared = smallest((msgspec.json.decode(queues, type=list[str]), labels) for queues, labels in extras)
    before = [limit_of(row) for row in execute(connection, "read_limits", (namespace,))]
    changed = changes(before, declared)
    for scope, limit in changed:
        execute(connection, "declare_limit", (namespace, scope.value, *columns(limit), now))
    if changed:
        execute(connection, "forget_turns", (namespace, now))
    execute(connection, "forget_limits", (namespace, False))


def limited_namespaces(connection: sqlite3.Connection) -> list[str]:
    return [row[0] for row in execute(connection, "limited_namespaces")]


def read_limited(connection: sqlite3.Connection) -> Limited:
    return frozenset(execute(connection, "limited").fetchall())


def read_paused(connection: sqlite3.Connection) -> Limited:
    return frozenset(execute(connection, "all_paused").fetchall())


def is_limited(limited: Limited, namespace: str, task_queue: str, workflow_type: str, limit_name: str | None) -> bool:
    """Whether something holds back runs of this workflow in this queue. Such a run is never born: it has to be claimed,
    where pauses are looked at."""
    return bool(limited) and not limited.isdisjoint(
        [
            (namespace, Scope.NAMESPACE.value, ""),
            (namespace, Scope.QUEUE.value, task_queue),
            (namespace, Scope.WORKFLOW.value, workflow_type),
            (namespace, Scope.WORKFLOW.value, limit_name or workflow_type),
        ]
    )


def limit_of(row: tuple[Any, ...]) -> FlowLimit:
    namespace, scope, name, paused_at, paused_by, pause_reason, *limits = row
    return FlowLimit(
        namespace=namespace,
        scope=Scope(scope),
        name=name,
        paused_at=paused_at,
        paused_by=paused_by or "",
        pause_reason=pause_reason or "",
        concurrency=limits[0],
        declared=limits[1],
        key_concurrency=limits[2],
        key_declared=limits[3],
        shares=limits[4],
        rate=decode_rate(limits[5]),
        rate_declared=decode_rate(limits[6]),
        key_rate=decode_rate(limits[7]),
        key_rate_declared=decode_rate(limits[8]),
        fair=bool(limits[9]),
    )
