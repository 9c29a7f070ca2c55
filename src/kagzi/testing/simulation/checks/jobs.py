"""What must hold of jobs over many runs, said a second time from the rows.

(25) a job meets each run that it is about once, in order, whatever dies, and none that came after it
(26) its counters are what it has done, and why it has left runs as they were, written in the transaction in which it
     does it
(27) it does not end before it has met them all, and does nothing once it has ended
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from kagzi.api.operations import Fork, RepeatRun
from kagzi.api.workflows import RunFilter
from kagzi.core.instant import Instant
from kagzi.core.job import Job, JobAction, JobOptions, Skipped
from kagzi.core.run import CLAIMABLE, RunStatus
from kagzi.core.step import step_name
from kagzi.core.wake import NEWS_ALONE
from kagzi.store.lines import HELD
from kagzi.testing.simulation.checks.rows import RunRow, Violation, wrong
from kagzi.testing.simulation.faults import Fault

if TYPE_CHECKING:
    from kagzi.testing.simulation.world import World


class JobRow(Struct, frozen=True):
    job_id: str
    action: str
    filter: bytes
    children: int
    status: str
    matched: int
    done: int
    skipped: int
    failed: int
    cursor: str
    last_run_id: str
    created_at: Instant
    next_at: Instant | None
    error: str | None
    options: bytes | None
    reasons: bytes | None

    @property
    def asked(self) -> JobOptions:
        return JobOptions() if self.options is None else msgspec.json.decode(self.options, type=JobOptions)

    @property
    def why(self) -> Counter[str]:
        return Counter({} if self.reasons is None else msgspec.json.decode(self.reasons, type=dict[str, int]))


_READ = f"SELECT {', '.join(JobRow.__struct_fields__)} FROM jobs ORDER BY job_id"
_LEFT_BEHIND = """
SELECT (SELECT count(*) FROM step_runs WHERE run_id = ?1) + (SELECT count(*) FROM signals WHERE run_id = ?1)
    + (SELECT count(*) FROM run_values WHERE run_id = ?1) + (SELECT count(*) FROM workflow_payloads WHERE run_id = ?1)
"""


class Jobs:
    def __init__(self, world: World, connection: sqlite3.Connection, runs: dict[str, RunRow]) -> None:
        self._world = world
        self._connection = connection
        self._runs = runs  # as they are after the transaction
        self._rows: dict[str, JobRow] = {}
        self._born: dict[str, Instant] = {}
        self._met: set[tuple[str, str]] = set()  # jobs and the runs they have met
        self._crashes: dict[str, int] = {}  # how many processes had died when a job began
        self._fresh: set[str] = set()  # runs that came into the world in this transaction
        self.ended: set[str] = set()  # runs that a job has ended, or told to end

    @property
    def open(self) -> list[JobRow]:
        return [row for row in self._rows.values() if row.status == "RUNNING"]

    def check(
        self,
        before: dict[str, RunRow],
        touched: list[RunRow],
        gone: list[RunRow],
        now: Instant,
        method: str,
        args: tuple[Any, ...],
        answer: Any,
    ) -> None:
        self._fresh = {row.run_id for row in touched if row.run_id not in before}
        for run_id in self._fresh:
            self._born[run_id] = now
        if not method.startswith("jobs."):
            if self._rows and self._connection.execute(_READ).fetchall() != list(map(_values, self._rows.values())):
                raise Violation(f"{method} has changed a job")
            return
        old = self._rows
        rows = self._rows = {row[0]: JobRow(*row) for row in self._connection.execute(_READ)}
        changed = [job_id for job_id in rows if rows[job_id] != old.get(job_id)]
        if method == "jobs.cancel" and args[1] in rows and rows[args[1]].status == "RUNNING":
            raise Violation(f"{rows[args[1]]} was cancelled, and goes on")  # (27)
        if old.keys() - rows.keys() or len(changed) > 1:
            raise Violation(f"{method} has changed {changed} of {list(old)}")
        if method == "jobs.run_batch":
            self._check_turn(old, changed, before, touched, gone, now, answer)
        elif changed:
            self._check_asked(old.get(changed[0]), rows[changed[0]], method, args)
        for row in gone:
            del self._born[row.run_id]

    def _check_asked(self, old: JobRow | None, new: JobRow, method: str, args: tuple[Any, ...]) -> None:
        if method == "jobs.start" and old is None:
            sound = new.job_id == args[0].job_id and new.status == "RUNNING" and not any(_counts(new))
            self._crashes[new.job_id] = self._deaths()
        else:
            stopped = None if old is None else msgspec.structs.replace(old, status="CANCELLED", next_at=None)
            sound = method == "jobs.cancel" and old is not None and old.status == "RUNNING" and new == stopped
            self._world.operation("job that was cancelled")
        if not sound:
            raise Violation(f"{method}{args!r:.200} has made {new} of {old}")

    def _check_turn(
        self,
        old: dict[str, JobRow],
        changed: list[str],
        before: dict[str, RunRow],
        touched: list[RunRow],
        gone: list[RunRow],
        now: Instant,
        answer: Any,
    ) -> None:
        due = [row for row in old.values() if row.next_at is not None and row.next_at <= now]
        if answer.job is None:
            if due or changed or touched or gone:
                raise Violation(f"nothing was done about {due}, and {changed} changed")
            return
        was, new = old[answer.job.job_id], self._rows[answer.job.job_id]
        if was not in due or any(job_id != was.job_id for job_id in changed):  # (27)
            raise Violation(f"a turn of {was} at {now} has changed {changed}")
        if new.cursor < was.cursor:
            raise Violation(f"{was} went back: {new}")  # (25)
        chosen = self._about(was, was.cursor, new.cursor, before, touched, gone)
        for run in chosen:
            if (was.job_id, run.run_id) in self._met:
                raise wrong(run.run_id, f"was met twice by {was}")  # (25)
            self._met.add((was.job_id, run.run_id))
        reasons = {run.run_id: self._why_not(was, run, now) for run in chosen}
        wanted = [run for run in chosen if reasons[run.run_id] is None]
        self._check_done(was, wanted, before, touched, gone)
        counts = [after - ago for ago, after in zip(_counts(was), _counts(new), strict=True)]
        if counts != [len(chosen), len(wanted), len(chosen) - len(wanted), 0]:  # (26)
            raise Violation(f"{was} has met {chosen}, done {wanted}, and counts {counts}: {new}")
        expected = was.why + Counter([reason.value for reason in reasons.values() if reason is not None])
        if new.why != expected:  # (26)
            raise Violation(f"{was} has left runs as they were for {expected}, and says {new.why}")
        if new.status == "RUNNING":
            if new.next_at is None or new.cursor == was.cursor:
                raise Violation(f"{new} goes on, and not further than {was}")  # (27)
            return
        beyond = self._about(was, new.cursor, was.last_run_id, before, touched, gone)
        if new.status != "COMPLETED" or beyond:  # (27)
            raise Violation(f"{new} has ended, and did not meet {beyond}")
        if any(_counts(was)) and was.cursor != new.cursor:
            self._world.operation("job of several batches")
        if self._deaths() > self._crashes[new.job_id]:
            self._world.operation("job during which a process died")

    def _about(
        self,
        job: JobRow,
        after: str,
        until: str,
        before: dict[str, RunRow],
        touched: list[RunRow],
        gone: list[RunRow],
    ) -> list[RunRow]:
        """Returns the runs between two cursors that the job is about, as they were before this transaction."""
        filter = msgspec.json.decode(job.filter, type=RunFilter)
        fresh = {row.run_id for row in touched if row.run_id not in before}
        rows = {row.run_id: row for row in (*self._runs.values(), *gone)} | before
        return [
            row
            for run_id, row in sorted(rows.items())
            if after < run_id <= min(until, job.last_run_id)
            and run_id not in fresh
            and self._born[run_id] <= job.created_at
            and (filter.workflow_type in (None, row.workflow_type))
            and (filter.status in (None, row.status))
        ]

    def _why_not(self, job: JobRow, run: RunRow, now: Instant) -> Skipped | None:
        """Why the job must leave this run as it is."""
        action, ended = JobAction(job.action), run.status.finished
        live = None if not ended else Skipped.ENDED
        match action:
            case JobAction.RETRY | JobAction.RERUN | JobAction.FORK:
                child = run.parent_policy not in (None, "none")
                if child and ended:
                    self._world.operation("child that a job repeats" if job.children else "child that a job skips")
                if child and not job.children:
                    return Skipped.CHILD
                if not ended:
                    return Skipped.LIVE
                if action.once and self._was_repeated(run.run_id):
                    self._world.operation("run that was repeated before a job")
                    return Skipped.REPEATED
                found = _forked_step(run, job.asked.from_step)
                if isinstance(found, Skipped):
                    self._world.operation("run that has no such step for a job")
                return found if isinstance(found, Skipped) else None
            case JobAction.DELETE:
                return None if ended else Skipped.LIVE
            case JobAction.WAKE:
                news = [] if run.waiting_for is None else msgspec.json.decode(run.waiting_for)
                alone = run.status is RunStatus.SLEEPING and NEWS_ALONE in news
                later = run.status in CLAIMABLE and (run.available_at or 0) > now
                waits = later and run.claim_key != HELD and not alone  # neither waits for a moment
                return live or (None if waits else Skipped.NO_MOMENT)
            case JobAction.MOVE:
                if live is None and run.version != job.asked.from_version:
                    return Skipped.OTHER_VERSION
                return live or (None if run.status in CLAIMABLE else Skipped.HELD)
            case _:
                return live

    def _was_repeated(self, run_id: str) -> bool:
        """Returns whether a run repeats this one, or is a fork of it, that was not made in this transaction."""
        rows = self._connection.execute("SELECT run_id FROM workflow_runs WHERE repeats_run_id = ?", (run_id,))
        return any(row[0] not in self._fresh for row in rows)

    def repeat_of(self, job: Job, run: RunRow) -> RepeatRun:
        """Returns what a job must have asked for where this run has come into the world."""
        source, action = self.source(run.run_id), job.action
        fork = None
        if action is JobAction.FORK:
            from_step = _forked_step(self._runs[source], job.options.from_step)
            if isinstance(from_step, Skipped):
                raise wrong(run.run_id, f"was forked from {source}, which has no such step, by {job}")
            fork = Fork(from_step=from_step, version=job.options.version)
        keeps = action is JobAction.RETRY or (fork is not None and fork.from_step is not None)
        return RepeatRun(
            namespace=run.namespace, run_id=run.run_id, of_run_id=source, keep_steps=keeps, keep_id=False, fork=fork
        )

    def _check_done(
        self,
        job: JobRow,
        wanted: list[RunRow],
        before: dict[str, RunRow],
        touched: list[RunRow],
        gone: list[RunRow],
    ) -> None:
        action = JobAction(job.action)
        ids = [run.run_id for run in wanted]
        born = sorted(self.source(row.run_id) for row in touched if row.run_id not in before)
        if born != (ids if action.repeats else []):
            raise Violation(f"{job} is to repeat {ids}, and has repeated {born}")  # (25)
        if sorted(row.run_id for row in gone) != (ids if action is JobAction.DELETE else []):
            raise Violation(f"{job} is to delete {ids}, and has deleted {gone}")
        fresh = [row for row in touched if row.run_id not in before]
        for row, run in zip(sorted(fresh, key=lambda row: self.source(row.run_id)), wanted, strict=False):
            if row.version != ((action is JobAction.FORK and job.asked.version) or run.version):
                raise wrong(row.run_id, f"is of version {row.version}, and repeats {run} for {job}")
        for row in gone:
            if self._connection.execute(_LEFT_BEHIND, (row.run_id,)).fetchone()[0]:
                raise wrong(row.run_id, "was deleted, and something of it was left behind")
        parents = {run.parent_run_id for run in wanted}
        for row in touched:
            if row.run_id in before and row.run_id not in ids and row.run_id not in parents:
                raise wrong(row.run_id, f"was changed by {job}, which is not about it")
        for run in wanted:
            if action is JobAction.MOVE and self._runs[run.run_id].version != job.asked.version:
                raise wrong(run.run_id, f"was not moved by {job}")
            if action in (JobAction.CANCEL, JobAction.TERMINATE):
                now = self._runs[run.run_id]
                if now.status is not RunStatus.CANCELLED and (
                    not now.cancel_requested or action is not JobAction.CANCEL
                ):
                    raise wrong(run.run_id, f"was not told to end by {job}: {now}")
                self.ended.add(run.run_id)
            self._world.operation(f"run that a job {_DID[action]}")

    def source(self, run_id: str) -> str:
        """Returns the run that this one repeats."""
        row = self._connection.execute("SELECT repeats_run_id FROM workflow_runs WHERE run_id = ?", (run_id,))
        found: str | None = row.fetchone()[0]
        if found is None:
            raise wrong(run_id, "was started by a job, and repeats nothing")
        return found

    def _deaths(self) -> int:
        return self._world.coverage[f"fault: {Fault.CRASH}"]


_DID = {
    JobAction.CANCEL: "cancelled",
    JobAction.TERMINATE: "terminated",
    JobAction.WAKE: "woke",
    JobAction.MOVE: "moved",
    JobAction.RETRY: "retried",
    JobAction.RERUN: "reran",
    JobAction.FORK: "forked",
    JobAction.DELETE: "deleted",
}


def _forked_step(run: RunRow, asked: str | None) -> str | Skipped | None:
    """Which step a fork of this run goes on from."""
    ended = [step.step_id for step in run.events.values()]
    alike = [step_id for step_id in ended if step_name(step_id) == asked]
    if asked is None or asked in ended:
        return asked
    if len(alike) == 1:
        return alike[0]
    return Skipped.MANY_STEPS if alike else Skipped.NO_STEP


def _counts(row: JobRow) -> tuple[int, ...]:
    return (row.matched, row.done, row.skipped, row.failed)


def _values(row: JobRow) -> tuple[Any, ...]:
    return msgspec.structs.astuple(row)
