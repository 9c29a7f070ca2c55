"""Namespaces: making, describing, disabling."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any

from kagzi.core.instant import Instant
from kagzi.core.namespace import Namespace
from kagzi.store.sqlite.connection import Database
from kagzi.store.sqlite.nouns import Noun, reads, writes
from kagzi.store.sqlite.statements import execute


class Namespaces(Noun):
    """See `store.protocol.namespaces.Namespaces`."""

    def __init__(self, database: Database, now: Callable[[], Instant], retention_days: int) -> None:
        super().__init__(database, now)
        self._retention_days = retention_days

    @writes
    def ensure(self, connection: sqlite3.Connection, namespace: str) -> None:
        execute(connection, "ensure_namespace", (namespace, self.now(), self._retention_days))

    @writes
    def create(
        self, connection: sqlite3.Connection, namespace: str, display_name: str, description: str
    ) -> Namespace | None:
        values = (namespace, display_name, description, self._retention_days, self.now())
        return _first(execute(connection, "create_namespace", values).fetchall())

    @reads
    def get(self, connection: sqlite3.Connection, namespace: str) -> Namespace | None:
        return _first(execute(connection, "get_namespace", (namespace,)).fetchall())

    @reads
    def page(self, connection: sqlite3.Connection, after: str, limit: int) -> list[Namespace]:
        return [_namespace_of(row) for row in execute(connection, "list_namespaces", (after, limit)).fetchall()]

    @writes
    def update(
        self,
        connection: sqlite3.Connection,
        namespace: str,
        display_name: str | None,
        description: str | None,
        enabled: bool | None,
        handler: tuple[str, str | None] | None = None,
    ) -> Namespace | None:
        values = (namespace, display_name, description, enabled, self.now(), *(handler or (None, None)))
        return _first(execute(connection, "update_namespace", values).fetchall())

    @reads
    def disabled(self, connection: sqlite3.Connection) -> list[str]:
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
