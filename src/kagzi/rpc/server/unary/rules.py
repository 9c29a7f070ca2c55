"""The rules of the unary worker calls, for clients that know neither tokens nor histories.

Each function looks at the state of a lease and says which operations follow and what to answer; the same operations
that our own worker commits, so there is one set of rules for what they do. Nothing here writes or waits.

Names of steps are unique in a run on this way, so a step's identity is its name. A SLEEP is kept apart from a step of
the same name by its scope; while it sleeps, its row is RUNNING and `retry_at` is when it wakes, fixed by the first
Sleep. Whatever is repeated is answered from the record: a client that got no answer asks again.

A step that fails and may be tried again parks its run, but not over the heads of steps beside it: while some are open,
the run waits for them, and the last one to report parks it. A worker may also have given them up without a word; so
they get a timeout of one lease, after which the run goes on without that worker.

The child of a step is spawned once: its id follows from the step, and its row is the step's. When the child ends, the
row says how, and whoever begins the step next takes that for its outcome.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from kagzi.api.operations import (
    ChildStart,
    CompleteRun,
    CompleteStep,
    FailRun,
    FailStep,
    Operation,
    ParkRun,
    RetryRun,
    SpawnChild,
    StartRun,
    StartStep,
    TakeOutcome,
)
from kagzi.api.workers import LeaseState
from kagzi.core.conflict import OnConflict
from kagzi.core.failure import Failure
from kagzi.core.family import MOST_CHILDREN, MOST_DEPTH, ParentPolicy, awaits_child
from kagzi.core.instant import SECOND, Instant, Span
from kagzi.core.retry import Retry, next_attempt
from kagzi.core.run import RunStatus
from kagzi.core.step import Step, StepKind, StepStatus, escape
from kagzi.core.wake import NEWS_ALONE
from kagzi.errors import InvalidRequest, LimitExceeded, NotFound
from kagzi.ids import derived_run_id
from kagzi.rpc.status import Refused, wrong_state

log = logging.getLogger("kagzi.rpc")

_DEFAULT: Final = Retry()
_NULL: Final = b"null"
# A wait for a child is looked at again now and then: half of its age later, at least and at most so long.
_RECHECK: Final[Span] = 300 * SECOND
_LONGEST_RECHECK: Final[Span] = 24 * 3600 * SECOND


class FinallyFailed(Exception):
    """The step has failed for good; `error` is what is recorded of it, `operations` what is to be recorded first."""

    def __init__(self, step: Step, operations: tuple[Operation, ...] = ()) -> None:
        super().__init__(f"step {step.name} has failed")
        self.step = step
        self.error = step.error or b""
        self.operations = operations


class Beside(Struct, frozen=True):
    """The other things that the holder of a lease is at, beside the step in question."""

    steps: frozenset[tuple[str, int]] = frozenset()  # identity and attempt of what it has begun and not reported
    waiting: bool = True  # whether the run is to be parked once there are none
    known: bool = False  # if not, this is only what is safe to suppose


class Begun(Struct, frozen=True):
    identity: str
    attempt: int
    execute: bool
    output: bytes | None
    operations: tuple[Operation, ...] = ()


class Failed(Struct, frozen=True):
    retry_at: Instant | None
    operations: tuple[Operation, ...] = ()


class Ended(Struct, frozen=True):
    status: RunStatus
    operations: tuple[Operation, ...] = ()


def identity_of(name: str, kind: StepKind) -> str:
    return f"sleep/@{escape(name)}" if kind is StepKind.SLEEP else escape(name)


def begin_step(state: LeaseState, *, name: str, kind: StepKind, input: bytes | None) -> Begun:
    check_held(state)
    identity = identity_of(name, kind)
    last = max(
        (step for step in state.history if step.step_id == identity), key=lambda step: step.attempt, default=None
    )
    attempt = 1
    if last is not None:
        if last.child_run_id is not None and last.status is not StepStatus.RUNNING:
            return _outcome(state, last)
        if last.status is StepStatus.COMPLETED:
            return Begun(identity, last.attempt, False, last.output)
        if last.status is StepStatus.FAILED and last.completed_seq is not None:
            raise FinallyFailed(last)
        if last.status is StepStatus.RUNNING:
            if kind is StepKind.SLEEP and last.retry_at is not None and last.retry_at <= state.now:
                return Begun(identity, last.attempt, False, _NULL, (_completed(state, last, _NULL),))
            # Begun in this execution, or in one whose worker died: the same attempt.
            return Begun(identity, last.attempt, True, None)
        attempt = last.attempt + 1
    operation = StartStep(step_id=identity, attempt=attempt, kind=kind, started_at=state.now, input=input)
    return Begun(identity, attempt, True, None, (operation,))


def _outcome(state: LeaseState, step: Step) -> Begun:
    """Returns the outcome of a child, which the first call that asks takes."""
    taken: tuple[Operation, ...] = ()
    if step.completed_seq is None:
        taken = (
            TakeOutcome(
                step_id=step.step_id,
                attempt=step.attempt,
                kind=StepKind.CHILD_WORKFLOW,
                completed_seq=_next_seq(state.history),
                started_at=step.started_at,
                finished_at=state.now,
            ),
        )
    if step.status is not StepStatus.COMPLETED:
        raise FinallyFailed(step, taken)
    return Begun(step.step_id, step.attempt, False, step.output, taken)


def child_of(state: LeaseState, identity: str, attempt: int) -> tuple[str, bool]:
    """Returns the id of the child of this attempt, and whether that child was spawned already."""
    step = _attempt(state, identity, attempt)
    if step.child_run_id is not None:
        return step.child_run_id, True
    if step.kind is not StepKind.CHILD_WORKFLOW:
        raise wrong_state(f"step {step.name} is not a CHILD_WORKFLOW", subject="step", subject_id=identity)
    check_held(state)
    _check_open(step)
    if sum(each.child_run_id is not None and each.completed_seq is None for each in state.history) >= MOST_CHILDREN:
        raise LimitExceeded(f"a run has at most {MOST_CHILDREN:,} children at a time; await the outcomes of some first")
    if state.depth >= MOST_DEPTH:
        raise InvalidRequest(
            f"start: the child of {step.name} would be {MOST_DEPTH + 1} levels deep; at most {MOST_DEPTH} are allowed. "
            "Does a workflow start itself without end?"
        )
    attempts = f"{state.attempts}/{state.incarnation}" if state.incarnation else str(state.attempts)
    return derived_run_id(step.started_at, state.run_id, attempts, identity), False


def spawn_child(
    state: LeaseState, identity: str, attempt: int, start: StartRun, policy: ParentPolicy
) -> tuple[Operation, ...]:
    """`start` has the id that `child_of` gave, and a version."""
    step = _attempt(state, identity, attempt)
    assert start.version is not None
    child = ChildStart(
        run_id=start.run_id,
        workflow_type=start.workflow_type,
        task_queue=start.task_queue,
        version=start.version,
        external_id=start.external_id,
        priority=start.priority,
        delay=start.delay,
        start_at=start.start_at,
        timeout=start.timeout,
        deadline_at=start.deadline_at,
        retry_policy=start.retry_policy,
        on_failure=start.on_failure,
        on_failure_queue=start.on_failure_queue,
        policy=policy,
        trace_context=start.trace_context,
        depth=state.depth + 1,
        tags=start.tags,
        on_conflict=OnConflict.FAIL if start.on_conflict is OnConflict.RETURN else start.on_conflict,
        limit_key=start.limit_key,
    )
    return (
        SpawnChild(
            step_id=identity,
            attempt=attempt,
            kind=StepKind.CHILD_WORKFLOW,
            started_at=step.started_at,
            input=start.input,
            child=child,
        ),
    )


def await_child(state: LeaseState, identity: str, attempt: int) -> ParkRun | None:
    """Returns how to park the run; None if it is parked for this child already, or the child has ended."""
    step = _attempt(state, identity, attempt)
    if step.child_run_id is None:
        raise wrong_state(f"step {step.name} has no child; call SpawnChild first", subject="step", subject_id=identity)
    if step.status is not StepStatus.RUNNING or state.status is RunStatus.SLEEPING:
        return None
    check_held(state)
    again = min(max(_RECHECK, (state.now - step.started_at) // 2), _LONGEST_RECHECK)
    waiting_for = (awaits_child(step.child_run_id), NEWS_ALONE)
    return ParkRun(available_at=state.now + again, inbox_seq=state.inbox_seq, waiting_for=waiting_for)


def may_be_untold(state: LeaseState, identity: str, attempt: int) -> bool:
    """Returns whether the child may have ended without the run being told, as under servers of an earlier version: then
    only time has woken the run."""
    step = _attempt(state, identity, attempt)
    return step.status is StepStatus.RUNNING and state.now - step.started_at >= _RECHECK


def complete_step(
    state: LeaseState, identity: str, attempt: int, output: bytes, beside: Beside
) -> tuple[Operation, ...]:
    step = _attempt(state, identity, attempt)
    if step.status is StepStatus.COMPLETED:
        return ()
    check_held(state)
    _check_open(step)
    if step.kind is StepKind.SLEEP and (step.retry_at is None or step.retry_at > state.now):
        raise wrong_state(f"sleep {step.name} is not over", subject="step", subject_id=identity)
    completed = _completed(state, step, output)
    retries = _retries(state, identity)
    if retries and beside.waiting and not beside.steps:
        return (completed, ParkRun(available_at=min(retries), inbox_seq=state.inbox_seq))
    return (completed,)


def fail_step(
    state: LeaseState,
    identity: str,
    attempt: int,
    policy: Retry | None,
    failure: Failure,
    jitter: float,
    beside: Beside,
) -> Failed:
    step = _attempt(state, identity, attempt)
    if step.status is StepStatus.FAILED:
        return Failed(step.retry_at)
    check_held(state)
    _check_open(step)
    delay = next_attempt(policy or run_policy(state) or _DEFAULT, failure, attempt, jitter)
    retry_at = None if delay is None else state.now + delay
    operations: list[Operation] = [
        FailStep(
            step_id=identity,
            attempt=attempt,
            kind=step.kind,
            completed_seq=_next_seq(state.history) if retry_at is None else None,
            started_at=step.started_at,
            finished_at=state.now,
            retry_at=retry_at,
            error=failure.encode(),
        )
    ]
    retries = _retries(state, identity)
    if retry_at is None and not (retries and beside.waiting):
        return Failed(retry_at, tuple(operations))
    due = min(retries if retry_at is None else [*retries, retry_at])
    if beside.steps:
        until = max(due, state.now + state.lease)
        operations += [_timed(step, until) for step in state.history if (step.step_id, step.attempt) in beside.steps]
    else:
        operations.append(ParkRun(available_at=due, inbox_seq=state.inbox_seq))
    return Failed(retry_at, tuple(operations))


def sleep(state: LeaseState, identity: str, attempt: int, length: Span) -> tuple[Operation, ...]:
    step = _attempt(state, identity, attempt)
    if step.kind is not StepKind.SLEEP:
        raise wrong_state(f"step {step.name} is not a SLEEP", subject="step", subject_id=identity)
    if step.status is StepStatus.COMPLETED or (state.status is RunStatus.SLEEPING and step.retry_at is not None):
        return ()
    check_held(state)
    _check_open(step)
    wakes_at = state.now + length if step.retry_at is None else step.retry_at
    return (
        StartStep(
            step_id=identity,
            attempt=attempt,
            kind=StepKind.SLEEP,
            started_at=step.started_at,
            retry_at=wakes_at,
        ),
        ParkRun(available_at=wakes_at, inbox_seq=state.inbox_seq),
    )


def complete_workflow(state: LeaseState, output: bytes) -> Ended:
    if state.status is RunStatus.COMPLETED:
        return Ended(RunStatus.COMPLETED)
    check_held(state)
    return Ended(RunStatus.COMPLETED, (CompleteRun(output=output),))


def fail_workflow(state: LeaseState, failure: Failure, jitter: float, beside: Beside) -> Ended:
    """While a step of it is being retried, the run does not fail; it is parked, if it has not been."""
    if state.status is RunStatus.FAILED:
        return Ended(RunStatus.FAILED)
    retries = _retries(state)
    if retries and state.status is RunStatus.SLEEPING:
        return Ended(RunStatus.SLEEPING)
    check_held(state)
    # A retry that is due and was not begun may be of a step that the workflow has given up: that must have an end.
    retries = [at for at in retries if beside.waiting and (beside.known or at > state.now)]
    if retries:
        return Ended(RunStatus.SLEEPING, (ParkRun(available_at=min(retries), inbox_seq=state.inbox_seq),))
    policy = run_policy(state)
    delay = None if policy is None else next_attempt(policy, failure, state.attempts + 1, jitter)
    if delay is None:
        return Ended(RunStatus.FAILED, (FailRun(error=failure.encode()),))
    failures = [
        step.completed_seq
        for step in state.history
        if step.status is StepStatus.FAILED and step.completed_seq is not None
    ]
    keep_seq = min(failures) - 1 if failures else _next_seq(state.history) - 1
    retry = RetryRun(available_at=state.now + delay, keep_seq=keep_seq, error=failure.encode())
    return Ended(RunStatus.PENDING, (retry,))


def run_policy(state: LeaseState) -> Retry | None:
    """Returns the run's own policy. One that cannot be read (starts are checked: it was written by hand) is as if none
    had been given, because a worker that is refused for it could not go on and could not fail the run either."""
    if state.retry_policy is None:
        return None
    try:
        return Retry.decode(state.retry_policy)
    except InvalidRequest as error:
        log.warning("run %s goes on without the retry policy stored with it: %s", state.run_id, error)
        return None


def check_held(state: LeaseState) -> None:
    if state.status is RunStatus.RUNNING:
        return
    what = f"has ended {state.status}" if state.status.finished else "was let go of under this handle"
    raise wrong_state(f"run {state.run_id} {what}", subject="run", subject_id=state.run_id, exact_code="LEASE_LOST")


def _check_open(step: Step) -> None:
    if step.status is not StepStatus.RUNNING:
        raise _ended(step)
    if step.child_run_id is not None:
        raise wrong_state(
            f"step {step.name} ends with its child, run {step.child_run_id}; call AwaitChild",
            subject="step",
            subject_id=step.step_id,
        )


def _ended(step: Step) -> Refused:
    return wrong_state(
        f"attempt {step.attempt} of step {step.name} is {step.status} already",
        subject="step",
        subject_id=step.step_id,
    )


def _attempt(state: LeaseState, identity: str, attempt: int) -> Step:
    for step in state.history:
        if step.step_id == identity and step.attempt == attempt:
            return step
    raise NotFound(f"run {state.run_id} has no attempt {attempt} of step {identity[:100]!r}; call BeginStep first")


def _completed(state: LeaseState, step: Step, output: bytes) -> CompleteStep:
    return CompleteStep(
        step_id=step.step_id,
        attempt=step.attempt,
        kind=step.kind,
        completed_seq=_next_seq(state.history),
        started_at=step.started_at,
        finished_at=state.now,
        output=output,
    )


def _timed(step: Step, until: Instant) -> StartStep:
    return StartStep(
        step_id=step.step_id, attempt=step.attempt, kind=step.kind, started_at=step.started_at, timeout_at=until
    )


def _retries(state: LeaseState, besides: str | None = None) -> list[Instant]:
    """Returns when steps that have failed, other than this one, are due again."""
    last: dict[str, Step] = {}
    for step in state.history:
        if step.step_id not in last or last[step.step_id].attempt < step.attempt:
            last[step.step_id] = step
    return [
        step.retry_at
        for step in last.values()
        if step.status is StepStatus.FAILED and step.completed_seq is None and step.retry_at is not None
        if step.step_id != besides
    ]


def _next_seq(history: Iterable[Step]) -> int:
    return max((step.completed_seq or 0 for step in history), default=0) + 1
