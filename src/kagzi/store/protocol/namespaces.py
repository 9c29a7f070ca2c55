"""Namespaces: tenants that see nothing of each other."""

from __future__ import annotations

from typing import Protocol

from kagzi.core.namespace import Namespace


class Namespaces(Protocol):
    """The namespaces of a database."""

    async def ensure(self, namespace: str) -> None: ...

    async def create(self, namespace: str, display_name: str, description: str) -> Namespace | None:
        """Inserts a namespace; None if there is one of this name."""
        ...

    async def get(self, namespace: str) -> Namespace | None: ...

    async def page(self, after: str, limit: int) -> list[Namespace]:
        """Returns namespaces in the order of their names, byte for byte; those after this one."""
        ...

    async def update(
        self,
        namespace: str,
        display_name: str | None,
        description: str | None,
        enabled: bool | None,
        handler: tuple[str, str | None] | None = None,
    ) -> Namespace | None:
        """Changes what is not None. `handler` is the workflow that handles failures and its queue; an empty one is
        none. None if there is no namespace of this name."""
        ...

    async def disabled(self) -> list[str]: ...
