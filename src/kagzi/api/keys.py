"""What administrators ask about keys and the audit log, and what a gate asks to know a caller."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from kagzi.core.audit import AuditEntry
from kagzi.core.instant import Instant, Span
from kagzi.core.key import Key, Role
from kagzi.core.limits import DEFAULT_PAGE_SIZE
from kagzi.core.page import Page


class NewKey(Struct, frozen=True):
    """A key that was just made. `text` is shown once and known to nobody afterwards."""

    key: Key
    text: str


class LiveKeys(Struct, frozen=True, kw_only=True):
    """The keys that open something, at one instant."""

    now: Instant  # the database's time
    configured: bool  # whether there is, or ever was, a key: revoking the last one must not open the server
    keys: dict[str, Key]  # by key id


class KeySource(Protocol):
    """What a gate asks."""

    async def live(self) -> LiveKeys: ...

    def matches(self, key: Key, secret: bytes) -> bool:
        """Whether this is the key's secret; takes the same time whatever is wrong with it."""
        ...

    async def used(self, at: dict[str, Instant]) -> None:
        """When keys were last used, by key id."""
        ...


class KeyService(KeySource, Protocol):
    """`actor` is who does it, for the audit log."""

    async def create(
        self, *, name: str, role: Role, namespace: str | None, actor: str, expires_in: Span | None = None
    ) -> NewKey:
        """NotFound if there is no such namespace; None is for all of them."""
        ...

    async def get(self, key_id: str) -> Key: ...

    async def list(
        self, *, namespace: str | None = None, page_size: int = DEFAULT_PAGE_SIZE, page_token: str | None = None
    ) -> Page[Key]:
        """The newest first, dead ones included; of one namespace or of all."""
        ...

    async def rotate(self, key_id: str, *, overlap: Span, actor: str) -> NewKey:
        """A new key in the place of this one, which expires after the overlap."""
        ...

    async def revoke(self, key_id: str, *, actor: str) -> Key:
        """Servers refuse it within seconds, for good."""
        ...


class AuditFilter(Struct, frozen=True, kw_only=True):
    namespace: str | None = None
    actor: str | None = None


class AuditService(Protocol):
    def record(self, entry: AuditEntry) -> None:
        """Have it written soon, together with others. Does not wait."""
        ...

    async def write(self, entry: AuditEntry) -> None:
        """Write it now."""
        ...

    async def list(
        self, filter: AuditFilter, *, page_size: int = DEFAULT_PAGE_SIZE, page_token: str | None = None
    ) -> Page[AuditEntry]:
        """The newest first."""
        ...
