"""API keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from kagzi.api.keys import LiveKeys
from kagzi.core.audit import AuditEntry
from kagzi.core.instant import Instant, Span
from kagzi.core.key import Key
from kagzi.core.page import Cursor


class Keys(Protocol):
    """API keys. Each change of one writes its entry of the audit log in the same transaction."""

    async def live(self) -> LiveKeys: ...

    async def create(self, key: Key, expires_in: Span | None, entry: AuditEntry) -> Key:
        """Stores a key and returns it as it was stored: made now, ending so much later."""
        ...

    async def get(self, key_id: str) -> Key | None:
        """Returns a key, also one that has expired or was revoked."""
        ...

    async def page(self, namespace: str | None, cursor: Cursor | None, limit: int) -> list[Key]:
        """Returns keys, the newest first, beyond the cursor (see `core.key.key_position`); None: of all namespaces."""
        ...

    async def rotate(self, key_id: str, overlap: Span, new_id: str, digest: bytes, entry: AuditEntry) -> Key | None:
        """Stores a key like this one, which itself ends after the overlap, or when it would have ended anyway. None if
        there is no live one. The successor of a key that expires lives as long as that one did."""
        ...

    async def revoke(self, key_id: str, entry: AuditEntry) -> Key | None:
        """Revokes a key; None if there is none. One that was revoked before stays as it is."""
        ...

    async def touch(self, used: Mapping[str, Instant]) -> None:
        """Notes when keys were last used, unless something later is stored."""
        ...

    async def open_session(self, session_id: str, key_id: str, lifetime: Span) -> None:
        """Notes that somebody has logged in to the dashboard with a key, for so long."""
        ...

    async def sessions(self, session_ids: Sequence[str]) -> dict[str, str]:
        """Returns the key id of each of these sessions that is not over."""
        ...

    async def end_session(self, session_id: str) -> None:
        """Ends a session, on every server."""
        ...
