"""The contract for keys and the audit log: what administrators ask, and what the gate asks to know a caller."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from kagzi.core.audit import AuditEntry
from kagzi.core.instant import Instant, Span
from kagzi.core.key import Key, Role
from kagzi.core.limits import DEFAULT_PAGE_SIZE
from kagzi.core.page import Page


class NewKey(Struct, frozen=True):
    """A key that was just made. `text` is the whole key: it is shown once and stored nowhere."""

    key: Key
    text: str


class LiveKeys(Struct, frozen=True, kw_only=True):
    """The keys that open something, at one instant."""

    now: Instant  # the database's time
    configured: bool  # whether there is, or ever was, a key: revoking the last one must not open the server
    keys: dict[str, Key]  # by key id


class KeySource(Protocol):
    """What the gate asks: the live keys, whether a secret is right, and when keys were used."""

    async def live(self) -> LiveKeys: ...

    def matches(self, key: Key, secret: bytes) -> bool:
        """Returns whether this is the key's secret; takes the same time for every wrong one."""
        ...

    async def used(self, at: dict[str, Instant]) -> None:
        """Takes note of when keys were last used, by key id."""
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


class KeyService(KeySource, Protocol):
    """Makes, lists, rotates and revokes keys. `actor` names who does it, for the audit log."""

    async def create(
        self, *, name: str, role: Role, namespace: str | None, actor: str, expires_in: Span | None = None
    ) -> NewKey:
        """Makes a key for a namespace, or for all of them (None). NotFound if there is no such namespace."""
        ...

    async def get(self, key_id: str) -> Key: ...

    async def list(
        self, *, namespace: str | None = None, page_size: int = DEFAULT_PAGE_SIZE, page_token: str | None = None
    ) -> Page[Key]:
        """Lists keys of one namespace or of all, the newest first, with those that have expired or were revoked."""
        ...

    async def rotate(self, key_id: str, *, overlap: Span, actor: str) -> NewKey:
        """Makes a new key in the place of this one, which expires after the overlap."""
        ...

    async def revoke(self, key_id: str, *, actor: str) -> Key:
        """Ends a key for good. Servers refuse it within seconds."""
        ...


class AuditFilter(Struct, frozen=True, kw_only=True):
    namespace: str | None = None
    actor: str | None = None


class AuditService(Protocol):
    def record(self, entry: AuditEntry) -> None:
        """Adds an entry, which is written soon and together with others. Does not wait."""
        ...

    async def write(self, entry: AuditEntry) -> None:
        """Adds an entry and returns when it is written."""
        ...

    async def list(
        self, filter: AuditFilter, *, page_size: int = DEFAULT_PAGE_SIZE, page_token: str | None = None
    ) -> Page[AuditEntry]:
        """Lists entries, the newest first."""
        ...
