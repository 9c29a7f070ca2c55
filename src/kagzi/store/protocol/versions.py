"""Versions of workflows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from kagzi.core import versions
from kagzi.core.instant import Span
from kagzi.core.versions import CheckedRun, WorkflowInterface


class MovedPage(Struct, frozen=True, kw_only=True):
    """How many runs have another version now, where they wait, and how far was looked: None at the end."""

    moved: int
    queues: tuple[str, ...]
    last: tuple[str, int, str] | None


class Versions(Protocol):
    """What workers have offered, and what starts by name get."""

    async def resolve(self, namespace: str, workflow_type: str) -> str:
        """What a start gets that names no version: the default that was set, else the version first seen last, else
        FIRST_VERSION."""
        ...

    async def set_default(self, namespace: str, workflow_type: str, version: str | None, force: bool) -> bool:
        """None: nobody chooses any more. False if no worker has ever offered this version and it is not forced: then
        nothing has changed."""
        ...

    async def read(self, namespace: str, workflow_type: str | None, limit: int, stale: Span) -> versions.Versions:
        """Of one workflow or of all, at most `limit`, with who is online for each and which live runs it has. Reads no
        more runs than `store.counting` allows."""
        ...

    async def read_interface(self, namespace: str, workflow_type: str, version: str) -> WorkflowInterface | None:
        """What was last told of this version; of one that only workers offer who execute every version, what those
        tell. None if no worker has offered it."""
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
