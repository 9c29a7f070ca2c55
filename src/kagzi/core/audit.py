"""Entries of the audit log: who changed what, or was refused."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from kagzi.core.instant import SECOND, Instant, Span

OK: Final = "OK"
# More than a year, whatever the month; PostgreSQL's function `kagzi.prune_audit_log` says so, too.
AUDIT_RETENTION: Final[Span] = 400 * 86_400 * SECOND


class AuditEntry(Struct, frozen=True, kw_only=True):
    """`at` is the database's time, given when the entry is stored."""

    actor: str  # `key:<key id>`, `cli:<user>`, `nobody` without a good key, `anyone` where no keys are asked for
    action: str  # the RPC's path, the HTTP route, or the command
    namespace: str | None  # None: it concerns all of them, or that is not known
    target: str  # which run, worker, key or namespace; may be empty
    request_id: str
    peer: str
    result: str  # OK, or the code of the error
    entry_id: str = ""
    at: Instant = 0
