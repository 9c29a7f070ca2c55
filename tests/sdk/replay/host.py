"""A host for executions without worker, engine or database: a dictionary of durable rows, and a seeded choice of what
happens next.

A host lives until the run has ended; whenever it parks, it begins anew from its rows, as after another claim. While it
lives it checks what can be seen from outside at that moment (see `Host.submit` and `Host.start_body`). `crash_after`
ends it after so many events, `cancel_after` has somebody ask for the run to end then; `on_event` sees it after each
event, so that a test can go on from every such point.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Coroutine
from typing import Any
from zlib import crc32

from msgspec import structs

from kagzi.api.operations import ChildStart, Operation, SetValue, SpawnChild, StepOperation, TakeOutcome
from kagzi.core.failure import Failure
from kagzi.core.instant import SECOND
from kagzi.core.retry import Retry
from kagzi.core.step import Step, StepStatus
from kagzi.sdk.replay.calls import call_step, child_call
from kagzi.sdk.replay.execution import Execution
from kagzi.sdk.replay.outcome import Outcome
from kagzi.sdk.replay.recorded import run_to_replay
from kagzi.sdk.replay.tasks import WorkflowTask
from kagzi.sdk.replay.waits import ChildWait, StepCall, Wait

START = 1_700_000_000 * SECOND

Rows = dict[tuple[str, int], Step]
Workflow = Callable[[], Coroutine[Any, Any, Any]]


class JsonCodec:
    seal: Callable[[bytes], bytes] | None = None

    def settle_input(self, args: tuple[Any, ...], kwargs: Any) -> tuple[bytes, int, tuple[Any, ...], dict[str, Any]]:
        data = json.dumps([args, kwargs]).encode()
        return data, crc32(data), *self.copy_input(data)

    def copy_input(self, data: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        args, kwargs = json.loads(data)
        return tuple(args), kwargs

    def encode_input_strictly(self, args: tuple[Any, ...], kwargs: Any) -> tuple[bytes, int]:
        return self.settle_input(args, kwargs)[:2]

    def encode_result(self, value: Any) -> bytes:
        return json.dumps(value).encode()

    def settle_result(self, value: Any, context: Any = None) -> tuple[bytes, Any]:
        data = self.encode_result(value)
        return data, self.decode_result(data)

    def decode_result(self, data: bytes, context: Any = None) -> Any:
        return json.loads(data)


CODEC = JsonCodec()


class Crashed(Exception):
    pass


class BrokenRule(AssertionError):
    """What a host or a check found wrong."""


def demand(condition: object, what: str) -> None:
    if not condition:
        raise BrokenRule(what)


class ObservedExecution(Execution):
    """An execution that remembers which steps were asked for, and what the workflow noted about itself."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.requested: set[str] = set()
        self.trace: list[Any] = []
        self.unseen: list[str] = []  # recorded events that nobody had waited for at the end
        self.marks = [0]  # how long the trace was when the event of that number (from 1) was delivered
        super().__init__(*args, **kwargs)

    def request(self, wait: Wait) -> None:
        if not self.loop.evicting:
            self.requested.add(wait.step_id)
        super().request(wait)

    def _finish(self, main: WorkflowTask) -> None:
        self.unseen = list(self._recorded.early)
        super()._finish(main)

    def mark(self, seq: int) -> None:
        if seq == len(self.marks):
            self.marks.append(len(self.trace))

    def _set_off(self) -> None:
        super()._set_off()
        self.mark(self._journal.seq)

    def _set_off_again(self) -> None:
        super()._set_off_again()
        self.mark(self._journal.seq)

    def _replay(self, event: Step) -> None:
        assert event.completed_seq is not None
        self.mark(event.completed_seq)
        super()._replay(event)


class Host:
    """One worker's hold on a run. `rows` is what is durable, and survives."""

    def __init__(
        self,
        workflow: Workflow,
        *,
        rows: Rows | None = None,
        values: dict[str, bytes] | None = None,
        seed: int = 0,
        crash_after: int | None = None,
        cancel_after: int | None = None,
        on_event: Callable[[Host, ObservedExecution], None] | None = None,
        now: int = START,
        retry: Retry | None = None,
        run_id: str = "0190-run",
        strict: bool = False,
        most_events: int = 3_000,
        doubts: bool = False,
        origin: str | None = None,
        visited: bool = False,
    ) -> None:
        self.workflow = workflow
        self.rows: Rows = {} if rows is None else rows
        self.values: dict[str, bytes] = {} if values is None else values  # durable, as `rows` is
        self.last_words: list[str] = []  # values that were set while the run was let go of
        self.random = random.Random(seed)
        self.crash_after = crash_after
        self.on_event = on_event
        self.most_events = most_events
        self.doubts = doubts
        self.events = 0
        self.clock = now
        self.pending: list[Operation] = []
        self.unhurried: list[Operation] = []  # wait for others that are pending
        self.in_flight: list[Operation] = []
        self.cancel_after = cancel_after
        self.cancel_requested = False
        self.bodies: dict[StepCall, None] = {}
        self.cancelled: list[StepCall] = []
        self.started: list[tuple[str, int]] = []
        self.overlap: list[str] = []
        self.parks = 0
        self.run_id = run_id
        self.retry = retry or Retry.none
        self.strict = strict
        self.origin = origin
        self.visited = visited  # somebody has begun the run before
        self.execution: ObservedExecution | None = None
        self.evicting = False
        self.last_seq = 0
        self.last_time = START
        self.ahead = self.behind = 0  # how far from the truth the bounds of the time are

    # Effects.

    def submit(self, operation: Operation) -> None:
        demand(not self.evicting, f"{operation} was submitted while the run was let go of")
        demand(self.execution is not None, f"{operation} was submitted during replay")
        assert self.execution is not None
        demand(self.execution.outcome is None, f"{operation} was submitted after the end")
        if isinstance(operation, StepOperation) and operation.completed_seq is not None:
            demand(operation.completed_seq == self.last_seq + 1, f"event {operation} follows number {self.last_seq}")
            self.last_seq += 1
            assert operation.finished_at is not None
            demand(operation.finished_at >= self.last_time, f"time falls with event {operation}")
            self.last_time = operation.finished_at
            self.execution.mark(self.last_seq)
        if isinstance(operation, SpawnChild):
            demand((operation.step_id, 1) not in self.rows, f"{operation} was spawned before")
        if isinstance(operation, TakeOutcome):
            row = self.rows.get((operation.step_id, 1))
            demand(row is not None and row.status is not StepStatus.RUNNING, f"{operation} takes what has not come")
        self.pending += (*self.unhurried, operation)
        self.unhurried.clear()

    def start_body(self, call: StepCall) -> None:
        key = (call.step_id, call.attempt)
        demand(not self.evicting, f"body {key} started while the run was let go of")
        if self.cancelled:
            self.overlap.append(call.step_id)
        for row in self.rows.values():
            if row.step_id == call.step_id:
                demand(row.completed_seq is None, f"body {key} started although its end is durable")
        if call.attempt > 1:
            before = self.rows.get((call.step_id, call.attempt - 1))
            demand(
                before is not None and before.status is StepStatus.FAILED,
                f"body {key} started before the failure of the attempt before it was durable",
            )
        now = self.rows.get(key)
        demand(now is None or now.status is not StepStatus.FAILED, f"failed attempt {key} started again")
        demand(call not in self.bodies, f"body {key} started twice at once")
        self.started.append(key)
        self.bodies[call] = None

    def cancel_body(self, call: StepCall) -> None:
        demand(call in self.bodies, f"{call.step_id} was cancelled and is not running")
        self.cancelled.append(call)
        del self.bodies[call]

    def submit_unhurried(self, operation: Operation) -> None:
        self.submit(operation)
        self.unhurried.append(self.pending.pop())

    def set_value(self, name: str, value: bytes) -> None:
        if self.evicting:
            self.last_words.append(name)
        self.pending.append(SetValue(name=name, value=value))

    def now(self) -> int:
        return self.clock + self.ahead

    def passed(self) -> int:
        return self.clock - self.behind

    def jitter(self) -> float:
        return 0.5

    # Living.

    def live(self) -> Outcome:
        """Drive the run to its end."""
        while True:
            execution = self.begin()
            try:
                while execution.outcome is None:
                    self.step(execution)
                    if execution.outcome is None and self.parked(execution):
                        break
            except Crashed:
                self.evict(execution)
                raise
            if execution.outcome is not None:
                self.commit_all()
                return execution.outcome
            self.evict(execution)

    def begin(self) -> ObservedExecution:
        if self.doubts:
            self.ahead, self.behind = (self.random.choice((0, 1_000, 3_000_000)) for _ in range(2))
        self.pending, self.unhurried, self.in_flight, self.bodies, self.cancelled = [], [], [], {}, []
        history = sorted(self.rows.values(), key=lambda row: (row.completed_seq is None, row.completed_seq or 0))
        events = [row for row in history if row.completed_seq is not None]
        self.last_seq = len(events)
        self.last_time = (events[-1].finished_at or START) if events else START
        demand([row.completed_seq for row in events] == list(range(1, len(events) + 1)), "the history has gaps")
        self.execution = None
        # Afterwards as if the one before had crashed: nobody knows how far it came.
        lives = {"executions": 2, "crashes": 1} if self.visited else {"executions": 1}
        run = run_to_replay(self.run_id, "program", START, origin_run_id=self.origin, **lives)
        execution = ObservedExecution(
            self, run, history=history, default_retry=self.retry, payload_limit=1 << 20, strict=self.strict
        )
        self.visited = True
        self.execution = execution
        execution.begin(self.workflow(), CODEC.encode_result, cancel=self.cancel_requested)
        return execution

    def evict(self, execution: ObservedExecution) -> None:
        requested = len(execution.requested)
        self.evicting = True
        try:
            execution.evict()
        finally:
            self.evicting = False
        demand(len(execution.requested) == requested, "steps were called while the run was let go of")
        demand(not self.last_words, f"{self.last_words} were set while the run was let go of")

    def step(self, execution: ObservedExecution) -> None:
        """One thing happens, of all that could."""
        self.events += 1
        if self.crash_after is not None and self.events > self.crash_after:
            raise Crashed
        demand(self.events <= self.most_events, "the run does not come to an end")
        if self.cancel_after is not None and self.events > self.cancel_after and not self.cancel_requested:
            self.cancel_requested = True
            if self.random.random() < 0.8:  # else the next life is told
                execution.cancel()
                if self.on_event is not None and execution.outcome is None:
                    self.on_event(self, execution)
                return
        chance = self.random
        choices: list[Callable[[], None]] = [lambda call=call: self.end_body(execution, call) for call in self.bodies]
        choices += [lambda call=call: self.end_cancelled(execution, call) for call in self.cancelled]
        if self.in_flight:
            choices.append(lambda: self.acknowledge(execution))
        elif self.pending:
            choices.append(self.send)
        choices += [lambda row=row: self.end_child(execution, row) for row in self.children(StepStatus.RUNNING)]
        if execution.awaits_children and (ended := self.untold(execution)):
            choices.append(lambda: execution.receive((), ended))
        due = execution.next_due()
        if due is not None and (due <= self.passed() or not choices or chance.random() < 0.5):
            choices += [lambda: self.pass_time(execution, due)] * 2
        demand(choices, "the run is stuck")
        if self.bodies and chance.random() < 0.15:
            self.show(execution)
        elif chance.random() < 0.02:
            execution.tick()  # with nothing due, most of the time
        else:
            chance.choice(choices)()
        for call in self.bodies:
            demand(
                execution.outcome is not None or (call.future is not None and not call.future.done()),
                f"the body of {call.step_id} runs on although nobody waits for it",
            )
        if self.on_event is not None and execution.outcome is None:
            self.on_event(self, execution)

    def children(self, *statuses: StepStatus) -> list[Step]:
        """Spawned runs whose outcome the workflow has not got."""
        rows = [row for row in self.rows.values() if row.child_run_id is not None and row.completed_seq is None]
        return [row for row in rows if row.status in statuses]

    def untold(self, execution: Execution) -> list[Step]:
        ended = self.children(StepStatus.COMPLETED, StepStatus.FAILED, StepStatus.CANCELLED)
        return [row for row in ended if row.step_id in execution.children.awaited]

    def end_child(self, execution: Execution, row: Step) -> None:
        """A child ends, and its end is written beside its spawn; the run may hear of it only later."""
        ended = self.write_end(row)
        if self.random.random() < 0.7:
            execution.receive((), [ended])

    def write_end(self, row: Step) -> Step:
        self.clock += self.random.randrange(1, 400_000)
        status = self.random.choice(
            (StepStatus.COMPLETED, StepStatus.COMPLETED, StepStatus.FAILED, StepStatus.CANCELLED)
        )
        error = Failure.of(LookupError, f"lost {self.random.randrange(100)}").encode()
        ended = structs.replace(
            row,
            status=status,
            finished_at=self.clock,
            output=b"%d" % self.random.randrange(100) if status is StepStatus.COMPLETED else None,
            error=None if status is StepStatus.COMPLETED else error,
        )
        self.rows[row.step_id, row.attempt] = ended
        return ended

    def end_body(self, execution: Execution, call: StepCall) -> None:
        self.clock += self.random.randrange(1, 400_000)
        del self.bodies[call]
        self.report(execution, call)

    def end_cancelled(self, execution: Execution, call: StepCall) -> None:
        """A cancelled body ends, or is late and ends by itself."""
        self.cancelled.remove(call)
        if self.random.random() < 0.5:
            execution.body_ended(call)
        else:
            self.report(execution, call)

    def report(self, execution: Execution, call: StepCall) -> None:
        try:
            value = self.run_body(call)
        except Exception as error:
            execution.step_raised(call, error)
        else:
            execution.step_returned(call, value)

    def run_body(self, call: StepCall) -> Any:
        if isinstance(call.fn, Body):
            return call.fn.run(call.attempt, self.random)
        if call.name.endswith(".cancel"):
            return self.random.random() < 0.5
        return call.fn(*call.args, **call.kwargs)

    def show(self, execution: Execution) -> None:
        call = self.random.choice(list(self.bodies))
        if not call.shown:
            execution.show(call)

    def send(self) -> None:
        """Send what is pending, or the first part of it."""
        count = self.random.randrange(1, len(self.pending) + 1)
        self.in_flight, self.pending = self.pending[:count], self.pending[count:]

    def acknowledge(self, execution: Execution) -> None:
        self.store(self.in_flight)
        count = sum(not isinstance(operation, SetValue) for operation in self.in_flight)
        self.in_flight = []
        execution.durable(count)

    def pass_time(self, execution: Execution, due: int) -> None:
        self.clock = max(self.clock, due + self.behind) + self.random.randrange(0, 1000)
        execution.tick()

    def parked(self, execution: Execution) -> bool:
        """Sometimes let go of an idle run, as a worker does for long waits."""
        if not execution.idle or self.random.random() < 0.5:
            return False
        due = execution.next_due()
        self.commit_all()
        self.parks += 1
        waits_for = execution.waiting_for()
        running = [row for row in self.children(StepStatus.RUNNING) if f"c:{row.child_run_id}" in waits_for]
        if running and (due is None or self.random.random() < 0.5):
            self.write_end(self.random.choice(running))
        elif not (execution.awaits_children and self.untold(execution)):
            demand(due is not None, "an idle run waits for nothing")
            assert due is not None
            self.clock = max(self.clock, due) + self.random.randrange(0, 1000)
        return True

    def commit_all(self) -> None:
        self.store(self.in_flight + self.unhurried + self.pending)
        self.in_flight, self.unhurried, self.pending = [], [], []

    def store(self, operations: list[Operation]) -> None:
        store(self.rows, operations)
        self.values |= said(operations)


def store(rows: Rows, operations: list[Operation]) -> None:
    """What a store does with the operations of a run."""
    for op in operations:
        if not isinstance(op, StepOperation):
            continue
        key = (op.step_id, op.attempt)
        old = rows.get(key)
        if isinstance(op, TakeOutcome):
            demand(old is not None and old.completed_seq is None, f"{key} was taken twice, or is not there")
            assert old is not None
            rows[key] = structs.replace(old, completed_seq=op.completed_seq, finished_at=op.finished_at)
            continue
        if old is not None and op.status is StepStatus.RUNNING:
            continue
        demand(old is None or old.completed_seq is None, f"{key} was recorded twice")
        rows[key] = Step(
            step_id=op.step_id,
            attempt=op.attempt,
            kind=op.kind,
            status=op.status,
            completed_seq=op.completed_seq,
            started_at=op.started_at,
            finished_at=op.finished_at,
            retry_at=op.retry_at,
            input_hash=op.input_hash,
            output=op.output,
            error=op.error,
            child_run_id=op.child.run_id if isinstance(op, SpawnChild) else None,
        )


def said(operations: list[Operation]) -> dict[str, bytes]:
    """The values among these, the last of each name."""
    return {operation.name: operation.value for operation in operations if isinstance(operation, SetValue)}


class Body:
    """A step body whose result depends on chance and on the attempt, so that a body which runs again is noticed."""

    def run(self, attempt: int, chance: random.Random) -> Any:
        raise NotImplementedError

    def __call__(self) -> Any:
        raise NotImplementedError("the host calls run()")


def current() -> ObservedExecution:
    execution: ObservedExecution = asyncio.get_running_loop().execution  # type: ignore[attr-defined]
    return execution


def step(name: str, fn: Callable[..., Any], *args: Any, retry: Retry | None = None) -> Coroutine[Any, Any, Any]:
    """Call a step from a workflow under test."""
    return call_step(current(), name=name, fn=fn, codec=CODEC, policy=retry, timeout=None, args=args, kwargs={})


def child(name: str, *args: Any) -> ChildWait:
    """A child of the workflow under test, not spawned yet."""
    start = ChildStart(run_id="", workflow_type=name, task_queue="default", version="1")
    return child_call(current(), name=name, workflow=name, codec=CODEC, args=args, kwargs={}, start=start)


def describe(outcome: Outcome) -> tuple[Any, ...]:
    if outcome.failure is not None:
        failure: Failure = outcome.failure
        return ("failed", failure.type, failure.message, outcome.keep_seq)
    if outcome.cancelled:
        return ("cancelled", outcome.keep_seq)
    return ("completed", outcome.output)
