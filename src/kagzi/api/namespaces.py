"""The contract for namespaces, which administrators make, describe and disable."""

from __future__ import annotations

from typing import Protocol

from kagzi.core.limits import DEFAULT_PAGE_SIZE
from kagzi.core.namespace import Namespace
from kagzi.core.page import Page


class NamespaceService(Protocol):
    async def create(self, namespace: str, *, display_name: str = "", description: str = "") -> Namespace:
        """Makes a namespace; Conflict if there is one of this name."""
        ...

    async def get(self, namespace: str) -> Namespace:
        """Returns a namespace; NotFound if there is none."""
        ...

    async def list(self, *, page_size: int = DEFAULT_PAGE_SIZE, page_token: str | None = None) -> Page[Namespace]:
        """Lists namespaces by name."""
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
        """Changes what is not None. `on_failure` is the workflow that is started when a run of the namespace fails;
        empty: none. It is given together with the queue in which its runs wait; None: that of the failed run."""
        ...

    async def enable(self, namespace: str, enabled: bool) -> Namespace:
        """Lets runs be started in the namespace, or has starts refused everywhere within seconds. Runs that are there
        go on."""
        ...
