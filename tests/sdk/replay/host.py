"""A host for executions without worker, engine or database: a list of durable rows and a seeded choice of what is next.

`crash_after` stops the first life of the run after so many host events; the rows that were durable by then are the
history of the next life. Bodies are counted in `started` (one entry per start of a body).
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Coroutine
from typing import Any

from kagzi.api.operations import Operation, StepOperation
from kagzi.core.failure import Failure
from kagzi.core.instant import SECOND
from kagzi.core.retry import Retry
from kagzi.core.step import Step
from kagzi.sdk.replay.execution import Execution, StepCall

START = 1_700_000_000 * SECOND


class JsonCodec:
    def encode_input(self, args: tuple[Any, ...], kwargs: Any) -> tuple[bytes, bool]:
        return json.dumps([args, kwargs]).encode(), True

    def decode_input(self, data: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        args, kwargs = json.loads(data)
        return tuple(args), kwargs

    def encode_result(self, value: Any) -> bytes:
        return json.dumps(value).encode()

    def decode_result(self, data: bytes) -> Any:
        return json.loads(data)


CODEC = JsonCodec()


class Crashed(Exception):
    pass


class Host:
    """One life of a run. `rows` is what is durable and survives."""

    def __init__(
        self,
        workflow: Callable[[], Coroutine[Any, Any, Any]],
        *,
        rows: dict[tuple[str, int], Step] | None = None,
        seed: int = 0,
        crash_after: int | None = None,
        now: int = START,
        retry: Retry | None = None,
        run_id: str = "0190-run",
    ) -> None:
        self.workflow = workflow
        self.rows = {} if rows is None else rows
        self.random = random.Random(seed)
        self.crash_after = crash_after
        self.events = 0
        self.clock = now
        self.pending: list[Operation] = []
        self.in_flight: list[Operation] = []
        self.bodies: dict[StepCall, Any] = {}
        self.cancelled: list[StepCall] = []
        self.started: list[tuple[str, int]] = []
        self.overlap: list[str] = []
        self.parks = 0
        self.run_id = run_id
        self.retry = retry or Retry.none

    # Effects.

    def submit(self, operation: Operation) -> None:
        self.pending.append(operation)

    def start_body(self, call: StepCall) -> None:
        if self.cancelled:
            self.overlap.append(call.step_id)
        self.started.append((call.step_id, call.attempt))
        self.bodies[call] = None

    def cancel_body(self, call: StepCall) -> None:
        self.cancelled.append(call)
        self.bodies.pop(call, None)

    def now(self) -> int:
        return self.clock

    def jitter(self) -> float:
        return 0.5

    # Living.

    def live(self) -> Any:
        """Drive the run to its end; parks begin a new life from the durable rows, as after a claim."""
        while True:
            execution = self.begin()
            try:
                while execution.outcome is None:
                    self.step(execution)
                    if execution.outcome is None and self.parked(execution):
                        break
            except Crashed:
                execution.evict()
                raise
            if execution.outcome is not None:
                self.commit_all()
                return execution.outcome
            execution.evict()

    def begin(self) -> Execution:
        self.pending, self.in_flight, self.bodies, self.cancelled = [], [], {}, []
        history = sorted(self.rows.values(), key=lambda row: (row.completed_seq is None, row.completed_seq or 0))
        execution = Execution(
            self,
            run_id=self.run_id,
            workflow="program",
            started_at=START,
            history=history,
            default_retry=self.retry,
            payload_limit=1 << 20,
        )
        execution.begin(self.workflow(), CODEC.encode_result)
        return execution

    def step(self, execution: Execution) -> None:
        """One thing happens, of all that could."""
        self.events += 1
        if self.crash_after is not None and self.events > self.crash_after:
            raise Crashed
        choices: list[Callable[[], None]] = [lambda call=call: self.end_body(execution, call) for call in self.bodies]
        choices += [lambda call=call: self.end_cancelled(execution, call) for call in self.cancelled]
        if self.in_flight:
            choices.append(lambda: self.acknowledge(execution))
        elif self.pending:
            choices.append(self.send)
        due = execution.next_due()
        if due is not None and (due <= self.clock or not choices or self.random.random() < 0.2):
            choices.append(lambda: self.pass_time(execution, due))
        assert choices, "the run is stuck"
        self.random.choice(choices)()

    def end_body(self, execution: Execution, call: StepCall) -> None:
        self.clock += self.random.randrange(1, 400_000)
        del self.bodies[call]
        try:
            value = call.fn(*call.args, **call.kwargs)
        except Exception as error:
            execution.step_raised(call, error)
        else:
            execution.step_returned(call, value)

    def end_cancelled(self, execution: Execution, call: StepCall) -> None:
        self.cancelled.remove(call)
        execution.body_ended(call)

    def send(self) -> None:
        self.in_flight, self.pending = self.pending, []

    def acknowledge(self, execution: Execution) -> None:
        self.store(self.in_flight)
        count, self.in_flight = len(self.in_flight), []
        execution.durable(count)

    def pass_time(self, execution: Execution, due: int) -> None:
        self.clock = max(self.clock, due) + self.random.randrange(0, 1000)
        execution.tick()

    def parked(self, execution: Execution) -> bool:
        """Sometimes let go of an idle run, as a worker does for long waits."""
        if not execution.idle or self.random.random() < 0.5:
            return False
        due = execution.next_due()
        self.commit_all()
        self.parks += 1
        self.clock = max(self.clock, due or 0) + self.random.randrange(0, 1000)
        return True

    def commit_all(self) -> None:
        self.store(self.in_flight + self.pending)
        self.in_flight, self.pending = [], []

    def store(self, operations: list[Operation]) -> None:
        for op in operations:
            if not isinstance(op, StepOperation):
                continue
            key = (op.step_id, op.attempt)
            old = self.rows.get(key)
            assert old is None or old.completed_seq is None, f"{key} was recorded twice"
            self.rows[key] = Step(
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
            )


def step(name: str, fn: Callable[..., Any], *args: Any, retry: Retry | None = None) -> Coroutine[Any, Any, Any]:
    """Call a step from a workflow under test."""
    execution: Execution = asyncio.get_running_loop().execution  # type: ignore[attr-defined]
    return execution.call_step(
        name=name, fn=fn, codec=CODEC, policy=retry, timeout=None, args=args, kwargs={}
    )


def describe(outcome: Any) -> tuple[str, Any]:
    if outcome.failure is not None:
        failure: Failure = outcome.failure
        return ("failed", failure.type, failure.message)  # type: ignore[return-value]
    return ("completed", outcome.output)
