"""What people ask about the versions of workflows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from kagzi.core.versions import CheckedRun, MovedRuns, Versions, WorkflowInterface
from kagzi.core.workflow_report import WorkflowReport


class VersionService(Protocol):
    async def list(self, namespace: str, workflow_type: str | None = None) -> Versions:
        """The versions of one workflow, or of all. Runs are counted as `AdminService.count_runs` does."""
        ...

    async def describe(self, namespace: str, workflow_type: str, version: str | None = None) -> WorkflowInterface:
        """What a version is for and what it takes, as the worker said that registered last with it; None: the version
        that a start gets which names none. NotFound if no worker has ever offered it."""
        ...

    async def report(self, namespace: str, workflow_type: str | None = None) -> WorkflowReport:
        """How the newest runs of a workflow have done, which of its failures are alike, and how long its steps take:
        about 1,000 runs at most, among the newest 20,000 of the namespace. Of one that has no runs there, an empty
        one. Of all workflows together if none is named, without steps and versions. It may be two seconds old."""
        ...

    async def set_default(
        self, namespace: str, workflow_type: str, version: str | None, *, force: bool = False
    ) -> None:
        """Have starts that name no version get this one, everywhere within a second; None: the one first seen last
        again. InvalidRequest if no worker has ever offered it, unless this is forced."""
        ...

    async def move(
        self,
        namespace: str,
        workflow_type: str,
        from_version: str,
        to_version: str,
        *,
        dry_run: bool = False,
        force: bool = False,
        after: str = "",
    ) -> MovedRuns:
        """Have runs that wait or sleep go on in another version; those that a worker holds are left alone. Looks at a
        bounded part of what waits, from where `after` says. InvalidRequest if no worker has ever offered the version,
        unless this is forced. A dry run counts and changes nothing."""
        ...

    async def move_checked(
        self, namespace: str, workflow_type: str, from_version: str, to_version: str, runs: Sequence[CheckedRun]
    ) -> int:
        """Have these runs go on in another version, at most 1,000, and answer how many do: those that wait or sleep and
        that nobody has claimed since they were looked at. Whether workers offer the version is not asked."""
        ...
