"""A job: one thing done to many runs, in the background, to each of them once."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from msgspec import Struct

from kagzi.core.instant import Instant


class JobAction(StrEnum):
    """What a job does to each run."""

    CANCEL = "cancel"
    TERMINATE = "terminate"
    WAKE = "wake"
    MOVE = "move"
    RETRY = "retry"
    RERUN = "rerun"
    FORK = "fork"
    DELETE = "delete"

    @property
    def repeats(self) -> bool:
        """Whether it starts runs."""
        return self in (JobAction.RETRY, JobAction.RERUN, JobAction.FORK)

    @property
    def once(self) -> bool:
        """Whether it passes over runs that were repeated before, by whomever: else a job that is started once more
        would charge twice. One that forks does not: it is started once more because the forks were wrong."""
        return self in (JobAction.RETRY, JobAction.RERUN)

    @property
    def ended(self) -> bool:
        """Whether it is for runs that have ended."""
        return self.repeats or self is JobAction.DELETE


class JobStatus(StrEnum):
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    CANCELLED = "CANCELLED"
    FAILED = "FAILED"

    @property
    def finished(self) -> bool:
        return self is not JobStatus.RUNNING


MOST_RATE: Final = 10_000  # runs a second
MOST_RUNNING: Final = 10  # jobs of a namespace at once
MOST_COUNTED: Final = 10_000  # runs, by a preview
PREVIEWED: Final = 20  # runs that a preview shows
JOB_RETENTION_DAYS: Final = 30
# How fast jobs go unless somebody says otherwise. What is started anew takes workers, too.
_PACES: Final = {JobAction.RETRY: 500, JobAction.RERUN: 500, JobAction.FORK: 500}
# Runs in one transaction. Those that are ended are locked until it is over, and the other duties of a process wait for
# it: it should take much less than 100 ms.
_BATCHES: Final = {
    JobAction.RETRY: 10,
    JobAction.RERUN: 10,
    JobAction.FORK: 10,
    JobAction.CANCEL: 25,
    JobAction.TERMINATE: 25,
    JobAction.WAKE: 25,
    JobAction.MOVE: 100,
    JobAction.DELETE: 100,
}


class JobOptions(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an action needs to know beside which runs are meant. `fork`: from which step (its id, or its name if there
    is one of it; None: from the beginning), and into which version (None: the one each run has). `move`: from which
    version into which."""

    from_step: str | None = None
    from_version: str | None = None
    version: str | None = None


def wrong_option(action: JobAction, options: JobOptions, workflow: str | None) -> tuple[str, str] | None:
    """Returns which option an action can do nothing with, or lacks, and why; `workflow` is the one of the filter."""
    for field, of in (("from_step", JobAction.FORK), ("from_version", JobAction.MOVE)):
        if getattr(options, field) is not None and action is not of:
            return field, f"{field} is for the action {of}, not for {action}"
    if options.version is not None and action not in (JobAction.FORK, JobAction.MOVE):
        return "version", f"version is for the actions fork and move, not for {action}"
    if action is JobAction.MOVE:
        for field in ("from_version", "version"):
            if getattr(options, field) is None:
                return field, f"{field} is missing: say from which version runs are moved, and to which"
        if options.from_version == options.version:
            return "version", f"from_version and version are both {options.version!r}; there is nothing to move"
    if options.version is not None and workflow is None:
        return "version", "a version is one of a single workflow: say which one in the filter, too (workflow)"
    return None


class Skipped(StrEnum):
    """Why a job leaves a run as it is, in a word for programs; `why_skipped` says it to people."""

    CHILD = "child"
    ENDED = "ended"
    LIVE = "live"
    SUPERSEDED = "superseded"
    REPEATED = "repeated"
    NO_MOMENT = "no_moment"
    NO_STEP = "no_step"
    MANY_STEPS = "many_steps"
    HELD = "held"
    OTHER_VERSION = "other_version"
    GONE = "gone"


# Each stands behind a number of runs.
_WORDS: Final[dict[str, str]] = {
    Skipped.CHILD: "are children, which their parents start again",
    Skipped.ENDED: "have ended",
    Skipped.LIVE: "have not ended",
    Skipped.SUPERSEDED: "were repeated before, by runs that have their ids",
    Skipped.REPEATED: "were repeated or forked before",
    Skipped.NO_MOMENT: "do not wait for a moment",
    Skipped.NO_STEP: "have no such step that has ended",
    Skipped.MANY_STEPS: "have several steps of that name",
    Skipped.HELD: "are held by a worker",
    Skipped.OTHER_VERSION: "are of another version",
    Skipped.GONE: "ended or were deleted meanwhile",
}


class Job(Struct, frozen=True, kw_only=True):
    """What is known about a job. `matched` runs were found so far: `done` were changed, `skipped` could not be, for the
    reasons that are counted in `reasons`; `failed` should have been."""

    namespace: str
    job_id: str
    action: JobAction
    filter: bytes  # which runs: a RunFilter as JSON
    rate: int | None  # runs a second; None: the pace of its action
    children: bool  # whether children are repeated, too
    options: JobOptions = JobOptions()
    status: JobStatus
    matched: int
    done: int
    skipped: int
    failed: int
    reasons: dict[str, int] = {}  # `Skipped`, and how many runs
    created_by: str
    created_at: Instant
    finished_at: Instant | None = None
    error: str | None = None  # why it stopped, or what was wrong with the last run that failed


def pace_of(action: JobAction, rate: int | None) -> int:
    """Returns how many runs a second a job takes on."""
    return rate if rate is not None else _PACES.get(action, 5_000)


def why_skipped(reasons: Mapping[str, int]) -> str:
    """Returns in words why runs were left as they are, the most frequent reason first; empty without any."""
    often = sorted(reasons.items(), key=lambda each: (-each[1], each[0]))
    return "; ".join([f"{count:,} {_WORDS.get(reason, reason)}" for reason, count in often])


def batch_of(action: JobAction, rate: int | None) -> int:
    """Returns how many runs a job takes on in one transaction; no more than it may in a second."""
    return min(_BATCHES.get(action, 50), pace_of(action, rate))
