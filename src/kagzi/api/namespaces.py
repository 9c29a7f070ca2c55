"""What administrators ask about namespaces."""

from __future__ import annotations

from typing import Protocol

from kagzi.core.limits import DEFAULT_PAGE_SIZE
from kagzi.core.namespace import Namespace
from kagzi.core.page import Page


class NamespaceService(Protocol):
    async def create(self, namespace: str, *, display_name: str = "", description: str = "") -> Namespace:
        """Conflict if there is one of this name."""
        ...

    async def get(self, namespace: str) -> Namespace:
        """NotFound if there is none."""
        ...

    async def list(self, *, page_size: int = DEFAULT_PAGE_SIZE, page_token: str | None = None) -> Page[Namespace]:
        """By name."""
        ...

    async def update(
        self,
        namespace: str,
        *,
        display_name: str | None = None,
        description: str | None = None,
        on_failure: str | None = None,
        on_failure_queue: str | None = None,
    ) -> Namespace:
        """What is None stays. `on_failure` is the workflow that is started when a run of it fails, and is given
        together with the queue in which that one waits; None: in that of the failed run. Empty: nothing is started."""
        ...

    async def enable(self, namespace: str, enabled: bool) -> Namespace:
        """Let runs be started in it, or refuse that everywhere within seconds. What runs goes on."""
        ...
