"""What must hold after every transaction, on the rows themselves.

Triggers of the test's own note which runs a transaction touched, so nothing depends on what the product says it did.
Each touched run is read and compared with what it was: which transaction may change what is written down here a second
time, independent of the store. Numbers in brackets name the invariant that a check holds:

 (1) an end is final                                  (6) a due run is claimed once per token
 (2) only the newest token writes                     (7) nothing happens before its time
 (3) a step's recorded end is never replaced         (11) one live run per external id
 (4) what was acknowledged survives every crash      (12) a cancellation is heard within a heartbeat
 (5) failures stay within the policy's attempts      (13) a run with a live worker moves on
                                                     (15) nothing crosses namespaces
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from kagzi.api.operations import (
    Answer,
    CancelAnswer,
    CancelRun,
    Chunk,
    ChunkAnswer,
    CompleteRun,
    EndCancelledRun,
    FailRun,
    HandBackRun,
    ParkRun,
    RepeatRun,
    RetryRun,
    RunOperation,
    SendSignal,
    SignalAnswer,
    Started,
    StartRun,
    StepOperation,
    TerminateRun,
    Write,
    lets_go_as,
)
from kagzi.api.workers import Heartbeat, HeartbeatAnswer, Poll, Polled
from kagzi.core.failure import Failure
from kagzi.core.instant import SECOND, Instant
from kagzi.core.run import CLAIMABLE, FOLLOWS, RunStatus
from kagzi.core.step import StepKind, StepStatus, step_name
from kagzi.store.protocol import Applied
from kagzi.store.sqlite.store import SqliteStore
from kagzi.testing.simulation.handlers import handlers_problem
from kagzi.testing.simulation.signals import SignalRow, inbox_problem, waits_for
from kagzi.testing.simulation.values import ValueRow, values_problem
from kagzi.testing.simulation.workload import ATTEMPTS

if TYPE_CHECKING:
    from kagzi.testing.simulation.world import World


class Violation(AssertionError):
    """The world is in a state in which it must never be."""


class StepRow(Struct, frozen=True):
    step_id: str
    attempt: int
    kind: StepKind
    status: StepStatus
    completed_seq: int | None
    started_at: Instant
    finished_at: Instant | None
    retry_at: Instant | None
    timeout_at: Instant | None
    input_hash: int
    generation: int
    output: bytes | None
    error: bytes | None


class RunRow(Struct):
    """A run as it was after the last transaction that touched it."""

    run_id: str
    namespace: str
    token: str | None
    worker_id: str | None
    claim_key: int | None
    available_at: Instant | None
    lease_expires_at: Instant | None
    lease_length: int | None
    started_at: Instant | None
    finished_at: Instant | None
    deadline_at: Instant | None
    attempts: int
    executions: int
    crashes: int
    crashed_seq: int | None
    poll: int | None
    inbox_seq: int
    cancel_requested: int
    cancel_deadline: Instant | None
    status: RunStatus
    output: bytes | None
    error: bytes | None
    external_id: str | None
    workflow_type: str
    task_queue: str
    input: bytes | None
    waiting_for: str | None
    on_failure: str | None
    handles_run_id: str | None
    signals: dict[str, SignalRow] = {}
    values: dict[str, ValueRow] = {}
    steps: dict[tuple[str, int], StepRow] = {}
    events: dict[str, StepRow] = {}
    last_seq: int = 0
    tokens: list[str] = []  # every token the run was claimed under, oldest first


# Delayed both ways, between processes that are paused or blocked.
_LONGEST_CALL = 60 * SECOND
# No run of the workload needs nearly as many claims.
MOST_EXECUTIONS = 60

_RUN_COLUMNS = ", ".join(RunRow.__struct_fields__[:-6])
_VALUE_COLUMNS = ", ".join(ValueRow.__struct_fields__)
_SIGNAL_COLUMNS = ", ".join(SignalRow.__struct_fields__)
_STEP_COLUMNS = ", ".join(StepRow.__struct_fields__)
_UNCHANGING = ("namespace", "external_id", "workflow_type", "task_queue", "input", "deadline_at")

_TRIGGERS = """
CREATE TEMP TABLE touched (run_id TEXT, steps INTEGER);
CREATE TEMP TRIGGER run_made AFTER INSERT ON main.workflow_runs
    BEGIN INSERT INTO touched VALUES (NEW.run_id, 0); END;
CREATE TEMP TRIGGER run_changed AFTER UPDATE ON main.workflow_runs
    BEGIN INSERT INTO touched VALUES (NEW.run_id, 0); END;
CREATE TEMP TRIGGER run_deleted AFTER DELETE ON main.workflow_runs
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
CREATE TEMP TRIGGER step_deleted AFTER DELETE ON main.step_runs
    BEGIN INSERT INTO touched VALUES (OLD.run_id, 2); END;
"""


class Checker:
    """Knows every run as it was, and looks at what each transaction made of it."""

    def __init__(self, world: World, connection: sqlite3.Connection) -> None:
        self._world = world
        self._connection = connection
        self.runs: dict[str, RunRow] = {}
        self.live = 0
        self.transitions: Counter[str] = Counter()
        self.revoked: dict[str, Instant] = {}  # when a run was last taken from a holder whose lease was good
        self._sent: set[tuple[str, str]] = set()  # run and key of every signal that was answered
        self._external: dict[tuple[str, str], str] = {}
        self._judges: dict[str, Callable[[RunRow, RunRow, Instant, tuple[Any, ...]], None]] = {
            "apply": self._after_apply,
            "claim": self._after_claim,
            "heartbeats": self._after_heartbeats,
            "deregister": self._after_deregister,
            "recover_runs": self._after_recovery,
            "time_out_steps": self._after_step_timeouts,
            "time_out_runs": self._after_deadlines,
            "end_cancelled_runs": self._after_cancel_grace,
        }
        connection.executescript(_TRIGGERS)

    def after(self, method: str, args: tuple[Any, ...], answer: Any) -> None:
        """A transaction has been committed."""
        touched = self._connection.execute("SELECT run_id, max(steps) FROM temp.touched GROUP BY run_id").fetchall()
        now = self._world.clock.now()
        before: dict[str, RunRow] = {}
        if touched:
            self._connection.execute("DELETE FROM temp.touched")
            for run_id, steps in touched:
                if steps == 2:
                    raise self._wrong(run_id, "or a step, signal or value of it was deleted")
                old = self.runs.get(run_id)
                new = self._read(run_id, old, bool(steps))
                if old is not None:
                    before[run_id] = old
                self.runs[run_id] = new
                self._compare(old, new, now, method, args)
            if (problem := handlers_problem(before, [self.runs[run_id] for run_id, _ in touched])) is not None:
                raise Violation(f"{method} has {problem}")
        if method == "apply":
            self._check_answers(args[0], answer.answers)
        elif method == "claim":
            self._check_claims(args[0], answer)
        elif method == "heartbeats":
            for heartbeat, beaten in zip(args[0], answer, strict=True):
                self._check_heartbeat(heartbeat, beaten.answer)

    # Reading.

    def _read(self, run_id: str, old: RunRow | None, steps: bool) -> RunRow:
        row = self._connection.execute(
            f"SELECT {_RUN_COLUMNS} FROM workflow_runs WHERE run_id = ?",
            (run_id,),
        ).fetchone()
        new = RunRow(*row)
        new.status = RunStatus(new.status)
        if old is not None:
            new.steps, new.events, new.last_seq, new.tokens = old.steps, old.events, old.last_seq, old.tokens
        if new.token is not None and (not new.tokens or new.tokens[-1] != new.token):
            if new.token in new.tokens:
                raise self._wrong(run_id, f"was claimed again under the token {new.token}")
            new.tokens = [*new.tokens, new.token]
        if steps:
            self._read_steps(new)
        rows = self._connection.execute(f"SELECT {_SIGNAL_COLUMNS} FROM signals WHERE run_id = ?", (run_id,))
        new.signals = {row[0]: SignalRow(*row) for row in rows}
        rows = self._connection.execute(f"SELECT {_VALUE_COLUMNS} FROM run_values WHERE run_id = ?", (run_id,))
        new.values = {row[0]: ValueRow(*row) for row in rows}
        return new

    def _read_steps(self, run: RunRow) -> None:
        rows = self._connection.execute(
            f"SELECT {_STEP_COLUMNS} FROM step_runs WHERE run_id = ?",
            (run.run_id,),
        ).fetchall()
        run.steps = {(row[0], row[1]): _step(row) for row in rows}
        events = [step for step in run.steps.values() if step.completed_seq is not None]
        events.sort(key=_seq)
        run.events = {step.step_id: step for step in events}
        run.last_seq = len(events)
        if [step.completed_seq for step in events] != list(range(1, len(events) + 1)):
            raise self._wrong(run.run_id, f"has the events {[step.completed_seq for step in events]}")
        if sum(step.kind is StepKind.CANCEL for step in events) > 1:
            raise self._wrong(run.run_id, "was told more than once that it is cancelled")
        at = run.started_at or 0
        for step in events:
            if step.finished_at is None or step.finished_at < at:
                raise self._wrong(run.run_id, f"saw event {step.completed_seq} before the one that came before it")
            at = step.finished_at

    # What any transaction may do.

    def _compare(self, old: RunRow | None, new: RunRow, now: Instant, method: str, args: tuple[Any, ...]) -> None:
        self._check_shape(new)
        if (problem := inbox_problem(old, new, now)) is not None:
            raise self._wrong(new.run_id, problem)
        if (problem := values_problem(old, new, method, now)) is not None:
            raise self._wrong(new.run_id, problem)
        if old is None:
            self._check_birth(new, now, method, args)
            return
        if old.status.finished:
            if (
                _difference(old, new)
                or old.signals != new.signals
                or old.values != new.values
                or not _same_but_timeouts(old, new)
            ):
                raise self._wrong(new.run_id, f"changed after it had ended ({method}): {_difference(old, new)}")  # (1)
            return
        for field in _UNCHANGING:
            if getattr(old, field) != getattr(new, field):
                raise self._wrong(new.run_id, f"has another {field}")
        if new.status is not old.status:
            self.transitions[f"{old.status} to {new.status}"] += 1
            self._world.log(method, f"{old.status} to {new.status}", new.run_id)
            if new.status not in FOLLOWS[old.status]:
                raise self._wrong(new.run_id, f"went from {old.status} to {new.status}")
            if new.status.finished:
                self.live -= 1
        if old.cancel_requested and (new.cancel_requested, new.cancel_deadline) != (
            old.cancel_requested,
            old.cancel_deadline,
        ):
            raise self._wrong(new.run_id, f"forgot that it was cancelled: {_difference(old, new)}")  # (12)
        if new.inbox_seq < old.inbox_seq:
            raise self._wrong(new.run_id, f"has a smaller inbox than before: {_difference(old, new)}")
        if any(row.taken_seq and not new.signals[row.key].taken_seq for row in old.signals.values()):
            if new.attempts == old.attempts:
                raise self._wrong(new.run_id, f"gave back signals without being tried again: {new.signals}")
            self._world.operation("signal given back")
        self._check_steps(old, new, now, method)
        judge = self._judges.get(method)
        if judge is None:
            raise self._wrong(new.run_id, f"was changed by {method}: {_difference(old, new)}")
        judge(old, new, now, args)

    def _check_shape(self, run: RunRow) -> None:
        """No dead ends, whatever the status."""
        if run.status in CLAIMABLE:
            sound = run.available_at is not None and run.claim_key is not None and run.lease_expires_at is None
        elif run.status is RunStatus.RUNNING:
            sound = None not in (run.token, run.worker_id, run.lease_expires_at, run.started_at, run.lease_length)
        else:
            sound = run.finished_at is not None and run.lease_expires_at is None and run.claim_key is None
        if not sound:
            raise self._wrong(run.run_id, f"is {run.status} without what that needs: {run}")

    def _check_birth(self, run: RunRow, now: Instant, method: str, args: tuple[Any, ...]) -> None:
        repeats = method == "apply" and any(isinstance(w, RepeatRun) and w.run_id == run.run_id for w in args[0])
        if run.handles_run_id is not None:
            self._world.operation(f"handler by {method}")
            if run.status is not RunStatus.PENDING or method not in ("apply", "recover_runs", "time_out_runs"):
                raise self._wrong(run.run_id, f"handles a failure and came into the world as {run.status} by {method}")
        elif (
            method != "apply" or run.status not in (RunStatus.PENDING, RunStatus.RUNNING) or (run.steps and not repeats)
        ):
            raise self._wrong(run.run_id, f"came into the world as {run.status} by {method}")
        if run.attempts or run.crashes or run.executions != (run.status is RunStatus.RUNNING):
            raise self._wrong(run.run_id, "was born with counters that are not 0")
        self.live += 1
        self._world.born(run.namespace, run.run_id)
        self.transitions[f"born {run.status}"] += 1
        self._world.log(method, f"born {run.status}", run.run_id)
        if run.external_id is not None:
            other = self._external.setdefault((run.namespace, run.external_id), run.run_id)
            if other != run.run_id:
                raise self._wrong(run.run_id, f"has the external id of {other}")  # (11)
        if run.status is RunStatus.RUNNING and run.available_at is not None and run.available_at > now:
            raise self._wrong(run.run_id, "was born RUNNING before its time")  # (7)

    def _check_steps(self, old: RunRow, new: RunRow, now: Instant, method: str) -> None:
        if old.steps is new.steps:
            return
        aside = new.attempts > old.attempts
        for key, was in old.steps.items():
            step = new.steps.get(key)
            if step is None:
                if not aside:
                    raise self._wrong(new.run_id, f"lost the step {key}")
            elif was.completed_seq is not None and step != was:
                raise self._wrong(new.run_id, f"has another end of {key} than before: {was} is now {step}")  # (3)
            elif (
                step != was
                and method == "apply"
                and was.status is StepStatus.FAILED
                and (step.status is not StepStatus.FAILED or step.completed_seq is None)
            ):
                raise self._wrong(new.run_id, f"has another end of {key} than before: {was} is now {step}")
        for key, step in new.steps.items():
            if step != old.steps.get(key) and step.generation == 0:
                self._check_step(new, step, now)

    def _check_step(self, run: RunRow, step: StepRow, now: Instant) -> None:
        # A worker stamps the latest time that it can be, as far as it knows: it errs by what its calls take.
        if step.finished_at is not None and step.finished_at > now + _LONGEST_CALL:
            raise self._wrong(run.run_id, f"has {step.step_id} ending in the future")  # (7)
        if step.finished_at is not None and step.finished_at < step.started_at:
            raise self._wrong(run.run_id, f"has {step.step_id} ending before it began")
        if step.kind is not StepKind.FUNCTION:
            return
        name = step_name(step.step_id)
        if step.attempt > ATTEMPTS[name]:
            raise self._wrong(run.run_id, f"has attempt {step.attempt} of {name}")  # (5)
        body = (run.run_id, step.step_id, step.attempt)
        ended = self._world.ledger.ended.get(body, set())
        ended_at = self._world.ledger.ended_at.get(body)
        if step.status is StepStatus.COMPLETED and (step.finished_at or 0) < (ended_at or 0):
            raise self._wrong(run.run_id, f"has {step.step_id} ending before its body did")
        if step.status is StepStatus.COMPLETED and "returned" not in ended:
            raise self._wrong(run.run_id, f"has a result of {step.step_id}, whose body never returned")
        if step.status is StepStatus.FAILED and "raised" not in ended:
            failure = Failure.decode(step.error or b"")
            if not failure.type.endswith("StepTimeout"):
                raise self._wrong(run.run_id, f"has a failure of {step.step_id}, whose body never raised: {failure}")

    # What each kind of transaction may do.

    def _after_apply(self, old: RunRow, new: RunRow, now: Instant, args: tuple[Any, ...]) -> None:
        # The token stays on a run that was let go of: a chunk that comes late, or twice, changes nothing then.
        chunks = [
            write
            for write in args[0]
            if isinstance(write, Chunk)
            and write.run_id == new.run_id
            and write.token == old.token
            and old.status is RunStatus.RUNNING
        ]
        requests = [
            write for write in args[0] if isinstance(write, CancelRun | TerminateRun) and write.run_id == new.run_id
        ]
        if requests:
            self._after_requests(old, new, now, requests, bool(chunks))
            return
        told = any(isinstance(write, SendSignal) and write.run_id == new.run_id for write in args[0])
        if told and not chunks:
            self._after_signals(old, new, now)
            return
        if not chunks:
            raise self._wrong(new.run_id, f"was changed without its lease: {_difference(old, new)}")  # (2)
        if (new.token, new.worker_id, new.executions, new.crashes) != (
            old.token,
            old.worker_id,
            old.executions,
            old.crashes,
        ):
            raise self._wrong(new.run_id, f"got another holder or counter: {_difference(old, new)}")
        last = next((chunk.operations[-1] for chunk in chunks if isinstance(chunk.operations[-1], RunOperation)), None)
        if new.status is not old.status and (last is None or last.status is not new.status):
            raise self._wrong(new.run_id, f"became {new.status} by {last}")
        if new.attempts != old.attempts + isinstance(last, RetryRun):
            raise self._wrong(new.run_id, f"has {new.attempts} attempts after {old.attempts}")  # (5)
        match last:
            case HandBackRun(available_at=None):
                sound = new.available_at is not None and new.available_at <= now
            case RetryRun() | HandBackRun() if new.cancel_requested:
                sound = new.available_at is not None and new.available_at <= now
            case ParkRun(inbox_seq=seen) if new.status is RunStatus.SLEEPING and seen < old.inbox_seq:
                raise self._wrong(new.run_id, "was parked by a holder that had not heard of its cancellation")  # (12)
            case ParkRun(available_at=at) | RetryRun(available_at=at) | HandBackRun(available_at=at):
                sound = new.available_at == at or new.status is RunStatus.RUNNING
            case CompleteRun() if new.status is RunStatus.RUNNING:
                sound = bool(old.cancel_requested)
            case CompleteRun() if old.cancel_requested and not _was_told(new):
                raise self._wrong(new.run_id, "completed, and was never told that it is cancelled")  # (12)
            case CompleteRun(output=output):
                sound = new.output == output or len(output) > 1000
            case FailRun(error=error):
                sound = new.error == error
            case EndCancelledRun(error=error):
                sound = new.error == error and bool(old.cancel_requested)
            case _:
                sound = new.available_at == old.available_at
        if not sound and not (told and new.status is RunStatus.SLEEPING and new.available_at == now):
            raise self._wrong(new.run_id, f"was not left as {last} says: {_difference(old, new)}")

    def _after_signals(self, old: RunRow, new: RunRow, now: Instant) -> None:
        fresh = [row for key, row in new.signals.items() if key not in old.signals]
        if new.inbox_seq != old.inbox_seq + len(fresh):
            raise self._wrong(new.run_id, f"got {fresh}: {_difference(old, new)}")
        expected = msgspec.structs.replace(old, inbox_seq=new.inbox_seq)
        if any(waits_for(old, row.name) for row in fresh) and old.status is RunStatus.SLEEPING:
            self._world.operation("signal that woke a run")
            if (old.claim_key or 0) > now:
                expected.available_at, expected.claim_key = now, new.claim_key
        if _difference(expected, new):
            raise self._wrong(new.run_id, f"was changed by {fresh}: {_difference(expected, new)}")

    def _after_requests(
        self,
        old: RunRow,
        new: RunRow,
        now: Instant,
        requests: list[CancelRun | TerminateRun],
        beside_chunks: bool,
    ) -> None:
        if any(isinstance(request, TerminateRun) for request in requests):
            if not new.status.finished or (new.status is RunStatus.CANCELLED and new.token is not None):
                raise self._wrong(new.run_id, f"was not terminated: {_difference(old, new)}")
            self.revoked[new.run_id] = now
            return
        if beside_chunks:
            return  # they came first, and the run may have been let go of by them
        if new.status is not (RunStatus.CANCELLED if old.started_at is None else old.status):
            raise self._wrong(new.run_id, f"became {new.status} when it was cancelled")
        news = (not old.cancel_requested) + len(new.signals) - len(old.signals)
        if not new.cancel_requested or new.inbox_seq != old.inbox_seq + news:
            raise self._wrong(new.run_id, f"was not told that it is cancelled: {_difference(old, new)}")  # (12)
        if new.status in CLAIMABLE and (new.available_at is None or new.available_at > now):
            raise self._wrong(new.run_id, "sleeps on although it was cancelled")  # (12)
        if (new.token, new.lease_expires_at, new.executions) != (old.token, old.lease_expires_at, old.executions):
            raise self._wrong(new.run_id, f"lost its holder when it was cancelled: {_difference(old, new)}")

    def _after_cancel_grace(self, old: RunRow, new: RunRow, now: Instant, args: tuple[Any, ...]) -> None:  # noqa: ARG002
        if new.status is not RunStatus.CANCELLED or old.cancel_deadline is None or old.cancel_deadline > now:
            raise self._wrong(new.run_id, "was ended before the time it had to clean up was over")
        self.revoked[new.run_id] = now

    def _after_claim(self, old: RunRow, new: RunRow, now: Instant, args: tuple[Any, ...]) -> None:
        poll: Poll = args[0]
        if old.status is RunStatus.RUNNING and new.token == old.token and _of_poll(new.token, poll):
            if new.lease_length is None or new.lease_expires_at != now + new.lease_length:
                raise self._wrong(new.run_id, "has a lease of another length after a repeated poll")
            return
        if old.status not in CLAIMABLE or new.status is not RunStatus.RUNNING:
            raise self._wrong(new.run_id, f"was claimed while {old.status}")  # (6)
        if old.available_at is None or old.available_at > now:
            raise self._wrong(new.run_id, f"was claimed {(old.available_at or 0) - now} µs before its time")  # (7)
        if not _of_poll(new.token, poll) or new.worker_id != poll.worker_id or new.token == old.token:
            raise self._wrong(new.run_id, "was claimed under a token that is not fresh")
        if new.namespace != poll.namespace or new.task_queue not in poll.queues:
            raise self._wrong(new.run_id, f"was claimed by a worker of {poll.namespace}, {poll.queues}")  # (15)
        if (new.attempts, new.crashes, new.executions) != (old.attempts, old.crashes, old.executions + 1):
            raise self._wrong(new.run_id, f"has other counters after a claim: {_difference(old, new)}")  # (5)
        if new.lease_length is None or new.lease_expires_at != now + new.lease_length:
            raise self._wrong(new.run_id, "has a lease of another length")
        if old.started_at is not None and new.started_at != old.started_at:
            raise self._wrong(new.run_id, "has another start than before")
        if new.executions > MOST_EXECUTIONS:
            raise self._wrong(new.run_id, f"was claimed {new.executions} times and does not come to its end")  # (13)

    def _after_heartbeats(self, old: RunRow, new: RunRow, now: Instant, args: tuple[Any, ...]) -> None:
        beats: tuple[Heartbeat, ...] = tuple(beat for beat in args[0] if beat.worker_id == old.worker_id)
        held = {pair for beat in beats for pair in beat.held}
        if not beats or old.status is not RunStatus.RUNNING:
            raise self._wrong(new.run_id, "was changed by the heartbeat of somebody else")
        if new.status is RunStatus.RUNNING:
            if (new.run_id, new.token) not in held:
                raise self._wrong(new.run_id, "was renewed although its holder does not know of it")
            if new.lease_length is None or new.lease_expires_at != now + new.lease_length:
                raise self._wrong(new.run_id, "was renewed to another length")
        else:
            if (new.run_id, old.token) in beats[-1].held:
                raise self._wrong(new.run_id, "was taken from its holder")
            self._check_burnt_nothing(old, new)

    def _after_deregister(self, old: RunRow, new: RunRow, now: Instant, args: tuple[Any, ...]) -> None:  # noqa: ARG002
        if old.worker_id != args[0] or old.status is not RunStatus.RUNNING:
            raise self._wrong(new.run_id, "went back because somebody else left")
        self._check_burnt_nothing(old, new)

    def _after_recovery(self, old: RunRow, new: RunRow, now: Instant, args: tuple[Any, ...]) -> None:
        if old.status is not RunStatus.RUNNING or old.lease_expires_at is None or old.lease_expires_at > now:
            raise self._wrong(new.run_id, "was recovered although its lease holds")
        progressed = old.crashed_seq is None or old.last_seq > max(old.crashed_seq, 0)
        crashes = 1 if progressed else old.crashes + 1
        if new.crashes != crashes:
            raise self._wrong(new.run_id, f"has {new.crashes} crashes after {old.crashes}")
        if new.token is not None or (new.attempts, new.executions) != (old.attempts, old.executions):
            raise self._wrong(new.run_id, f"was recovered badly: {_difference(old, new)}")
        poison = new.crashes >= args[1]
        if new.status is not (RunStatus.FAILED if poison else RunStatus.PENDING):
            raise self._wrong(new.run_id, f"is {new.status} after {new.crashes} crashes")

    def _after_step_timeouts(self, old: RunRow, new: RunRow, now: Instant, args: tuple[Any, ...]) -> None:  # noqa: ARG002
        if new.status is not old.status or old.status is RunStatus.RUNNING:
            self.revoked[new.run_id] = now
            if new.status is not RunStatus.PENDING or new.token is not None:
                raise self._wrong(new.run_id, f"was not taken from its holder: {_difference(old, new)}")
            if not any(
                step.timeout_at is not None and step.timeout_at <= now and step.status is StepStatus.RUNNING
                for step in old.steps.values()
            ):
                raise self._wrong(new.run_id, "was taken from its holder although no step is late")
            self._check_burnt_nothing(old, new)

    def _after_deadlines(self, old: RunRow, new: RunRow, now: Instant, args: tuple[Any, ...]) -> None:  # noqa: ARG002
        if new.status is not RunStatus.TIMED_OUT or old.deadline_at is None or old.deadline_at > now:
            raise self._wrong(new.run_id, "timed out before its deadline")
        self.revoked[new.run_id] = now

    def _check_burnt_nothing(self, old: RunRow, new: RunRow) -> None:
        counters = (new.attempts, new.crashes, new.executions) == (old.attempts, old.crashes, old.executions)
        if new.status is not RunStatus.PENDING or new.token is not None or not counters:
            raise self._wrong(new.run_id, f"went back badly: {_difference(old, new)}")

    # What the answers promise.

    def _check_answers(self, writes: Sequence[Write], answers: Sequence[Answer]) -> None:
        terminated = {write.run_id for write in writes if isinstance(write, TerminateRun)}
        for write, answer in zip(writes, answers, strict=True):
            if isinstance(write, StartRun):
                if isinstance(answer, Started):
                    self._check_started(write, answer)
                continue
            if not isinstance(write, Chunk):
                self._world.operation(type(write).__name__)
                if isinstance(answer, SignalAnswer) and isinstance(write, SendSignal):
                    self._check_sent(write, answer)
                if isinstance(answer, CancelAnswer):
                    self._check_cancelled(answer)
                continue
            for operation in write.operations:
                self._world.operation(type(operation).__name__)
            run = self.runs.get(write.run_id)
            newest = run is not None and bool(run.tokens) and run.tokens[-1] == write.token
            if answer is ChunkAnswer.LEASE_LOST:
                if (
                    run is not None
                    and run.token == write.token
                    and (run.status is RunStatus.RUNNING or lets_go_as(write, run.status))
                ):
                    raise self._wrong(write.run_id, "refused a chunk of its holder")
                self._world.operation("refused chunk")
            elif write.run_id in terminated:
                continue  # it was taken, and then the run was ended in the same transaction
            elif answer in (ChunkAnswer.DONE, ChunkAnswer.NEWS):
                if run is None or not newest or run.token != write.token:
                    raise self._wrong(write.run_id, f"took a chunk under the token {write.token}")  # (2)
                if answer is ChunkAnswer.NEWS and isinstance(write.operations[-1], CompleteRun):
                    self._world.operation("declined completion")
                self._check_recorded(run, write, news=answer is ChunkAnswer.NEWS)

    def _check_recorded(self, run: RunRow, chunk: Chunk, *, news: bool) -> None:
        """What was acknowledged is there. (4)"""
        for operation in chunk.operations:
            if not isinstance(operation, StepOperation) or any(step.generation for step in run.steps.values()):
                continue  # it may have been set aside since
            step = run.steps.get((operation.step_id, operation.attempt))
            if step is None or (
                operation.completed_seq is not None
                and (step.completed_seq, step.output, step.error)
                != (operation.completed_seq, operation.output, operation.error)
            ):
                raise self._wrong(run.run_id, f"does not have what was acknowledged: {operation} is {step}")
        last = chunk.operations[-1]
        if news and isinstance(last, CompleteRun) and run.cancel_requested:
            return
        if news and isinstance(last, ParkRun) and run.inbox_seq > last.inbox_seq:
            self._world.operation("declined park")
            return
        if isinstance(last, RunOperation) and run.status is not last.status:
            raise self._wrong(run.run_id, f"is {run.status} after {type(last).__name__} was acknowledged")

    def _check_started(self, start: StartRun, answer: Started) -> None:
        self._world.operation("StartRun")
        run = self.runs.get(answer.run_id)
        if run is None or run.namespace != start.namespace or run.external_id != start.external_id:
            raise self._wrong(answer.run_id, f"is the answer to {start}")
        if answer.born and (start.lease is None or start.lease.token not in run.tokens):
            raise self._wrong(answer.run_id, "is said to be born under a lease it never had")

    def _check_sent(self, signal: SendSignal, answer: SignalAnswer) -> None:
        row = self.runs[answer.run_id].signals.get(signal.key)
        if row is None or (row.seq, row.name, row.value) != (answer.seq, signal.name, signal.value):
            raise self._wrong(answer.run_id, f"was told {signal}, answered {answer} and has {row}")
        sent = (answer.run_id, signal.key)
        if answer.repeated is not (sent in self._sent):
            raise self._wrong(answer.run_id, f"was told {signal} and answered {answer}")
        self._sent.add(sent)
        if answer.repeated:
            self._world.operation("repeated signal")

    def _check_cancelled(self, answer: CancelAnswer) -> None:
        run = self.runs[answer.run_id]
        told = run.status is RunStatus.CANCELLED or (bool(run.cancel_requested) and not run.status.finished)
        if answer.status is not run.status or answer.effective is not told:
            raise self._wrong(answer.run_id, f"is {run.status}, and whoever cancelled it heard {answer}")

    def _check_heartbeat(self, heartbeat: Heartbeat, answer: HeartbeatAnswer) -> None:
        for run_id, token in heartbeat.held:
            run = self.runs.get(run_id)
            if run is None or run.token != token or run.status is not RunStatus.RUNNING:
                continue
            if bool(run.cancel_requested) is not (run_id in answer.cancelled):
                raise self._wrong(run_id, "was cancelled, and its holder did not hear it by its heartbeat")  # (12)

    def _check_claims(self, poll: Poll, polled: Polled) -> None:
        for claim in polled.claims:
            run = self.runs[claim.run_id]
            if run.token != claim.token or not _of_poll(claim.token, poll) or run.worker_id != poll.worker_id:
                raise self._wrong(claim.run_id, "was given to a worker that does not hold it")
            seqs = [step.completed_seq for step in claim.history if step.completed_seq is not None]
            if claim.inbox_seq != run.inbox_seq:
                raise self._wrong(claim.run_id, f"was given away with the inbox up to {claim.inbox_seq}")
            if claim.cancel_requested is not bool(run.cancel_requested):
                raise self._wrong(claim.run_id, "was given to a worker that does not hear of its cancellation")  # (12)
            if len(seqs) != run.last_seq:
                raise self._wrong(claim.run_id, f"was given away with the events {seqs} of {run.last_seq}")

    def _wrong(self, run_id: str, what: str) -> Violation:
        return Violation(f"run {run_id} {what}")


class WatchedStore:
    """The one store of the world. Looks at the rows after every transaction, before anybody hears of it."""

    def __init__(self, world: World, store: SqliteStore) -> None:
        self._world = world
        self._store = store
        self._apply = self._watched("apply")

    async def apply(self, writes: Sequence[Write]) -> Applied:
        for write in writes:
            if self._world.is_cancelled_at_its_end(write):
                await self._apply([CancelRun(namespace=write.namespace, run_id=write.run_id)])
        applied: Applied = await self._apply(writes)
        return applied

    def __getattr__(self, method: str) -> Any:
        call = self._watched(method)
        setattr(self, method, call)
        return call

    def _watched(self, method: str) -> Callable[..., Awaitable[Any]]:
        inner = getattr(self._store, method)

        async def call(*args: Any) -> Any:
            answer = await inner(*args)
            self._world.transaction(method, args, answer)
            return answer

        return call


def _of_poll(token: str | None, poll: Poll) -> bool:
    return token is not None and token[8:] == poll.token[8:]


def _was_told(run: RunRow) -> bool:
    return any(step.kind is StepKind.CANCEL for step in run.events.values())


def _step(row: tuple[Any, ...]) -> StepRow:
    step_id, attempt, kind, status, *rest = row
    return StepRow(step_id, attempt, StepKind(kind), StepStatus(status), *rest)


def _seq(step: StepRow) -> int:
    return step.completed_seq or 0


def _same_but_timeouts(old: RunRow, new: RunRow) -> bool:
    """A timeout nobody waits for any more may be forgotten even after the end."""
    return old.steps.keys() == new.steps.keys() and all(
        step == old.steps[key] or msgspec.structs.replace(old.steps[key], timeout_at=None) == step
        for key, step in new.steps.items()
    )


def _difference(old: RunRow, new: RunRow) -> str:
    was, now = msgspec.structs.asdict(old), msgspec.structs.asdict(new)
    return ", ".join(
        f"{field} {was[field]!r:.60} -> {now[field]!r:.60}"
        for field in was
        if was[field] != now[field] and field not in ("steps", "events", "tokens", "signals", "values")
    )
