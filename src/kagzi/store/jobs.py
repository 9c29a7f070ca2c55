"""Jobs over many runs: which runs a batch is about, and where a job stands after it. For both databases.

A batch and the place where the job goes on are written in one transaction, under the lock of the job's row: each run
is changed once, whatever dies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import assert_never

import msgspec
from msgspec import Struct

from kagzi.api.operations import Answer, CancelAnswer, CancelRun, Fork, RepeatRun, Started, TerminateRun, WakeAnswer
from kagzi.api.workflows import RunFilter
from kagzi.core.family import ParentPolicy
from kagzi.core.instant import SECOND, Instant
from kagzi.core.job import Job, JobAction, JobOptions, JobStatus, Skipped, pace_of
from kagzi.core.run import CLAIMABLE, Run, RunStatus
from kagzi.core.step import step_name
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
    reasons: bytes | None = None  # of all that were skipped so far
    status: JobStatus = JobStatus.RUNNING
    next_at: Instant | None = None
    finished_at: Instant | None = None
    error: str | None = None


def encode_filter(filter: RunFilter) -> bytes:
    return msgspec.json.encode(filter)


def encode_options(options: JobOptions) -> bytes | None:
    return msgspec.json.encode(options) if options != JobOptions() else None


def decode_options(data: bytes | None) -> JobOptions:
    return JobOptions() if data is None else msgspec.json.decode(data, type=JobOptions)


def encode_reasons(reasons: Mapping[str, int]) -> bytes | None:
    return msgspec.json.encode(reasons, order="sorted") if reasons else None


def decode_reasons(data: bytes | None) -> dict[str, int]:
    return {} if data is None else msgspec.json.decode(data, type=dict[str, int])


def searched(job: Job) -> RunFilter:
    """Returns the filter of a job, for runs that were there when it began: by the clock of the database. Run ids alone
    would not do, since hosts make them, whose clocks differ."""
    filter = msgspec.json.decode(job.filter, type=RunFilter)
    before = job.created_at + 1
    if filter.created_before is not None:
        before = min(before, filter.created_before)
    return msgspec.structs.replace(filter, created_before=before)


def same_job(job: Job, action: JobAction, filter: bytes, options: JobOptions) -> Job | Conflict:
    """Returns the job that has this id already, if it is the one that is asked for, else a Conflict."""
    if (job.action, job.filter, job.options) == (action, filter, options):
        return job
    return Conflict(f"job id {job.job_id} belongs to another job: {job.action} with another filter or other options")


def step_to_fork_from(asked: str, named: Sequence[str]) -> str | Skipped:
    """Returns the whole id of the step, of which people may give the name alone. `named` are the ids of steps that have
    ended and in which the name occurs."""
    if asked in named:
        return asked
    alike = [step_id for step_id in named if step_name(step_id) == asked]
    if len(alike) == 1:
        return alike[0]
    return Skipped.MANY_STEPS if alike else Skipped.NO_STEP


class Batch:
    """The runs that a job takes on together, and what becomes of them."""

    def __init__(self, job: Job, found: FoundRuns, cursor: str, last_run_id: str, limit: int) -> None:
        self.job = job
        self.runs = [run for run in found.runs if run.run_id <= last_run_id]
        self._cursor = found.searched_until or (found.runs[-1].run_id if found.runs else cursor)
        beyond = len(self.runs) < len(found.runs) or self._cursor >= last_run_id
        self._over = beyond or (found.searched_until is None and len(found.runs) < limit)
        self.wanted: list[Run] = []
        self.started: list[Recovered] = []
        self.told: list[tuple[str, CancelAnswer]] = []
        self.woken: list[Told] = []
        self._done = 0
        self._skipped = 0
        self._reasons = Counter(job.reasons)
        self._failed = 0
        self._error: str | None = None
        for run in self.runs:
            reason = self._why_not(run)
            if reason is None:
                self.wanted.append(run)
            else:
                self.skip(reason)

    @property
    def keys(self) -> list[RunKey]:
        return [(run.namespace, run.run_id) for run in self.wanted]

    def _why_not(self, run: Run) -> Skipped | None:
        """Why the job leaves this run as it is, as far as is seen before it is locked."""
        action = self.job.action
        if action.repeats and not self.job.children and run.parent_policy not in (None, ParentPolicy.NONE):
            return Skipped.CHILD  # its parent starts it again if that is repeated; both would charge twice
        if action.ended and not run.status.finished:
            return Skipped.LIVE
        if action.repeats and run.superseded_by is not None:
            return Skipped.SUPERSEDED  # what counts is the run that has its id, which is met, too
        if action.ended:
            return None
        if run.status.finished:
            return Skipped.ENDED
        if action is JobAction.WAKE and run.status not in CLAIMABLE:
            return Skipped.NO_MOMENT
        if action is JobAction.MOVE and run.version != self.job.options.from_version:
            return Skipped.OTHER_VERSION
        if action is JobAction.MOVE and run.status not in CLAIMABLE:
            return Skipped.HELD
        return None

    def pass_over(self, repeated: Collection[str]) -> None:
        """Leaves those of its runs as they are that other runs repeat already. To be seen when they are locked."""
        kept = [run for run in self.wanted if run.run_id not in repeated]
        self.skip(Skipped.REPEATED, len(self.wanted) - len(kept))
        self.wanted = kept

    def skip(self, reason: Skipped, count: int = 1) -> None:
        self._skipped += count
        if count:
            self._reasons[reason] += count

    def request(self, run: Run, run_id: str, from_step: str | None = None) -> CancelRun | TerminateRun | RepeatRun:
        """Returns the request that is made for one run; `run_id` is the id of one that repeats it, `from_step` the
        whole id of the step to fork from."""
        match self.job.action:
            case JobAction.CANCEL:
                return CancelRun(namespace=run.namespace, run_id=run.run_id)
            case JobAction.TERMINATE:
                reason = f"job {self.job.job_id}"
                return TerminateRun(namespace=run.namespace, run_id=run.run_id, reason=reason)
            case JobAction.RETRY | JobAction.RERUN as action:
                keep = action is JobAction.RETRY
                return RepeatRun(namespace=run.namespace, run_id=run_id, of_run_id=run.run_id, keep_steps=keep)
            case JobAction.FORK:
                return RepeatRun(
                    namespace=run.namespace,
                    run_id=run_id,
                    of_run_id=run.run_id,
                    keep_steps=from_step is not None,
                    keep_id=False,
                    fork=Fork(from_step=from_step, version=self.job.options.version),
                )
            case JobAction.WAKE | JobAction.MOVE | JobAction.DELETE:
                raise AssertionError("what is woken, moved or deleted is asked for nothing")
            case action:
                assert_never(action)

    def answered(self, run: Run, answer: Answer) -> None:
        if isinstance(answer, Started) and answer.already_exists:
            self.skip(Skipped.SUPERSEDED)
        elif isinstance(answer, Started):
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
            self.skip(Skipped.GONE)
        else:
            self._failed += 1
            self._error = f"run {run.run_id}: {answer}"

    def woke(self, run: Run, answer: WakeAnswer | None) -> None:
        if answer is None or not answer.woken:
            self.skip(Skipped.GONE if answer is None or answer.status.finished else Skipped.NO_MOMENT)
            return
        self._done += 1
        self._tell(run, answer.status, answer.available_at)

    def moved(self, run_ids: Collection[str]) -> None:
        """These have the other version now; each of the others was claimed or ended since it was found."""
        for run in self.wanted:
            if run.run_id in run_ids:
                self._done += 1
                self._tell(run, run.status, run.available_at or 0)
            else:
                self.skip(Skipped.HELD)

    def _tell(self, run: Run, status: RunStatus, available_at: Instant) -> None:
        self.woken.append(
            Told(
                namespace=run.namespace,
                run_id=run.run_id,
                task_queue=run.task_queue,
                status=status,
                available_at=available_at,
                inbox_seq=0,
            )
        )

    def deleted(self, count: int) -> None:
        self._done += count
        self.skip(Skipped.GONE, len(self.wanted) - count)

    def move(self, now: Instant) -> Move:
        pace = pace_of(self.job.action, self.job.rate)
        return Move(
            cursor=self._cursor,
            matched=len(self.runs),
            done=self._done,
            skipped=self._skipped,
            failed=self._failed,
            reasons=encode_reasons(self._reasons),
            status=JobStatus.COMPLETED if self._over else JobStatus.RUNNING,
            next_at=None if self._over else now + len(self.runs) * SECOND // pace,
            finished_at=now if self._over else None,
            error=self._error,
        )

    def turn(self, job: Job) -> JobTurn:
        return JobTurn(job=job, started=self.started, told=self.told, woken=self.woken)
