"""The audit log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from kagzi.api.keys import AuditFilter
from kagzi.core.audit import AuditEntry
from kagzi.core.page import Cursor


class Audit(Protocol):
    """The audit log: who changed what. Entries are added, and never changed."""

    async def append(self, entries: Sequence[AuditEntry]) -> None: ...

    async def page(self, filter: AuditFilter, cursor: Cursor | None, limit: int) -> list[AuditEntry]:
        """Returns entries, the newest first; with a cursor those before the entry whose id it holds."""
        ...

    async def prune(self, limit: int) -> int:
        """Delete entries of the audit log older than AUDIT_RETENTION, looking at the oldest `limit` only; returns how
        many."""
        ...
