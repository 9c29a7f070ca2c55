"""What people ask about the versions of workflows."""

from __future__ import annotations

from typing import Protocol

from kagzi.core.versions import Versions


class VersionService(Protocol):
    async def list(self, namespace: str, workflow_type: str | None = None) -> Versions:
        """The versions of one workflow, or of all. Runs are counted as `AdminService.count_runs` does."""
        ...

    async def set_default(
        self, namespace: str, workflow_type: str, version: str | None, *, force: bool = False
    ) -> None:
        """Have starts that name no version get this one, everywhere within a second; None: the one first seen last
        again. InvalidRequest if no worker has ever offered it, unless this is forced."""
        ...
