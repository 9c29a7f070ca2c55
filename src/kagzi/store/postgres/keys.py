"""API keys, and secrets of the database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from kagzi.api.keys import LiveKeys
from kagzi.core.audit import AuditEntry
from kagzi.core.instant import NEVER, Instant, Span
from kagzi.core.key import MOST_LIVE, SESSIONS_PER_KEY, Key, Role, read_key_position
from kagzi.core.page import Cursor
from kagzi.store.migrate import check_secret
from kagzi.store.postgres.audit import columns_of_entry
from kagzi.store.postgres.nouns import Noun, asks
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
_OPEN_SESSION = STATEMENTS["open_session"]
_LIVE_SESSIONS = STATEMENTS["live_sessions"]
_END_SESSION = STATEMENTS["end_session"]
_GET_SECRET = STATEMENTS["get_secret"]


class Keys(Noun):
    """See `store.protocol.keys.Keys`."""

    @asks
    async def live(self, connection: Connection) -> LiveKeys:
        now = self.now()
        rows = await connection.fetch(_LIVE_KEYS, now, MOST_LIVE)
        keys = [key_of(row) for row in rows if row["key_id"] is not None]
        return LiveKeys(now=rows[0]["now"], configured=rows[0]["configured"], keys={key.key_id: key for key in keys})

    @asks
    async def create(self, connection: Connection, key: Key, expires_in: Span | None, entry: AuditEntry) -> Key:
        row = await connection.fetchrow(
            _CREATE_KEY,
            self.now(),
            key.key_id,
            key.namespace,
            key.role,
            key.name,
            key.digest,
            expires_in,
            entry.namespace,
            *columns_of_entry(entry),
        )
        assert row is not None
        return key_of(row)

    @asks
    async def get(self, connection: Connection, key_id: str) -> Key | None:
        row = await connection.fetchrow(_GET_KEY, key_id)
        return None if row is None else key_of(row)

    @asks
    async def page(self, connection: Connection, namespace: str | None, cursor: Cursor | None, limit: int) -> list[Key]:
        created_at, key_id = (NEVER, "") if cursor is None else read_key_position(cursor.key)
        return [key_of(row) for row in await connection.fetch(_LIST_KEYS, namespace, created_at, key_id, limit)]

    @asks
    async def rotate(
        self, connection: Connection, key_id: str, overlap: Span, new_id: str, digest: bytes, entry: AuditEntry
    ) -> Key | None:
        row = await connection.fetchrow(
            _ROTATE_KEY, self.now(), key_id, overlap, new_id, digest, *columns_of_entry(entry)
        )
        return None if row is None else key_of(row)

    @asks
    async def revoke(self, connection: Connection, key_id: str, entry: AuditEntry) -> Key | None:
        row = await connection.fetchrow(_REVOKE_KEY, self.now(), key_id, *columns_of_entry(entry))
        return None if row is None else key_of(row)

    @asks
    async def touch(self, connection: Connection, used: Mapping[str, Instant]) -> None:
        await connection.execute(_TOUCH_KEYS, list(used), list(used.values()))

    @asks
    async def open_session(self, connection: Connection, session_id: str, key_id: str, lifetime: Span) -> None:
        await connection.execute(_OPEN_SESSION, self.now(), session_id, key_id, lifetime, SESSIONS_PER_KEY)

    @asks
    async def sessions(self, connection: Connection, session_ids: Sequence[str]) -> dict[str, str]:
        rows = await connection.fetch(_LIVE_SESSIONS, self.now(), list(session_ids))
        return {row["session_id"]: row["key_id"] for row in rows}

    @asks
    async def end_session(self, connection: Connection, session_id: str) -> None:
        await connection.execute(_END_SESSION, session_id)


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
