"""API keys, the audit log, and secrets of the database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from kagzi.api.keys import AuditFilter, LiveKeys
from kagzi.core.audit import AUDIT_RETENTION, AuditEntry
from kagzi.core.instant import NEVER, Instant, Span
from kagzi.core.key import MOST_LIVE, Key, Role, read_key_position
from kagzi.core.page import Cursor
from kagzi.store.migrate import check_secret
from kagzi.store.postgres.statements import STATEMENTS

if TYPE_CHECKING:
    import asyncpg

    from kagzi.store.postgres.connection import Connection

_LIVE_KEYS = STATEMENTS["live_keys"]
_CREATE_KEY = STATEMENTS["create_key"]
_GET_KEY = STATEMENTS["get_key"]
_LIST_KEYS = STATEMENTS["list_keys"]
_ROTATE_KEY = STATEMENTS["rotate_key"]
_REVOKE_KEY = STATEMENTS["revoke_key"]
_TOUCH_KEYS = STATEMENTS["touch_keys"]
_APPEND_AUDIT = STATEMENTS["append_audit"]
_LIST_AUDIT = STATEMENTS["list_audit"]
_PRUNE_AUDIT = STATEMENTS["prune_audit"]
_GET_SECRET = STATEMENTS["get_secret"]
_LAST = 2**63 - 1


async def live_keys(connection: Connection, now: Instant | None) -> LiveKeys:
    rows = await connection.fetch(_LIVE_KEYS, now, MOST_LIVE)
    keys = [key_of(row) for row in rows if row["key_id"] is not None]
    return LiveKeys(now=rows[0]["now"], configured=rows[0]["configured"], keys={key.key_id: key for key in keys})


async def create_key(
    connection: Connection, key: Key, expires_in: Span | None, entry: AuditEntry, now: Instant | None
) -> Key:
    row = await connection.fetchrow(
        _CREATE_KEY,
        now,
        key.key_id,
        key.namespace,
        key.role,
        key.name,
        key.digest,
        expires_in,
        entry.namespace,
        *_said(entry),
    )
    assert row is not None
    return key_of(row)


async def get_key(connection: Connection, key_id: str) -> Key | None:
    row = await connection.fetchrow(_GET_KEY, key_id)
    return None if row is None else key_of(row)


async def list_keys(connection: Connection, namespace: str | None, cursor: Cursor | None, limit: int) -> list[Key]:
    created_at, key_id = (NEVER, "") if cursor is None else read_key_position(cursor.key)
    return [key_of(row) for row in await connection.fetch(_LIST_KEYS, namespace, created_at, key_id, limit)]


async def rotate_key(
    connection: Connection,
    key_id: str,
    overlap: Span,
    new_id: str,
    digest: bytes,
    entry: AuditEntry,
    now: Instant | None,
) -> Key | None:
    row = await connection.fetchrow(_ROTATE_KEY, now, key_id, overlap, new_id, digest, *_said(entry))
    return None if row is None else key_of(row)


async def revoke_key(connection: Connection, key_id: str, entry: AuditEntry, now: Instant | None) -> Key | None:
    row = await connection.fetchrow(_REVOKE_KEY, now, key_id, *_said(entry))
    return None if row is None else key_of(row)


async def touch_keys(connection: Connection, used: Mapping[str, Instant]) -> None:
    await connection.execute(_TOUCH_KEYS, list(used), list(used.values()))


async def append_audit(connection: Connection, entries: Sequence[AuditEntry], now: Instant | None) -> None:
    await connection.execute(
        _APPEND_AUDIT,
        now,
        [entry.actor for entry in entries],
        [entry.action for entry in entries],
        [entry.namespace for entry in entries],
        [entry.target for entry in entries],
        [entry.request_id for entry in entries],
        [entry.peer for entry in entries],
        [entry.result for entry in entries],
    )


async def list_audit(
    connection: Connection, filter: AuditFilter, cursor: Cursor | None, limit: int
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


def _said(entry: AuditEntry) -> tuple[str | None, ...]:
    """What an entry says besides its namespace, which may be that of a key the statement has yet to find."""
    return entry.actor, entry.action, entry.target, entry.request_id, entry.peer, entry.result


async def prune_audit(connection: Connection, limit: int, now: Instant | None) -> int:
    deleted: int = await connection.fetchval(_PRUNE_AUDIT, limit, None if now is None else now - AUDIT_RETENTION)
    return deleted


async def get_secret(connection: Connection, name: str) -> bytes:
    return check_secret(await connection.fetchval(_GET_SECRET, name), name)


def key_of(row: asyncpg.Record) -> Key:
    return Key(
        key_id=row["key_id"],
        namespace=row["namespace"],
        role=Role(row["role"]),
        name=row["name"],
        digest=row["digest"],
        created_at=row["created_at"],
        expires_at=row["expires_at"],
        revoked_at=row["revoked_at"],
        last_used_at=row["last_used_at"],
    )
