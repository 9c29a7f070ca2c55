"""Namespaces: making, describing, disabling."""

from __future__ import annotations

import sqlite3
from typing import Any

from kagzi.core.instant import Instant
from kagzi.core.namespace import Namespace
from kagzi.store.sqlite.statements import execute


def create_namespace(
    connection: sqlite3.Connection, name: str, display_name: str, description: str, retention_days: int, now: Instant
) -> Namespace | None:
    values = (name, display_name, description, retention_days, now)
    return _first(execute(connection, "create_namespace", values).fetchall())


def get_namespace(connection: sqlite3.Connection, name: str) -> Namespace | None:
    return _first(execute(connection, "get_namespace", (name,)).fetchall())


def list_namespaces(connection: sqlite3.Connection, after: str, limit: int) -> list[Namespace]:
    return [_namespace_of(row) for row in execute(connection, "list_namespaces", (after, limit)).fetchall()]


def update_namespace(
    connection: sqlite3.Connection,
    name: str,
    display_name: str | None,
    description: str | None,
    enabled: bool | None,
    handler: tuple[str, str | None] | None,
    now: Instant,
) -> Namespace | None:
    values = (name, display_name, description, enabled, now, *(handler or (None, None)))
    return _first(execute(connection, "update_namespace", values).fetchall())


def disabled_namespaces(connection: sqlite3.Connection) -> list[str]:
    return [name for (name,) in execute(connection, "disabled_namespaces").fetchall()]


def _first(rows: list[tuple[Any, ...]]) -> Namespace | None:
    return _namespace_of(rows[0]) if rows else None


def _namespace_of(row: tuple[Any, ...]) -> Namespace:
    return Namespace(
        namespace=row[0],
        display_name=row[1],
        description=row[2],
        enabled=bool(row[3]),
        created_at=row[4],
        updated_at=row[5],
        on_failure=row[6],
        on_failure_queue=row[7],
    )
