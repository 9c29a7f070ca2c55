"""Versions of workflows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from kagzi.core import versions
from kagzi.core.instant import Span
from kagzi.core.versions import CheckedRun, Resolved, WorkflowInterface


class MovedPage(Struct, frozen=True, kw_only=True):
    """The result of one call: how many runs have another version now, where they wait, and how far it looked (None: to
    the end)."""

    moved: int
    queues: tuple[str, ...]
    last: tuple[str, int, str] | None


class Versions(Protocol):
    """The versions that workers have offered, and the one that starts by name get."""

    async def resolve(self, namespace: str, workflow_type: str, version: str | None = None) -> Resolved:
        """Returns the version that a start gets which names none: the default that was set, else the newest one, which
        was offered first after all others, else FIRST_VERSION; and what a worker told last of this version, or of the
        one that is named."""
        ...

    async def set_default(self, namespace: str, workflow_type: str, version: str | None, force: bool) -> bool:
        """Sets the default version; None removes the choice. Returns False, and changes nothing, if no worker has ever
        offered this version and it is not forced."""
        ...

    async def read(self, namespace: str, workflow_type: str | None, limit: int, stale: Span) -> versions.Versions:
        """Returns the versions of one workflow or of all, at most `limit`, each with its online workers and its live
        runs. Reads no more runs than `store.counting` allows."""
        ...

    async def read_interface(self, namespace: str, workflow_type: str, version: str) -> WorkflowInterface | None:
        """Returns what a worker told last of this version; None if no worker has offered it. Of a version that only
        workers offer who execute every version, returns what those tell."""
        ...

    async def move_runs(
        self,
        namespace: str,
        workflow_type: str,
        from_version: str,
        to_version: str,
        after: tuple[str, int, str],
        limit: int,
        dry_run: bool,
    ) -> MovedPage:
        """Looks at `limit` runs that wait or sleep, in the order of claiming behind `after` (queue, claim key, run id),
        and gives those of this workflow and version the other one. Guarded by the status under the row's lock: one
        that is claimed meanwhile stays as it is."""
        ...

    async def move_checked_runs(
        self, namespace: str, workflow_type: str, from_version: str, to_version: str, runs: Sequence[CheckedRun]
    ) -> MovedPage:
        """Gives those of these runs the other version that are of this workflow and version, wait or sleep, and have
        been claimed as often as each of `runs` says. Guarded by all of that under the row's lock."""
        ...
