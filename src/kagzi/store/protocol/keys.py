"""API keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from kagzi.api.keys import LiveKeys
from kagzi.core.audit import AuditEntry
from kagzi.core.instant import Instant, Span
from kagzi.core.key import Key
from kagzi.core.page import Cursor


class Keys(Protocol):
    """API keys. Whoever changes one leaves an entry in the audit log in the same transaction."""

    async def live(self) -> LiveKeys: ...

    async def create(self, key: Key, expires_in: Span | None, entry: AuditEntry) -> Key:
        """The key as it was stored: made now, ending so much later."""
        ...

    async def get(self, key_id: str) -> Key | None:
        """Dead ones as well."""
        ...

    async def page(self, namespace: str | None, cursor: Cursor | None, limit: int) -> list[Key]:
        """The newest first, beyond the cursor (see `core.key.key_position`); None: of all namespaces."""
        ...

    async def rotate(self, key_id: str, overlap: Span, new_id: str, digest: bytes, entry: AuditEntry) -> Key | None:
        """A key like this one, which itself ends after the overlap, or when it would have ended anyway. None if there
        is no live one. What has an end gets a successor that lives as long."""
        ...

    async def revoke(self, key_id: str, entry: AuditEntry) -> Key | None:
        """None if there is no such key. One that was revoked before stays as it is."""
        ...

    async def touch(self, used: Mapping[str, Instant]) -> None:
        """When keys were last used, unless something later is stored."""
        ...
