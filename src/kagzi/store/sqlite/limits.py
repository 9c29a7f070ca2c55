"""Pauses of queues, workflows and namespaces."""

from __future__ import annotations

import sqlite3
from typing import Any

from kagzi.core.flow import FlowLimit, Scope
from kagzi.core.instant import Instant
from kagzi.store.sqlite.statements import execute

Limited = frozenset[tuple[str, str, str]]  # (namespace, scope, name)


def list_limits(connection: sqlite3.Connection, namespace: str) -> list[FlowLimit]:
    return [limit_of(row) for row in execute(connection, "list_limits", (namespace,))]


def pause(
    connection: sqlite3.Connection, namespace: str, scope: Scope, name: str, by: str, reason: str, now: Instant
) -> FlowLimit:
    execute(connection, "pause", (namespace, scope.value, name, by, reason, now))
    return next(limit for limit in list_limits(connection, namespace) if (limit.scope, limit.name) == (scope, name))


def resume(connection: sqlite3.Connection, namespace: str, scope: Scope, name: str) -> FlowLimit:
    execute(connection, "resume", (namespace, scope.value, name))
    return FlowLimit(namespace=namespace, scope=scope, name=name)


def read_limited(connection: sqlite3.Connection) -> Limited:
    return frozenset(execute(connection, "limited").fetchall())


def read_paused(connection: sqlite3.Connection) -> Limited:
    return frozenset(execute(connection, "all_paused").fetchall())


def is_limited(limited: Limited, namespace: str, task_queue: str, workflow_type: str) -> bool:
    """Whether something holds back runs of this workflow in this queue. Such a run is never born: it has to be claimed,
    where pauses are looked at."""
    return bool(limited) and not limited.isdisjoint(
        [
            (namespace, Scope.NAMESPACE.value, ""),
            (namespace, Scope.QUEUE.value, task_queue),
            (namespace, Scope.WORKFLOW.value, workflow_type),
        ]
    )


def limit_of(row: tuple[Any, ...]) -> FlowLimit:
    namespace, scope, name, paused_at, paused_by, pause_reason = row
    return FlowLimit(
        namespace=namespace,
        scope=Scope(scope),
        name=name,
        paused_at=paused_at,
        paused_by=paused_by or "",
        pause_reason=pause_reason or "",
    )
