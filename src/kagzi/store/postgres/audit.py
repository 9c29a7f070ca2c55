"""The audit log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kagzi.api.keys import AuditFilter
from kagzi.core.audit import AUDIT_RETENTION, AuditEntry
from kagzi.core.page import Cursor
from kagzi.store.postgres.nouns import Noun, asks
from kagzi.store.postgres.statements import STATEMENTS

if TYPE_CHECKING:
    from kagzi.store.postgres.connection import Connection
if TYPE_CHECKING:
    from kagzi.store.postgres.connection import Connection

_APPEND_AUDIT = STATEMENTS["append_audit"]
_LIST_AUDIT = STATEMENTS["list_audit"]
_PRUNE_AUDIT = STATEMENTS["prune_audit"]
_LAST = 2**63 - 1


class Audit(Noun):
    """See `store.protocol.audit.Audit`."""

    @asks
    async def append(self, connection: Connection, entries: Sequence[AuditEntry]) -> None:
        await connection.execute(
            _APPEND_AUDIT,
            self.now(),
            [entry.actor for entry in entries],
            [entry.action for entry in entries],
            [entry.namespace for entry in entries],
            [entry.target for entry in entries],
            [entry.request_id for entry in entries],
            [entry.peer for entry in entries],
            [entry.result for entry in entries],
        )

    @asks
    async def page(
        self, connection: Connection, filter: AuditFilter, cursor: Cursor | None, limit: int
    ) -> list[AuditEntry]:
        before = _LAST if cursor is None else int(cursor.key)
        return [
            AuditEntry(
                entry_id=str(row["entry_id"]),
                at=row["at"],
                actor=row["actor"],
                action=row["action"],
                namespace=row["namespace"],
                target=row["target"],
                request_id=row["request_id"],
                peer=row["peer"],
                result=row["result"],
            )
            for row in await connection.fetch(_LIST_AUDIT, before, filter.namespace, filter.actor, limit)
        ]

    @asks
    async def prune(self, connection: Connection, limit: int) -> int:
        now = self.now()
        deleted: int = await connection.fetchval(_PRUNE_AUDIT, limit, None if now is None else now - AUDIT_RETENTION)
        return deleted


def columns_of_entry(entry: AuditEntry) -> tuple[str | None, ...]:
    """Returns what an entry says besides its namespace, which may be that of a key that the statement has yet to
    find."""
    return entry.actor, entry.action, entry.target, entry.request_id, entry.peer, entry.result
