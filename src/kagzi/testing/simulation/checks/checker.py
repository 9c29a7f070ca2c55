"""What any transaction may do, and which one is looked at how."""

from __future__ import annotations

import sqlite3
from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec

from kagzi.api.operations import RepeatRun
from kagzi.core.failure import Failure
from kagzi.core.instant import Instant
from kagzi.core.job import Job, JobAction
from kagzi.core.run import CLAIMABLE, FOLLOWS, RunStatus
from kagzi.core.step import StepKind, StepStatus, step_name
from kagzi.testing.simulation.checks.answers import Answers
from kagzi.testing.simulation.checks.debounce import Debounced
from kagzi.testing.simulation.checks.families import Families
from kagzi.testing.simulation.checks.ids import Ids, superseded
from kagzi.testing.simulation.checks.jobs import Jobs
from kagzi.testing.simulation.checks.limits import Limits
from kagzi.testing.simulation.checks.repeats import begins_anew, check_anew, check_repeat
from kagzi.testing.simulation.checks.rows import (
    RunRow,
    StepRow,
    Violation,
    difference,
    read_run,
    same_but_timeouts,
    wrong,
)
from kagzi.testing.simulation.checks.schedules import Schedules
from kagzi.testing.simulation.checks.transactions import LONGEST_CALL, Transactions
from kagzi.testing.simulation.handlers import handlers_problem
from kagzi.testing.simulation.signals import inbox_problem
from kagzi.testing.simulation.steps import ATTEMPTS
from kagzi.testing.simulation.values import values_problem

if TYPE_CHECKING:
    from kagzi.testing.simulation.world import World


_UNCHANGING = (
    *(
        "namespace",
        "external_id",
        "workflow_type",
        "task_queue",
        "input",
        "deadline_at",
        "on_failure",
        "handles_run_id",
    ),
    *("parent_run_id", "parent_step_id", "parent_policy", "depth", "schedule_group_id", "scheduled_for"),
)

# Steps of the product itself, which tell a child something.
_CALLS = (".cancel", ".signal")

_TRIGGERS = """
CREATE TEMP TABLE touched (run_id TEXT, steps INTEGER);
CREATE TEMP TRIGGER run_made AFTER INSERT ON main.workflow_runs WHEN NEW.cron_expr IS NULL
    BEGIN INSERT INTO touched VALUES (NEW.run_id, 0); END;
CREATE TEMP TRIGGER run_changed AFTER UPDATE ON main.workflow_runs WHEN NEW.cron_expr IS NULL
    BEGIN INSERT INTO touched VALUES (NEW.run_id, 0); END;
CREATE TEMP TRIGGER run_deleted AFTER DELETE ON main.workflow_runs WHEN OLD.cron_expr IS NULL
    BEGIN INSERT INTO touched VALUES (OLD.run_id, 2); END;
CREATE TEMP TRIGGER signal_made AFTER INSERT ON main.signals
    BEGIN INSERT INTO touched VALUES (NEW.run_id, 0); END;
CREATE TEMP TRIGGER signal_changed AFTER UPDATE ON main.signals
    BEGIN INSERT INTO touched VALUES (NEW.run_id, 0); END;
CREATE TEMP TRIGGER signal_deleted AFTER DELETE ON main.signals
    BEGIN INSERT INTO touched VALUES (OLD.run_id, 2); END;
CREATE TEMP TRIGGER value_made AFTER INSERT ON main.run_values
    BEGIN INSERT INTO touched VALUES (NEW.run_id, 0); END;
CREATE TEMP TRIGGER value_changed AFTER UPDATE ON main.run_values
    BEGIN INSERT INTO touched VALUES (NEW.run_id, 0); END;
CREATE TEMP TRIGGER value_deleted AFTER DELETE ON main.run_values
    BEGIN INSERT INTO touched VALUES (OLD.run_id, 2); END;
CREATE TEMP TRIGGER step_made AFTER INSERT ON main.step_runs
    BEGIN INSERT INTO touched VALUES (NEW.run_id, 1); END;
CREATE TEMP TRIGGER step_changed AFTER UPDATE ON main.step_runs
    BEGIN INSERT INTO touched VALUES (NEW.run_id, 1); END;
-- What was recorded in a life before the last one goes when another one begins.
CREATE TEMP TRIGGER step_deleted AFTER DELETE ON main.step_runs
    BEGIN INSERT INTO touched VALUES (OLD.run_id, iif(OLD.generation = 0, 2, 1)); END;
"""


class Checker:
    """Knows every run as it was, and looks at what each transaction made of it."""

    def __init__(self, world: World, connection: sqlite3.Connection) -> None:
        self._world = world
        self._connection = connection
        self.runs: dict[str, RunRow] = {}
        self.live = 0
        self.transitions: Counter[str] = Counter()
        self._transactions = Transactions(world)
        self._answers = Answers(world, self.runs)
        self._families = Families(world, connection, self.runs)
        self._ids = Ids(world, self.runs)
        self._limits = Limits(world, connection, self.runs)
        self.schedules = Schedules(world, connection, self.runs)
        self.jobs = Jobs(world, connection, self.runs)
        self._debounced = Debounced(world, connection, self.runs)
        self.deleted: dict[str, RunRow] = {}  # by jobs
        self.job: Job | None = None  # whose turn is looked at
        connection.executescript(_TRIGGERS)

    @property
    def action(self) -> JobAction | None:
        """What the job does whose turn is looked at."""
        return None if self.job is None else self.job.action

    @property
    def revoked(self) -> dict[str, Instant]:
        """When a run was last taken from a holder whose lease was good."""
        return self._transactions.revoked

    def known(self, run_id: str) -> RunRow | None:
        """Returns a run as it is, or as it was when a job deleted it."""
        return self.runs.get(run_id) or self.deleted.get(run_id)

    def after(self, method: str, args: tuple[Any, ...], answer: Any) -> None:
        """A transaction has been committed."""
        touched = self._connection.execute("SELECT run_id, max(steps) FROM temp.touched GROUP BY run_id").fetchall()
        now = self._world.clock.now()
        before: dict[str, RunRow] = {}
        gone: list[RunRow] = []
        if method == "jobs.run_batch":
            self.job = answer.job
        if touched:
            self._connection.execute("DELETE FROM temp.touched")
            for run_id, steps in touched:
                if steps == 2 and method == "jobs.run_batch" and (deleted := self._delete(run_id)) is not None:
                    gone.append(deleted)
                    continue
                if steps == 2:
                    raise wrong(run_id, "or a step, signal or value of it was deleted")
                old = self.runs.get(run_id)
                new = read_run(self._connection, run_id, old, bool(steps))
                if old is not None:
                    before[run_id] = old
                self.runs[run_id] = new
                self._compare(old, new, now, method, args)
        rows = [self.runs[run_id] for run_id, _ in touched if run_id in self.runs]
        if rows:
            if (problem := handlers_problem(before, rows, self._world.namespace_handler)) is not None:
                raise Violation(f"{method} has {problem}")
            self._ids.check(before, rows, method, args)
        self._families.check(before, rows, now, method, args)
        self.schedules.check(before, rows, now, method, args)
        self._limits.check(before, rows, now, method, args)
        if self._world.bulk:
            self.jobs.check(before, rows, gone, now, method, args, answer)
            self._debounced.check(before, rows, now, method, args, answer)
        self._answers.check(method, args, answer)

    def _delete(self, run_id: str) -> RunRow | None:
        """Forgets a run if it was deleted, and not something of it."""
        if self._connection.execute("SELECT 1 FROM workflow_runs WHERE run_id = ?", (run_id,)).fetchone():
            return None
        deleted = self.runs.pop(run_id)
        if not deleted.status.finished:
            raise wrong(run_id, f"was deleted, and is {deleted.status}")
        self.deleted[run_id] = deleted
        self._families.forget(deleted)
        return deleted

    def _compare(self, old: RunRow | None, new: RunRow, now: Instant, method: str, args: tuple[Any, ...]) -> None:
        self._check_shape(new)
        if (problem := inbox_problem(old, new, now)) is not None:
            raise wrong(new.run_id, problem)
        if (problem := values_problem(old, new, method, now)) is not None:
            raise wrong(new.run_id, problem)
        if old is None:
            self._check_birth(new, now, method, args)
            return
        if old.status.finished:
            if (
                (difference(old, new) and not superseded(old, new))
                or old.signals != new.signals
                or old.values != new.values
                or not same_but_timeouts(old, new)
            ):
                raise wrong(new.run_id, f"changed after it had ended ({method}): {difference(old, new)}")  # (1)
            return
        if self._world.bulk and self._debounced.joins(old, method, args):
            self._debounced.check_joined(old, new)
            return
        anew = begins_anew(old, new)
        if anew:
            check_anew(self._world, old, new, method, args)
        for field in _UNCHANGING:
            # One that ends and is restarted in one batch gives its id up in it, too.
            given_up = field == "external_id" and new.status.finished and new.superseded_by is not None
            if getattr(old, field) != getattr(new, field) and not (anew and field == "input") and not given_up:
                raise wrong(new.run_id, f"has another {field}")
        moves = method == "versions.move_runs" or (method == "jobs.run_batch" and self.action is JobAction.MOVE)
        if new.version != old.version and not moves and not anew:
            raise wrong(new.run_id, f"goes on in version {new.version}, and was in {old.version}")
        if new.status is not old.status:
            self.transitions[f"{old.status} to {new.status}"] += 1
            self._world.log(method, f"{old.status} to {new.status}", new.run_id)
            if new.status not in FOLLOWS[old.status]:
                raise wrong(new.run_id, f"went from {old.status} to {new.status}")
            if new.status.finished:
                self.live -= 1
        waited = old.held_key is not None or new.held_key is not None  # for a slot: `limits` says what that changes
        if old.cancel_requested and (
            not new.cancel_requested or (new.cancel_deadline != old.cancel_deadline and not waited)
        ):
            raise wrong(new.run_id, f"forgot that it was cancelled: {difference(old, new)}")  # (12)
        if new.inbox_seq < old.inbox_seq:
            raise wrong(new.run_id, f"has a smaller inbox than before: {difference(old, new)}")
        if anew:
            return
        if any(row.taken_seq and not new.signals[row.key].taken_seq for row in old.signals.values()):
            if new.attempts == old.attempts:
                raise wrong(new.run_id, f"gave back signals without being tried again: {new.signals}")
            self._world.operation("signal given back")
        self._check_steps(old, new, now, method)
        self._transactions.judge(method, old, new, now, args)

    def _check_shape(self, run: RunRow) -> None:
        """No dead ends, whatever the status."""
        if run.status in CLAIMABLE:
            sound = run.available_at is not None and run.claim_key is not None and run.lease_expires_at is None
        elif run.status is RunStatus.RUNNING:
            sound = None not in (run.token, run.worker_id, run.lease_expires_at, run.started_at, run.lease_length)
        else:
            sound = run.finished_at is not None and run.lease_expires_at is None and run.claim_key is None
        if not sound:
            raise wrong(run.run_id, f"is {run.status} without what that needs: {run}")

    def _check_birth(self, run: RunRow, now: Instant, method: str, args: tuple[Any, ...]) -> None:
        writes = args[0] if method == "apply" else ()
        repeats = next((w for w in writes if isinstance(w, RepeatRun) and w.run_id == run.run_id), None)
        if method == "jobs.run_batch" and self.job is not None and self.job.action.repeats:
            repeats = self.jobs.repeat_of(self.job, run)
        if repeats is not None:
            check_repeat(self._world, repeats, run, self.runs[repeats.of_run_id], writes)
            if run.steps:
                self._world.ledger.copy_waits(repeats.of_run_id, run.run_id)
        if run.handles_run_id is not None and run.parent_run_id is None:
            self._world.operation(f"handler by {method}")
            if run.status is not RunStatus.PENDING or method not in (
                "apply",
                "duties.recover_runs",
                "duties.time_out_runs",
            ):
                raise wrong(run.run_id, f"handles a failure and came into the world as {run.status} by {method}")
        elif run.schedule_group_id is not None:
            if run.status is not RunStatus.PENDING:
                raise wrong(run.run_id, f"was fired, and came into the world as {run.status}")
        elif repeats is not None and run.status is not RunStatus.PENDING:
            raise wrong(run.run_id, f"repeats another, and came into the world as {run.status}")
        elif (
            (method != "apply" and repeats is None)
            or run.status not in (RunStatus.PENDING, RunStatus.RUNNING)
            or (run.steps and not repeats)
        ):
            raise wrong(run.run_id, f"came into the world as {run.status} by {method}")
        if run.attempts or run.crashes or run.executions != (run.status is RunStatus.RUNNING):
            raise wrong(run.run_id, "was born with counters that are not 0")
        self.live += 1
        self._world.born(run.namespace, run.run_id)
        self.transitions[f"born {run.status}"] += 1
        self._world.log(method, f"born {run.status}", run.run_id)
        if run.status is RunStatus.RUNNING and run.available_at is not None and run.available_at > now:
            raise wrong(run.run_id, "was born RUNNING before its time")  # (7)

    def _check_steps(self, old: RunRow, new: RunRow, now: Instant, method: str) -> None:
        if old.steps is new.steps:
            return
        aside = new.attempts > old.attempts
        for key, was in old.steps.items():
            step = new.steps.get(key)
            if step is None:
                if not aside:
                    raise wrong(new.run_id, f"lost the step {key}")
            elif aside and was.child_run_id is not None and step == msgspec.structs.replace(was, completed_seq=None):
                if was.completed_seq is not None:
                    self._world.operation("outcome given back")
            elif was.completed_seq is not None and step != was:
                raise wrong(new.run_id, f"has another end of {key} than before: {was} is now {step}")  # (3)
            elif (
                step != was
                and method == "apply"
                and was.status is StepStatus.FAILED
                and (step.status is not StepStatus.FAILED or step.completed_seq is None)
            ):
                raise wrong(new.run_id, f"has another end of {key} than before: {was} is now {step}")
        for key, step in new.steps.items():
            if step != old.steps.get(key) and step.generation == 0:
                self._check_step(new, step, now)

    def _check_step(self, run: RunRow, step: StepRow, now: Instant) -> None:
        # A worker stamps the latest time that it can be, as far as it knows: it errs by what its calls take.
        if step.finished_at is not None and step.finished_at > now + LONGEST_CALL:
            raise wrong(run.run_id, f"has {step.step_id} ending in the future")  # (7)
        if step.finished_at is not None and step.finished_at < step.started_at:
            raise wrong(run.run_id, f"has {step.step_id} ending before it began")
        if step.kind is not StepKind.FUNCTION:
            return
        name = step_name(step.step_id)
        if name.endswith(_CALLS):
            return
        if step.attempt > ATTEMPTS[name]:
            raise wrong(run.run_id, f"has attempt {step.attempt} of {name}")  # (5)
        body = (run.run_id, step.step_id, step.attempt)
        ended = self._world.ledger.ended.get(body, set())
        ended_at = self._world.ledger.ended_at.get(body)
        if step.status is StepStatus.COMPLETED and (step.finished_at or 0) < (ended_at or 0):
            raise wrong(run.run_id, f"has {step.step_id} ending before its body did")
        if step.status is StepStatus.COMPLETED and "returned" not in ended:
            raise wrong(run.run_id, f"has a result of {step.step_id}, whose body never returned")
        if step.status is StepStatus.FAILED and "raised" not in ended:
            failure = Failure.decode(step.error or b"")
            if not failure.type.endswith("StepTimeout"):
                raise wrong(run.run_id, f"has a failure of {step.step_id}, whose body never raised: {failure}")
