"""Jobs over many runs: which runs a batch is about, and where a job stands after it. For both databases.

A batch and the place where the job goes on are written in one transaction, under the lock of the job's row: each run
is changed once, whatever dies.
"""

from __future__ import annotations

from typing import assert_never

import msgspec
from msgspec import Struct

from kagzi.api.operations import Answer, CancelAnswer, CancelRun, RepeatRun, Started, TerminateRun, WakeAnswer
from kagzi.api.workflows import RunFilter
from kagzi.core.family import ParentPolicy
from kagzi.core.instant import SECOND, Instant
from kagzi.core.job import Job, JobAction, JobStatus, pace_of
from kagzi.core.run import CLAIMABLE, Run, RunStatus
from kagzi.errors import Conflict, NotFound
from kagzi.store.protocol.changes import Recovered, RunKey, Told
from kagzi.store.protocol.jobs import JobTurn
from kagzi.store.protocol.runs import FoundRuns

DISABLED = "the namespace is disabled: no runs are started in it"


class Move(Struct, frozen=True, kw_only=True):
    """Where a job stands after a batch."""

    cursor: str
    matched: int = 0
    done: int = 0
    skipped: int = 0
    failed: int = 0
    status: JobStatus = JobStatus.RUNNING
    next_at: Instant | None = None
    finished_at: Instant | None = None
    error: str | None = None


def encode_filter(filter: RunFilter) -> bytes:
    return msgspec.json.encode(filter)


def searched(job: Job) -> RunFilter:
    """Returns the filter of a job, for runs that were there when it began: by the clock of the database. Run ids alone
    would not do, since hosts make them, whose clocks differ."""
    filter = msgspec.json.decode(job.filter, type=RunFilter)
    before = job.created_at + 1
    if filter.created_before is not None:
        before = min(before, filter.created_before)
    return msgspec.structs.replace(filter, created_before=before)


def same_job(job: Job, action: JobAction, filter: bytes) -> Job | Conflict:
    """The job that has this id already, if it is the one that is asked for."""
    if (job.action, job.filter) == (action, filter):
        return job
    return Conflict(f"job id {job.job_id} belongs to another job: {job.action} with another filter")


class Batch:
    """The runs that a job takes on together, and what becomes of them."""

    def __init__(self, job: Job, found: FoundRuns, cursor: str, last_run_id: str, limit: int) -> None:
        self.job = job
        self.runs = [run for run in found.runs if run.run_id <= last_run_id]
        self._cursor = found.searched_until or (found.runs[-1].run_id if found.runs else cursor)
        beyond = len(self.runs) < len(found.runs) or self._cursor >= last_run_id
        self._over = beyond or (found.searched_until is None and len(found.runs) < limit)
        self.wanted = [run for run in self.runs if self._applies(run)]
        self.started: list[Recovered] = []
        self.told: list[tuple[str, CancelAnswer]] = []
        self.woken: list[Told] = []
        self._done = 0
        self._skipped = len(self.runs) - len(self.wanted)
        self._failed = 0
        self._error: str | None = None

    @property
    def keys(self) -> list[RunKey]:
        return [(run.namespace, run.run_id) for run in self.wanted]

    def _applies(self, run: Run) -> bool:
        action = self.job.action
        if action.repeats and not self.job.children and run.parent_policy not in (None, ParentPolicy.NONE):
            return False  # its parent starts it again if that is repeated; both would charge twice
        if action is JobAction.WAKE:
            return run.status in CLAIMABLE
        return run.status.finished is (action.repeats or action is JobAction.DELETE)

    def request(self, run: Run, run_id: str) -> CancelRun | TerminateRun | RepeatRun:
        """What is asked for of one run; `run_id` is the id of one that repeats it."""
        match self.job.action:
            case JobAction.CANCEL:
                return CancelRun(namespace=run.namespace, run_id=run.run_id)
            case JobAction.TERMINATE:
                reason = f"job {self.job.job_id}"
                return TerminateRun(namespace=run.namespace, run_id=run.run_id, reason=reason)
            case JobAction.RETRY | JobAction.RERUN as action:
                keep = action is JobAction.RETRY
                return RepeatRun(namespace=run.namespace, run_id=run_id, of_run_id=run.run_id, keep_steps=keep)
            case JobAction.WAKE | JobAction.DELETE:
                raise AssertionError("what is woken or deleted is asked for nothing")
            case action:
                assert_never(action)

    def answered(self, run: Run, answer: Answer) -> None:
        if isinstance(answer, Started):
            self._done += 1
            self.started.append(
                Recovered(
                    namespace=run.namespace,
                    run_id=answer.run_id,
                    task_queue=run.task_queue,
                    status=RunStatus.PENDING,
                    available_at=answer.available_at,
                )
            )
        elif isinstance(answer, CancelAnswer) and answer.effective:
            self._done += 1
            self.told.append((run.namespace, answer))
        elif isinstance(answer, CancelAnswer | NotFound):
            self._skipped += 1  # it has ended otherwise, or was deleted, since it was found
        else:
            self._failed += 1
            self._error = f"run {run.run_id}: {answer}"

    def woke(self, run: Run, answer: WakeAnswer | None) -> None:
        if answer is None or not answer.woken:
            self._skipped += 1  # it does not wait for a moment any more, or was deleted
            return
        self._done += 1
        self.woken.append(
            Told(
                namespace=run.namespace,
                run_id=run.run_id,
                task_queue=answer.task_queue,
                status=answer.status,
                available_at=answer.available_at,
                inbox_seq=0,
            )
        )

    def deleted(self, count: int) -> None:
        self._done += count
        self._skipped += len(self.wanted) - count

    def move(self, now: Instant) -> Move:
        pace = pace_of(self.job.action, self.job.rate)
        return Move(
            cursor=self._cursor,
            matched=len(self.runs),
            done=self._done,
            skipped=self._skipped,
            failed=self._failed,
            status=JobStatus.COMPLETED if self._over else JobStatus.RUNNING,
            next_at=None if self._over else now + len(self.runs) * SECOND // pace,
            finished_at=now if self._over else None,
            error=self._error,
        )

    def turn(self, job: Job) -> JobTurn:
        return JobTurn(job=job, started=self.started, told=self.told, woken=self.woken)
