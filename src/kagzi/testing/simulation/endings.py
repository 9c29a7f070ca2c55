"""When all is over: did every run end as it must, and does its history alone tell the same story?"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from kagzi.api.operations import Operation
from kagzi.core.cancel import cancelled
from kagzi.core.failure import Failure
from kagzi.core.instant import SECOND, Instant
from kagzi.core.limits import PAYLOAD_BYTES
from kagzi.core.run import Run, RunStatus
from kagzi.core.step import BEGIN, CANCEL, LATE, Step, StepKind
from kagzi.errors import Conflict
from kagzi.sdk.replay.execution import Execution
from kagzi.sdk.replay.recorded import run_to_replay
from kagzi.sdk.replay.waits import StepCall
from kagzi.sdk.worker.beginning import DEFAULT_STEP_RETRY
from kagzi.store.sqlite import steps as stored_steps
from kagzi.testing.simulation import workload
from kagzi.testing.simulation.bulk import BULK, judge_bulk
from kagzi.testing.simulation.catalogue import workflow_named
from kagzi.testing.simulation.checks.rows import RunRow, Violation
from kagzi.testing.simulation.network import run_at_once
from kagzi.testing.simulation.orders import Order
from kagzi.testing.simulation.programs import Wrong, judge
from kagzi.testing.simulation.restarts import CHANGING, judge_changed
from kagzi.testing.simulation.values import FIRST_INPUT

if TYPE_CHECKING:
    from kagzi.testing.simulation.world import World


def judge_endings(world: World) -> None:
    by_input = {input_of(order): order for order in world.orders}
    by_run = {order.run_id: order for order in world.orders}
    for order in world.orders:
        if order.run_id is not None and world.checker.known(order.run_id) is None:
            raise Violation(f"run {order.run_id} was acknowledged and is lost")
    for row in world.checker.runs.values():
        run = run_at_once(world.store.runs.get(row.namespace, row.run_id))
        if run is None or not run.status.finished:
            raise Violation(f"run {row.run_id} has not ended")
        if row.workflow_type in BULK:
            _judge_bulk(world, run, row)
            continue
        if row.schedule_group_id is not None or row.workflow_type == "tick":  # or it repeats one
            _judge_firing(world, run, row)
            continue
        if run.parent_run_id is not None:
            _judge_child(world, run, row)
            continue
        if run.handles_run_id is not None:
            _judge_handler(world, run)
            continue
        # A run whose start was not acknowledged is known by the input that it was started with.
        first = row.values[FIRST_INPUT].value if FIRST_INPUT in row.values else run.input
        _judge(world, run, row, by_run.get(run.run_id) or by_input[run.workflow_type, first])


def _judge_handler(world: World, run: Run) -> None:
    """It was told of the run that has failed. One that is found dead too often fails as well, and calls nobody."""
    failed = world.checker.known(run.handles_run_id or "")
    if failed is None:
        raise Violation(f"handler {run.run_id} is for a run that never was")
    if run.status is RunStatus.COMPLETED:
        told = workflow_named(run.workflow_type).signature.decode_result(run.output or b"null")
        if told != [failed.run_id, failed.status.value]:
            raise Violation(f"handler {run.run_id} was told of {told}, not of {failed.run_id}")
    elif run.status is not RunStatus.FAILED:
        raise Violation(f"handler {run.run_id} is {run.status}")


def _judge_bulk(world: World, run: Run, row: RunRow) -> None:
    """It ended as it was started to, or because a job or its parent asked for that."""
    if run.status is RunStatus.FAILED and row.crashes >= world.settings.max_crashes:
        return
    if run.status is RunStatus.CANCELLED:
        if run.run_id not in world.checker.jobs.ended and row.parent_policy not in ("cancel", "terminate"):
            raise Violation(f"run {run.run_id} is {run.status}, and nobody asked for that")
        _judge_cancelled(world, run, row)
        return
    args, _ = workflow_named(run.workflow_type).signature.decode_arguments(run.input)
    fails = run.workflow_type == "item" and args[3]
    if CANCEL not in row.events:
        if run.status is not (RunStatus.FAILED if fails else RunStatus.COMPLETED):
            error = Failure.decode(run.error) if run.error else None
            raise Violation(f"run {run.run_id}, started with {args}, is {run.status}: {error}")
        if run.status is RunStatus.COMPLETED:
            answer = workflow_named(run.workflow_type).signature.decode_result(run.output or b"null")
            try:
                judge_bulk(run.workflow_type, args, answer)
            except Wrong as wrong:
                raise Violation(f"run {run.run_id}: {wrong}") from None
    _judge_replay(world, run, row)


def _judge_firing(world: World, run: Run, row: RunRow) -> None:
    """It ended as the clock says, or was cancelled by the firing after it."""
    if run.status is RunStatus.FAILED and row.crashes >= world.settings.max_crashes:
        return
    if run.status is RunStatus.CANCELLED:
        _judge_cancelled(world, run, row)
        return
    seconds = (run.fired_for or 0) // SECOND
    if run.status is not (RunStatus.COMPLETED if seconds % 11 else RunStatus.FAILED) and CANCEL not in row.events:
        raise Violation(f"run {run.run_id}, which was fired for {run.fired_for}, is {run.status}")
    _judge_replay(world, run, row)


def _judge_child(world: World, run: Run, row: RunRow) -> None:
    """It ended as its program says, or because its parent asked for that, or has ended."""
    what = f"child {run.run_id} of {run.parent_run_id} is {run.status}"
    if run.status is RunStatus.FAILED and row.crashes >= world.settings.max_crashes:
        return
    if run.status is RunStatus.CANCELLED:
        if row.parent_policy == "abandon":
            raise Violation(f"{what}, and its parent had let go of it")
        if row.parent_policy == "terminate" or not row.cancel_requested:
            return
        _judge_cancelled(world, run, row)
        return
    if run.status is RunStatus.TIMED_OUT:
        if row.deadline_at is None:
            raise Violation(f"{what}, and had no deadline")
        return
    if (run.status is RunStatus.FAILED) is not (run.workflow_type == "failing") and CANCEL not in row.events:
        failure = Failure.decode(run.error) if run.error else None
        if failure is not None and failure.is_a(Conflict) and _is_tried_again(world, row):
            return  # the id that it gives a child of its own is that of a child from the time before
        raise Violation(f"{what}: {failure}")
    if run.status is RunStatus.COMPLETED and CANCEL not in row.events:
        (program, *_), _ = workload.program.signature.decode_arguments(run.input)
        answer = workload.program.signature.decode_result(run.output or b"null")
        try:
            judge(program, answer[0])
        except Wrong as wrong:
            raise Violation(f"{what}: {wrong}") from None
    _judge_replay(world, run, row)


def _is_tried_again(world: World, row: RunRow) -> bool:
    """Says whether a run above this one, of which it is a child, was set back to its beginning."""
    above = world.checker.known(row.parent_run_id or "")
    return above is not None and (above.attempts > 0 or _is_tried_again(world, above))


def input_of(order: Order) -> tuple[str, bytes]:
    workflow = workflow_named(order.workflow)
    return order.workflow, workflow.signature.encode_arguments(order.args, {})


def _judge(world: World, run: Run, row: RunRow, order: Order) -> None:
    if run.status is RunStatus.FAILED and row.crashes >= world.settings.max_crashes:
        world.operation("run given up after crashes")
        return  # the checker has counted the crashes
    asked = order.cancel is not None or order.terminate is not None or order.cancel_at_end
    if run.status is RunStatus.CANCELLED and asked:
        _judge_cancelled(world, run, row)
        return
    if CANCEL in row.events:
        # What a workflow makes of being told to end is its own business, but it is told once and replays.
        world.operation("run that ended otherwise when it was cancelled")
    elif run.status is not order.expected:
        error = Failure.decode(run.error) if run.error else None
        raise Violation(f"run {run.run_id} (order {order.number}) is {run.status}, not {order.expected}: {error}")
    if run.status is RunStatus.TIMED_OUT:
        return
    if run.status is RunStatus.COMPLETED and CANCEL not in row.events:
        answer = workflow_named(order.workflow).signature.decode_result(run.output or b"null")
        try:
            if run.workflow_type in CHANGING:
                judge_changed(order, answer, world.moved.get(run.run_id))
            else:
                judge(order.program, answer[0])
        except Wrong as wrong:
            raise Violation(f"run {run.run_id} (order {order.number}): {wrong}") from None
    _judge_replay(world, run, row)


def _judge_replay(world: World, run: Run, row: RunRow) -> None:
    history = stored_steps.read_history(world.connection, run.namespace, [run.run_id]).get(run.run_id, ())
    _judge_values(run, row, _replay(run, history))


def _judge_values(run: Run, row: RunRow, said: dict[str, bytes]) -> None:
    """What the run said last is what is stored; a name that only an attempt before used stays. One that was told too
    late to end has said in its first life what it never says in the one that counts."""
    if CANCEL in row.events and row.events[CANCEL].output == LATE:
        return
    for name, value in said.items():
        if name not in row.values or row.values[name].value != value:
            raise Violation(f"run {run.run_id} said {name} = {value!r}, and stored is {row.values.get(name)}")
    if not row.attempts and row.values.keys() - said.keys() - {FIRST_INPUT}:
        raise Violation(f"run {run.run_id} said {said}, and stored is {row.values}")


def _judge_cancelled(world: World, run: Run, row: RunRow) -> None:
    if Failure.decode(run.error or b"") != Failure.decode(cancelled()):
        world.operation("run that was ended without cleaning up")
        return  # terminated, ended before it began, or out of time: there is nothing to replay to its end
    world.operation("run that cleaned up")
    if CANCEL not in row.events:
        raise Violation(f"run {run.run_id} says that it was cancelled, and was never told")
    _judge_replay(world, run, row)


def _replay(run: Run, history: tuple[Step, ...]) -> dict[str, bytes]:
    """Replaying the stored history, and nothing else, gives the stored end and starts no body. Returns what the run
    says on the way, the last of each name."""
    reader = _Reader()
    workflow = workflow_named(run.workflow_type, run.version)
    assert run.started_at is not None
    replayed = run_to_replay(
        run.run_id,
        run.workflow_type,
        run.started_at,
        executions=1,  # no code has been here before
        origin_run_id=run.seed_run_id,
        scheduled_for=run.fired_for,
        timezone=run.timezone,
        incarnation=run.incarnation,
    )
    execution = _Replay(
        reader, replayed, history=history, default_retry=DEFAULT_STEP_RETRY, payload_limit=PAYLOAD_BYTES, strict=True
    )
    coroutine: Coroutine[Any, Any, Any] = workflow.begin(run.input, execution)
    execution.begin(coroutine, workflow.encode_result)
    outcome = execution.outcome
    if reader.bodies or reader.operations:
        execution.evict()
        raise Violation(f"replaying run {run.run_id} starts {reader.bodies} and writes {reader.operations}")
    if execution.unasked:
        raise Violation(f"replaying run {run.run_id}, nobody waits for {execution.unasked}")
    if outcome is None:
        execution.evict()
        raise Violation(f"replaying run {run.run_id} does not come to its end")
    if outcome.cancelled is not (run.status is RunStatus.CANCELLED):
        raise Violation(f"replaying run {run.run_id} does not end {run.status}")
    if outcome.cancelled:
        return execution.said
    if outcome.failure is None:
        if outcome.output != run.output:
            raise Violation(f"replaying run {run.run_id} gives {outcome.output!r}, and it ended with {run.output!r}")
    else:
        stored = Failure.decode(run.error or b"")
        if (outcome.failure.type, outcome.failure.message) != (stored.type, stored.message):
            raise Violation(f"replaying run {run.run_id} fails with {outcome.failure}, and it failed with {stored}")
    return execution.said


class _Replay(Execution):
    """Notes events that come before anybody asks for them: then the code does not give the commands it gave before."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.unasked: list[str] = []
        self.said: dict[str, bytes] = {}

    def set_value(self, name: str, value: bytes) -> None:
        if not self.loop.evicting:
            self.said[name] = value

    def _replay(self, event: Step) -> None:
        if event.kind is StepKind.SLEEP:
            assert event.finished_at is not None
            if self.loop.first_due(event.finished_at - int(event.output or 0)) is None:
                self.unasked.append(event.step_id)
        elif event.kind is not StepKind.CANCEL and event.step_id != BEGIN and event.step_id not in self._waiting:
            self.unasked.append(event.step_id)
        super()._replay(event)


class _Reader:
    """Effects of a replay that must have none."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self.bodies: list[str] = []

    def submit(self, operation: Operation) -> None:
        self.operations.append(operation)

    def start_body(self, call: StepCall) -> None:
        self.bodies.append(call.step_id)

    def cancel_body(self, call: StepCall) -> None:
        """There is none."""

    def submit_unhurried(self, operation: Operation) -> None:
        self.operations.append(operation)

    def set_value(self, name: str, value: bytes) -> None:
        """The execution itself has noted it."""

    def now(self) -> Instant:
        return 0

    def passed(self) -> Instant:
        return 0

    def jitter(self) -> float:
        return 0.5
