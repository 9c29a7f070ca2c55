"""Namespaces."""

from __future__ import annotations

from typing import Protocol

from kagzi.core.namespace import Namespace


class Namespaces(Protocol):
    """Tenants."""

    async def ensure(self, namespace: str) -> None: ...

    async def create(self, namespace: str, display_name: str, description: str) -> Namespace | None:
        """None if there is one of this name."""
        ...

    async def get(self, namespace: str) -> Namespace | None: ...

    async def page(self, after: str, limit: int) -> list[Namespace]:
        """By name, byte for byte; those after this one."""
        ...

    async def update(
        self,
        namespace: str,
        display_name: str | None,
        description: str | None,
        enabled: bool | None,
        handler: tuple[str, str | None] | None = None,
    ) -> Namespace | None:
        """What is None stays. `handler` is the workflow that handles failures and its queue; an empty one is none. None
        if there is no namespace of this name."""
        ...

    async def disabled(self) -> list[str]: ...
