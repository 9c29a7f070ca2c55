"""A job: one thing done to many runs, in the background, to each of them once."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from msgspec import Struct

from kagzi.core.instant import Instant


class JobAction(StrEnum):
    """What a job does to each run."""

    CANCEL = "cancel"
    TERMINATE = "terminate"
    WAKE = "wake"
    RETRY = "retry"
    RERUN = "rerun"
    DELETE = "delete"

    @property
    def repeats(self) -> bool:
        """Whether it starts runs."""
        return self in (JobAction.RETRY, JobAction.RERUN)


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
_PACES: Final = {JobAction.RETRY: 500, JobAction.RERUN: 500}
# Runs in one transaction. Those that are ended are locked until it is over, and the other duties of a process wait for
# it: it should take much less than 100 ms.
_BATCHES: Final = {
    JobAction.RETRY: 10,
    JobAction.RERUN: 10,
    JobAction.CANCEL: 25,
    JobAction.TERMINATE: 25,
    JobAction.WAKE: 25,
    JobAction.DELETE: 100,
}


class Job(Struct, frozen=True, kw_only=True):
    """What is known about a job. `matched` runs were found so far: `done` were changed, `skipped` could not be, because
    they had ended otherwise or had not ended, did not wait for a moment, or are children that go with their parent;
    `failed` should have been."""

    namespace: str
    job_id: str
    action: JobAction
    filter: bytes  # which runs: a RunFilter as JSON
    rate: int | None  # runs a second; None: the pace of its action
    children: bool  # whether children are repeated, too
    status: JobStatus
    matched: int
    done: int
    skipped: int
    failed: int
    created_by: str
    created_at: Instant
    finished_at: Instant | None = None
    error: str | None = None  # why it stopped, or what was wrong with the last run that failed


def pace_of(action: JobAction, rate: int | None) -> int:
    """Returns how many runs a second a job takes on."""
    return rate if rate is not None else _PACES.get(action, 5_000)


def batch_of(action: JobAction, rate: int | None) -> int:
    """Returns how many runs a job takes on in one transaction; no more than it may in a second."""
    return min(_BATCHES.get(action, 50), pace_of(action, rate))
