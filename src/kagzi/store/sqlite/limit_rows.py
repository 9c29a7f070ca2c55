"""Turns rows of limits into records, and tells what they hold back."""

from __future__ import annotations

import sqlite3
from typing import Any

from kagzi.core.flow import FlowLimit, Scope
from kagzi.core.rate import decode_rate
from kagzi.store.sqlite.statements import execute

Limited = frozenset[tuple[str, str, str]]  # (namespace, scope, name)


def read_limited(connection: sqlite3.Connection) -> Limited:
    return frozenset(execute(connection, "limited").fetchall())


def read_paused(connection: sqlite3.Connection) -> Limited:
    return frozenset(execute(connection, "all_paused").fetchall())


def is_limited(limited: Limited, namespace: str, task_queue: str, workflow_type: str, limit_name: str | None) -> bool:
    """Returns whether something holds back runs of this workflow in this queue. Such a run is never born: it has to be
    claimed, where pauses are looked at."""
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
