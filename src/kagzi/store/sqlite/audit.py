"""The audit log."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Final

from kagzi.api.keys import AuditFilter
from kagzi.core.audit import AUDIT_RETENTION, AuditEntry
from kagzi.core.instant import Instant
from kagzi.core.page import Cursor
from kagzi.store.sqlite.nouns import Noun, reads, writes
from kagzi.store.sqlite.statements import execute

_LAST: Final = 2**63 - 1


class Audit(Noun):
    """See `store.protocol.audit.Audit`."""

    @writes
    def append(self, connection: sqlite3.Connection, entries: Sequence[AuditEntry]) -> None:
        return append_audit(connection, entries, self.now())

    @reads
    def page(
        self, connection: sqlite3.Connection, filter: AuditFilter, cursor: Cursor | None, limit: int
    ) -> list[AuditEntry]:
        before = _LAST if cursor is None else int(cursor.key)
        rows = execute(connection, "list_audit", (before, filter.namespace, filter.actor, limit)).fetchall()
        return [
            AuditEntry(
                entry_id=str(row[0]),
                at=row[1],
                actor=row[2],
                action=row[3],
                namespace=row[4],
                target=row[5],
                request_id=row[6],
                peer=row[7],
                result=row[8],
            )
            for row in rows
        ]

    async def prune(self, limit: int) -> int:
        now = self.now
        # Looking needs no write lock, and there is seldom anything to delete.
        if not await self.database.read(lambda connection: _has_old(connection, limit, now())):
            return 0
        return await self.database.write(lambda connection: _delete_old(connection, limit, now()))


def append_audit(connection: sqlite3.Connection, entries: Sequence[AuditEntry], now: Instant) -> None:
    for entry in entries:
        execute(
            connection,
            "append_audit",
            (
                now,
                entry.actor,
                entry.action,
                entry.namespace,
                entry.target,
                entry.request_id,
                entry.peer,
                entry.result,
            ),
        )


def _has_old(connection: sqlite3.Connection, limit: int, now: Instant) -> bool:
    return bool(execute(connection, "find_old_audit", (limit, now - AUDIT_RETENTION)).fetchone()[0])


def _delete_old(connection: sqlite3.Connection, limit: int, now: Instant) -> int:
    return execute(connection, "prune_audit", (limit, now - AUDIT_RETENTION)).rowcount
