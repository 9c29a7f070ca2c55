"""The contract for versions of workflows: list and describe them, choose the default, move runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from kagzi.core.versions import CheckedRun, MovedRuns, Versions, WorkflowInterface
from kagzi.core.workflow_report import WorkflowReport


class VersionService(Protocol):
    async def list(self, namespace: str, workflow_type: str | None = None) -> Versions:
        """Lists the versions of one workflow, or of all. Runs are counted as `AdminService.count_runs` does."""
        ...

    async def describe(self, namespace: str, workflow_type: str, version: str | None = None) -> WorkflowInterface:
        """Returns what a version is for and what it takes, in the words of the worker that registered last with it.
        None asks for the version that a start gets if it names none. NotFound if no worker has ever offered it."""
        ...

    async def report(self, namespace: str, workflow_type: str | None = None) -> WorkflowReport:
        """Returns how the newest runs of a workflow have done, which of its failures are alike, and how long its steps
        take: about 1,000 runs at most, among the newest 20,000 of the namespace. Of one that has no runs there, an
        empty one. Of all workflows together if none is named, without steps and versions. It may be two seconds old."""
        ...

    async def set_default(
        self, namespace: str, workflow_type: str, version: str | None, *, force: bool = False
    ) -> None:
        """Gives this version to starts that name none, everywhere within a second; None: again the newest one, whose
        first worker came last. InvalidRequest if no worker has ever offered it, unless this is forced."""
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
        """Lets runs that wait or sleep go on in another version; those that a worker holds stay in theirs. A call looks
        at a bounded part of them, from `after` on. InvalidRequest if no worker has ever offered the version, unless
        this is forced. A dry run counts and changes nothing."""
        ...

    async def move_checked(
        self, namespace: str, workflow_type: str, from_version: str, to_version: str, runs: Sequence[CheckedRun]
    ) -> int:
        """Lets these runs, at most 1,000, go on in another version, and returns how many do: those that wait or sleep
        and that nobody has claimed since they were looked at. Whether workers offer the version is not asked."""
        ...
