"""API keys, and secrets of the database."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from kagzi.api.keys import LiveKeys
from kagzi.core.audit import AuditEntry
from kagzi.core.instant import NEVER, Instant, Span
from kagzi.core.key import MOST_LIVE, SESSIONS_PER_KEY, Key, Role, read_key_position
from kagzi.core.page import Cursor
from kagzi.store.migrate import check_secret
from kagzi.store.sqlite.audit import append_audit
from kagzi.store.sqlite.nouns import Noun, reads, writes
from kagzi.store.sqlite.statements import execute


class Keys(Noun):
    """See `store.protocol.keys.Keys`."""

    @reads
    def live(self, connection: sqlite3.Connection) -> LiveKeys:
        now = self.now()
        (configured,) = execute(connection, "any_key").fetchone()
        keys = [_key_of(row) for row in execute(connection, "live_keys", (now, MOST_LIVE)).fetchall()]
        return LiveKeys(now=now, configured=bool(configured), keys={key.key_id: key for key in keys})

    @writes
    def create(self, connection: sqlite3.Connection, key: Key, expires_in: Span | None, entry: AuditEntry) -> Key:
        return create_key(connection, key, expires_in, entry, self.now())

    @reads
    def get(self, connection: sqlite3.Connection, key_id: str) -> Key | None:
        return get_key(connection, key_id)

    @reads
    def page(
        self, connection: sqlite3.Connection, namespace: str | None, cursor: Cursor | None, limit: int
    ) -> list[Key]:
        created_at, key_id = (NEVER, "") if cursor is None else read_key_position(cursor.key)
        rows = execute(connection, "list_keys", (namespace, created_at, key_id, limit)).fetchall()
        return [_key_of(row) for row in rows]

    @writes
    def rotate(
        self, connection: sqlite3.Connection, key_id: str, overlap: Span, new_id: str, digest: bytes, entry: AuditEntry
    ) -> Key | None:
        now = self.now()
        old = get_key(connection, key_id)
        if old is None or not old.live(now):
            return None
        ends_at = now + overlap if old.expires_at is None else min(old.expires_at, now + overlap)
        execute(connection, "expire_key", (key_id, ends_at))
        lifetime = None if old.expires_at is None else old.expires_at - old.created_at
        new = replace(old, key_id=new_id, digest=digest)
        return create_key(connection, new, lifetime, replace(entry, namespace=old.namespace), now)

    @writes
    def revoke(self, connection: sqlite3.Connection, key_id: str, entry: AuditEntry) -> Key | None:
        now = self.now()
        revoked = _first(execute(connection, "revoke_key", (key_id, now)).fetchall())
        if revoked is not None:
            append_audit(connection, (replace(entry, namespace=revoked.namespace),), now)
        return revoked

    @writes
    def touch(self, connection: sqlite3.Connection, used: Mapping[str, Instant]) -> None:
        for key_id, at in used.items():
            execute(connection, "touch_key", (key_id, at))

    @writes
    def open_session(self, connection: sqlite3.Connection, session_id: str, key_id: str, lifetime: Span) -> None:
        now = self.now()
        execute(connection, "open_session", (session_id, key_id, now + lifetime))
        execute(connection, "prune_sessions", (now, key_id, SESSIONS_PER_KEY))

    @reads
    def sessions(self, connection: sqlite3.Connection, session_ids: Sequence[str]) -> dict[str, str]:
        asked = msgspec.json.encode(list(session_ids)).decode()
        return dict(execute(connection, "live_sessions", (asked, self.now())).fetchall())

    @writes
    def end_session(self, connection: sqlite3.Connection, session_id: str) -> None:
        execute(connection, "end_session", (session_id,))


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


def _first(rows: list[tuple[Any, ...]]) -> Key | None:
    return _key_of(rows[0]) if rows else None


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
