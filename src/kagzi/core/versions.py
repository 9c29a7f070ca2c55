"""Versions of workflows: which ones workers have offered, and how much depends on each."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from kagzi.core.instant import Instant

FIRST_VERSION: Final = "1"  # of a workflow that nobody has ever offered; `resolve_version` of both stores says it, too


class WorkflowVersion(Struct, frozen=True, kw_only=True):
    """A version of a workflow. It is there if a worker has ever offered it, if somebody has made it the default, or if
    runs of it have not finished."""

    workflow_type: str
    version: str | None  # None: offered by workers that execute every version
    default: bool = False  # what a start that names no version gets now
    chosen: bool = False  # somebody has made it the default; else the default is the one first seen last
    queues: tuple[str, ...] = ()  # where workers have offered it
    first_seen_at: Instant | None = None  # when a worker first offered it; None: none has
    last_seen_at: Instant | None = None  # when one last registered with it, to the hour
    workers: int = 0  # online now, including those that execute every version
    pending: int = 0
    running: int = 0
    sleeping: int = 0
    at_least: bool = False  # there may be more runs than were counted
    oldest_run_at: Instant | None = None  # when the oldest of these was started

    @property
    def live(self) -> int:
        """How many runs of it have not finished."""
        return self.pending + self.running + self.sleeping

    @property
    def retirable(self) -> bool:
        """Whether its code can go: no run needs it, and no start that names no version gets it."""
        return self.version is not None and not (self.live or self.at_least or self.default)


class Versions(Struct, frozen=True):
    """Versions by workflow, the newest first; `more`: there are others than these."""

    items: tuple[WorkflowVersion, ...]
    more: bool = False


class CheckedRun(Struct, frozen=True):
    """A run whose history somebody has looked at, and how often it had been claimed by then: another claim may have
    recorded more."""

    run_id: str
    executions: int


class MovedRuns(Struct, frozen=True, kw_only=True):
    """How many runs went from one version to another, or would have, among those that were looked at; `after` leads to
    the rest, and is None at the end."""

    moved: int
    after: str | None = None
