"""API keys, the audit log, and secrets of the database."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec.structs import replace

from kagzi.api.keys import AuditFilter, LiveKeys
from kagzi.core.audit import AUDIT_RETENTION, AuditEntry
from kagzi.core.instant import NEVER, Instant, Span
from kagzi.core.key import MOST_LIVE, Key, Role, read_key_position
from kagzi.core.page import Cursor
from kagzi.store.migrate import check_secret
from kagzi.store.sqlite.statements import execute

_LAST: Final = 2**63 - 1


def live_keys(connection: sqlite3.Connection, now: Instant) -> LiveKeys:
    (configured,) = execute(connection, "any_key").fetchone()
    keys = [_key_of(row) for row in execute(connection, "live_keys", (now, MOST_LIVE)).fetchall()]
    return LiveKeys(now=now, configured=bool(configured), keys={key.key_id: key for key in keys})


def create_key(
    connection: sqlite3.Connection, key: Key, expires_in: Span | None, entry: AuditEntry, now: Instant
) -> Key:
    expires_at = None if expires_in is None else now + expires_in
    values = (key.key_id, key.namespace, key.role.value, key.name, key.digest, now, expires_at)
    made = _key_of(execute(connection, "create_key", values).fetchall()[0])
    append_audit(connection, (entry,), now)
    return made


def get_key(connection: sqlite3.Connection, key_id: str) -> Key | None:
    return _first(execute(connection, "get_key", (key_id,)).fetchall())


def list_keys(connection: sqlite3.Connection, namespace: str | None, cursor: Cursor | None, limit: int) -> list[Key]:
    created_at, key_id = (NEVER, "") if cursor is None else read_key_position(cursor.key)
    rows = execute(connection, "list_keys", (namespace, created_at, key_id, limit)).fetchall()
    return [_key_of(row) for row in rows]


def rotate_key(
    connection: sqlite3.Connection,
    key_id: str,
    overlap: Span,
    new_id: str,
    digest: bytes,
    entry: AuditEntry,
    now: Instant,
) -> Key | None:
    old = get_key(connection, key_id)
    if old is None or not old.live(now):
        return None
    ends_at = now + overlap if old.expires_at is None else min(old.expires_at, now + overlap)
    execute(connection, "expire_key", (key_id, ends_at))
    lifetime = None if old.expires_at is None else old.expires_at - old.created_at
    new = replace(old, key_id=new_id, digest=digest)
    return create_key(connection, new, lifetime, replace(entry, namespace=old.namespace), now)


def revoke_key(connection: sqlite3.Connection, key_id: str, entry: AuditEntry, now: Instant) -> Key | None:
    revoked = _first(execute(connection, "revoke_key", (key_id, now)).fetchall())
    if revoked is not None:
        append_audit(connection, (replace(entry, namespace=revoked.namespace),), now)
    return revoked


def touch_keys(connection: sqlite3.Connection, used: Mapping[str, Instant]) -> None:
    for key_id, at in used.items():
        execute(connection, "touch_key", (key_id, at))


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


def list_audit(
    connection: sqlite3.Connection, filter: AuditFilter, cursor: Cursor | None, limit: int
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


def _first(rows: list[tuple[Any, ...]]) -> Key | None:
    return _key_of(rows[0]) if rows else None


def has_old_audit(connection: sqlite3.Connection, limit: int, now: Instant) -> bool:
    return bool(execute(connection, "find_old_audit", (limit, now - AUDIT_RETENTION)).fetchone()[0])


def prune_audit(connection: sqlite3.Connection, limit: int, now: Instant) -> int:
    return execute(connection, "prune_audit", (limit, now - AUDIT_RETENTION)).rowcount


def get_secret(connection: sqlite3.Connection, name: str) -> bytes:
    row = execute(connection, "get_secret", (name,)).fetchone()
    return check_secret(None if row is None else row[0], name)


def _key_of(row: tuple[Any, ...]) -> Key:
    return Key(
        key_id=row[0],
        namespace=row[1],
        role=Role(row[2]),
        name=row[3],
        digest=row[4],
        created_at=row[5],
        expires_at=row[6],
        revoked_at=row[7],
        last_used_at=row[8],
    )
