"""Pauses and limits of queues, workflows and namespaces."""

from __future__ import annotations

import sqlite3

import msgspec

from kagzi.core.flow import FlowLimit, Scope, SlotWait
from kagzi.store.protocol.limits import LimitChange, Unheld
from kagzi.store.sqlite.limit_rows import limit_of
from kagzi.store.sqlite.lines import read_wait, unhold
from kagzi.store.sqlite.nouns import Noun, reads, writes
from kagzi.store.sqlite.statements import execute
from kagzi.store.workers import changes, columns, smallest


class Limits(Noun):
    """See `store.protocol.limits.Limits`."""

    @reads
    def read(self, connection: sqlite3.Connection, namespace: str) -> list[FlowLimit]:
        return _limits(connection, namespace)

    @writes
    def pause(
        self, connection: sqlite3.Connection, namespace: str, scope: Scope, name: str, by: str, reason: str
    ) -> FlowLimit:
        execute(connection, "pause", (namespace, scope.value, name, by, reason, self.now()))
        return next(limit for limit in _limits(connection, namespace) if (limit.scope, limit.name) == (scope, name))

    @writes
    def resume(self, connection: sqlite3.Connection, namespace: str, scope: Scope, name: str) -> FlowLimit:
        execute(connection, "resume", (namespace, scope.value, name, self.now()))
        return _left(connection, namespace, scope, name)

    @writes
    def change(
        self, connection: sqlite3.Connection, namespace: str, scope: Scope, name: str, change: LimitChange
    ) -> FlowLimit:
        now = self.now()
        values = (change.concurrency, change.key_concurrency, change.rate, change.key_rate)
        execute(connection, "set_limit", (namespace, scope.value, name, *values, now))
        execute(connection, "forget_turns", (namespace, now))
        return _left(connection, namespace, scope, name)

    @writes
    def declare(self, connection: sqlite3.Connection, namespace: str) -> None:
        """Makes the declared limits those that live workers declare."""
        now = self.now()
        extras = execute(connection, "live_extras", (namespace,)).fetchall()
        declared = smallest((msgspec.json.decode(queues, type=list[str]), labels) for queues, labels in extras)
        before = [limit_of(row) for row in execute(connection, "read_limits", (namespace,))]
        changed = changes(before, declared)
        for scope, limit in changed:
            execute(connection, "declare_limit", (namespace, scope.value, *columns(limit), now))
        if changed:
            execute(connection, "forget_turns", (namespace, now))
        execute(connection, "forget_limits", (namespace, False))

    @reads
    def namespaces(self, connection: sqlite3.Connection) -> list[str]:
        return [row[0] for row in execute(connection, "limited_namespaces")]

    @writes
    def unhold(self, connection: sqlite3.Connection, namespace: str, after: tuple[str, ...]) -> Unheld:
        return unhold(connection, namespace, after, self.now())

    @reads
    def wait_of(self, connection: sqlite3.Connection, namespace: str, run_id: str) -> SlotWait | None:
        return read_wait(connection, namespace, run_id, self.now())


def _limits(connection: sqlite3.Connection, namespace: str) -> list[FlowLimit]:
    return [limit_of(row) for row in execute(connection, "list_limits", (namespace,))]


def _left(connection: sqlite3.Connection, namespace: str, scope: Scope, name: str) -> FlowLimit:
    """Returns what is left of a limit after a change. One that limits nothing any more is deleted."""
    execute(connection, "forget_limits", (namespace, False))
    found = [limit for limit in _limits(connection, namespace) if (limit.scope, limit.name) == (scope, name)]
    return found[0] if found else FlowLimit(namespace=namespace, scope=scope, name=name)
