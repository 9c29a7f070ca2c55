"""Operations: everything that changes a run, as frozen records, and the answers they get.

A write is a `Chunk`, or something asked for outside of a lease: `StartRun`, `CancelRun`, `TerminateRun`, `RepeatRun`,
`SendSignal`.
A chunk holds operations of one run made under one lease, in their order;
it is applied whole or, if the lease is gone, not at all (the one exception: a `ParkRun` or `CompleteRun`, always last,
may be declined because there is news, while everything before it stays). A chunk that arrives twice changes nothing the
second time and gets the same answer, because a lease's token stays on the run until somebody else takes or clears it.
Once the run is let go of, that is said of the chunk that did so; whatever else comes under its token is refused, and is
no repeat that anybody waits for: its sender has had the answer before it sent the next one.

Step operations share one shape: each becomes one row of `step_runs`, keyed by (run, step_id, attempt). They are
msgspec structs rather than dataclasses because a busy worker makes tens of thousands of them a second.

Operations travel from workers to servers as they are (`rpc.convert.packed`): an array of the tag and of the fields in
their order. So tags stay, fields stay where they are, and a new field comes last and has a default.
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated, ClassVar, Final, TypeAlias, get_args

from msgspec import Meta, Struct

from kagzi.core.conflict import OnConflict
from kagzi.core.family import ParentPolicy
from kagzi.core.instant import Instant, Span
from kagzi.core.run import CANCEL_GRACE, Run, RunStatus
from kagzi.core.step import StepKind, StepStatus

# As wide as the columns that keep them, which matters for what is read from the wire.
_INT4: Final = Meta(ge=-(2**31), le=2**31 - 1)
_INT8: Final = Meta(ge=-(2**63), le=2**63 - 1)


class StepOperation(Struct, frozen=True, kw_only=True, gc=False, array_like=True):
    """What every step operation says; the class says what happened."""

    status: ClassVar[StepStatus]

    step_id: str
    attempt: Annotated[int, _INT4] = 1
    kind: StepKind = StepKind.FUNCTION
    completed_seq: Annotated[int, _INT4] | None = None
    started_at: Annotated[Instant, _INT8]
    finished_at: Annotated[Instant, _INT8] | None = None
    retry_at: Annotated[Instant, _INT8] | None = None
    timeout_at: Annotated[Instant, _INT8] | None = None
    input: bytes | None = None
    input_hash: Annotated[int, _INT8] = 0
    output: bytes | None = None
    error: bytes | None = None


class StartStep(StepOperation, frozen=True, kw_only=True, gc=False, tag=1):
    """A body has been running for a while: show it. Never waited for; changes nothing once the step has ended."""

    status = StepStatus.RUNNING


class CompleteStep(StepOperation, frozen=True, kw_only=True, gc=False, tag=2):
    """A step returned, or (kind SLEEP) a tick fired the timers due by `finished_at`, or (kind SIGNAL) the workflow was
    told to end. An event: has a `completed_seq`."""

    status = StepStatus.COMPLETED


class FailStep(StepOperation, frozen=True, kw_only=True, gc=False, tag=3):
    """An attempt failed. With `completed_seq` it is final and an event; with `retry_at` it is to be tried again."""

    status = StepStatus.FAILED


class CancelStep(StepOperation, frozen=True, kw_only=True, gc=False, tag=4):
    """A body was cancelled by its workflow. For people to see; replay does not need it, so it has no number."""

    status = StepStatus.CANCELLED


class TakeSignal(StepOperation, frozen=True, kw_only=True, gc=False, tag=7):
    """The workflow has got a signal it waited for. An event of kind SIGNAL whose output is the signal's value; the
    signal is taken in the same transaction, and nobody gets it again."""

    status = StepStatus.COMPLETED

    signal: str  # its key


class ChildStart(Struct, frozen=True, kw_only=True, gc=False, array_like=True):
    """The run that a SpawnChild inserts, beside its input. `depth` is its own: that of its parent and one more."""

    run_id: str
    workflow_type: str
    task_queue: str
    version: str
    external_id: str | None = None
    priority: Annotated[int, _INT4] = 0
    delay: Annotated[Span, _INT8] = 0
    start_at: Annotated[Instant, _INT8] | None = None
    timeout: Annotated[Span, _INT8] | None = None
    deadline_at: Annotated[Instant, _INT8] | None = None
    retry_policy: bytes | None = None
    on_failure: str | None = None
    on_failure_queue: str | None = None
    policy: ParentPolicy = ParentPolicy.CANCEL
    trace_context: str | None = None
    depth: Annotated[int, _INT4] = 1
    tags: dict[str, str] = {}
    on_conflict: OnConflict = OnConflict.FAIL  # never RETURN: the run that is found would not be this one's child
    limit_key: str | None = None  # whose share of limits it takes


class SpawnChild(StepOperation, frozen=True, kw_only=True, gc=False, tag=5):
    """The workflow has started a child run, of kind CHILD_WORKFLOW; `input` is the child's. No event: the row stays
    RUNNING until the child ends. An id that another run has makes the outcome a Conflict, unless that run gives it up:
    as `on_conflict` says, or because it is a finished child that this step has spawned in an earlier attempt."""

    status = StepStatus.RUNNING

    child: ChildStart


class TakeOutcome(StepOperation, frozen=True, kw_only=True, gc=False, tag=6):
    """The workflow has got the outcome of a child it waited for. An event of kind CHILD_WORKFLOW; its row says how the
    child ended since that did. Without such an outcome the chunk is refused."""

    status = StepStatus.COMPLETED


class SetValue(Struct, frozen=True, kw_only=True, gc=False, array_like=True, tag=8):
    """The run says something about itself, for those who look at it. No event: replay does not see it. The last one of
    a name counts; `number` rises under a lease, so that a chunk that arrives late does not bring an older one back."""

    name: str
    value: bytes
    number: Annotated[int, _INT4] = 0


class RunOperation(Struct, frozen=True, kw_only=True, gc=False, array_like=True):
    """A transition of the run itself. At most one in a chunk, and always the last operation of its lease."""

    status: ClassVar[RunStatus]
    outcome: ClassVar[str]  # how the execution ended, as traces show it


class ParkRun(RunOperation, frozen=True, kw_only=True, gc=False, tag=11):
    """Let go of the run until `available_at`, unless its inbox has grown beyond `inbox_seq`."""

    status = RunStatus.SLEEPING
    outcome = "parked"

    available_at: Annotated[Instant, _INT8]
    inbox_seq: Annotated[int, _INT4]
    # What wakes the run before that: `s:approved` is a signal, `c:` and its id a child; `s:*` and `c:*` are any.
    # `core.wake.NEWS_ALONE` beside them: nothing else does.
    waiting_for: tuple[str, ...] = ()


class HandBackRun(RunOperation, frozen=True, kw_only=True, gc=False, tag=12):
    """Give the run back at once and burn nothing: draining, or a worker that cannot go on with it."""

    status = RunStatus.PENDING
    outcome = "handed back"

    available_at: Annotated[Instant, _INT8] | None = None  # None is now


class RetryRun(RunOperation, frozen=True, kw_only=True, gc=False, tag=13):
    """The workflow function failed and its own policy allows another try: attempts + 1, from `keep_seq` on anew.

    Events numbered above `keep_seq` are set aside as an old generation: they stay visible, replay no longer sees them.
    If somebody has asked for the run to be cancelled, it does not wait for `available_at`.
    """

    status = RunStatus.PENDING
    outcome = "retrying"

    available_at: Annotated[Instant, _INT8]
    keep_seq: Annotated[int, _INT4]
    error: bytes


class CompleteRun(RunOperation, frozen=True, kw_only=True, gc=False, tag=14):
    """The workflow function has returned. With `unless_cancelled` it is declined if somebody has asked for the run to
    end: they were told that it will hear of it. Without, from those who cannot tell it, or have: whatever was asked."""

    status = RunStatus.COMPLETED
    outcome = "completed"

    output: bytes
    unless_cancelled: bool = False
    family: bool | None = None  # here and below: see `Claim.family`; None is "look"


class FailRun(RunOperation, frozen=True, kw_only=True, gc=False, tag=15):
    status = RunStatus.FAILED
    outcome = "failed"

    error: bytes
    family: bool | None = None


class EndCancelledRun(RunOperation, frozen=True, kw_only=True, gc=False, tag=16):
    """The workflow function was told to end and has ended with that very CancelledError."""

    status = RunStatus.CANCELLED
    outcome = "cancelled"

    error: bytes
    family: bool | None = None


class ContinueRun(RunOperation, frozen=True, kw_only=True, gc=False, tag=17):
    """The workflow function goes on as a new one, in the same run: with this input and, if given, in this version.

    What it has recorded is set aside and its clock begins anew; its id, its waiters, its deadline and the signals that
    it has not taken stay. A run that was told to end meanwhile is told when it begins anew.
    """

    status = RunStatus.PENDING
    outcome = "continued"

    input: bytes
    version: str | None = None


# Every operation stands here, once: what the wire reads, what is counted, shown and sealed follows from these lists.
EndRun: TypeAlias = CompleteRun | FailRun | EndCancelledRun
Transition: TypeAlias = ParkRun | HandBackRun | RetryRun | ContinueRun | EndRun
Operation: TypeAlias = (
    StartStep | CompleteStep | FailStep | CancelStep | SpawnChild | TakeOutcome | TakeSignal | SetValue | Transition
)
OPERATIONS: Final[tuple[type[Operation], ...]] = get_args(Operation)
TRANSITIONS: Final[tuple[type[Transition], ...]] = get_args(Transition)
ENDS: Final[tuple[type[EndRun], ...]] = get_args(EndRun)


class Chunk(Struct, frozen=True, kw_only=True):
    namespace: str
    run_id: str
    token: str
    operations: tuple[Operation, ...]


def lets_go_as(chunk: Chunk, status: str) -> bool:
    """Returns whether a run that was let go of and has this status can have been left so by this chunk."""
    last = chunk.operations[-1] if chunk.operations else None
    return isinstance(last, RunOperation) and last.status == status


class ChunkAnswer(Enum):
    DONE = "done"
    LEASE_LOST = "lease lost"  # nothing of the chunk was applied
    NEWS = "news"  # all but its last operation was applied; the run is still leased and its inbox has grown


class BirthLease(Struct, frozen=True, kw_only=True):
    """A lease given to a run in the moment it is inserted, because a worker beside the caller has a free slot."""

    worker_id: str
    token: str
    length: Span
    poll: int | None = None  # the number of the poll that waits for it; None if the worker is in this process


class StartSignal(Struct, frozen=True, kw_only=True):
    """What a run is told with its start, see `SendSignal`."""

    name: str
    value: bytes
    key: str


class StartDebounce(Struct, frozen=True, kw_only=True):
    """Which run a start joins instead of making one: that of its workflow with this key, if nobody has begun it."""

    key: str  # empty: one for the whole workflow
    wait: Span  # the run begins so long after the last start
    most: Span | None = None  # and at most so long after the first


class StartedBy(Struct, frozen=True):
    """The attempt of a step whose body has started a run."""

    run_id: str
    step_id: str
    attempt: int


class StartRun(Struct, frozen=True, kw_only=True):
    """Insert a run. The caller makes `run_id`, so a repeated start is harmless; that of another run is a Conflict."""

    namespace: str
    run_id: str
    workflow_type: str
    task_queue: str
    version: str | None = None  # None: the engine decides (`engine.versions`), before a store sees it
    input: bytes = b"null"
    external_id: str | None = None
    priority: int = 0
    delay: Span = 0
    start_at: Instant | None = None  # instead of delay; one in the past is now
    timeout: Span | None = None  # deadline = creation + timeout
    deadline_at: Instant | None = None  # the earlier of both counts
    retry_policy: bytes | None = None
    lease_length: Span | None = None  # None is the engine's default
    lease: BirthLease | None = None
    trace_context: str | None = None  # the span that started it, as `kagzi.tracing` writes it
    on_failure: str | None = None  # the workflow that is started if this run fails
    on_failure_queue: str | None = None  # the queue of that workflow's run; None: the queue of this one
    tags: dict[str, str] = {}
    on_conflict: OnConflict = OnConflict.RETURN
    # Sent to the run that has the id, made or found, in the same transaction. The input of a live one is not compared.
    signal: StartSignal | None = None
    limit_name: str | None = None  # whose limits count beside those of its workflow; None: only those
    limit_key: str | None = None  # whose share of the limits of that name it takes
    debounce: StartDebounce | None = None  # gives another start's run this input, if that has not begun
    started_by: StartedBy | None = None  # remembered, and no more: neither hears of the other's end
    # Whoever starts it knows the workflow by its name alone, so the engine completes the start by what a worker has
    # told of it (`engine.by_name`), as it does for one that names no version. `other_queue`: with its queue, too, and
    # `task_queue` is for a workflow of which none was told.
    by_name: bool = False
    other_queue: bool = False


class Started(Struct, frozen=True, kw_only=True):
    """Answer to StartRun: the run that now has this id.

    `born` is set when the run was inserted RUNNING under the BirthLease: then `started_at` is its start time and the
    database's time of that moment.
    """

    run_id: str
    already_exists: bool = False
    status: RunStatus = RunStatus.PENDING
    born: bool = False
    started_at: Instant = 0
    available_at: Instant = 0
    end: Run | None = None  # the finished run, if it came along
    signal: SignalAnswer | None = None  # what became of the signal that came along
    left_line: bool = False  # it was held for a limit, or next in line, and is not any more
    note: str = ""  # what the caller may want to hear: that no worker has offered the workflow


class CancelRun(Struct, frozen=True, kw_only=True):
    """Ask a run to end. One that never executed ends CANCELLED at once. Any other is woken and told, and may clean up
    for `grace` from now on; then it ends, cleaned up or not. Repeating it changes nothing."""

    namespace: str
    run_id: str
    grace: Span = CANCEL_GRACE


class TerminateRun(Struct, frozen=True, kw_only=True):
    """End a run CANCELLED at once, whatever it is doing. It cleans nothing up."""

    namespace: str
    run_id: str
    reason: str = ""


class CancelAnswer(Struct, frozen=True, kw_only=True):
    """Answer to CancelRun and TerminateRun.

    `effective` is True if the run is CANCELLED or has been told to end, by this request or by an earlier one, and False
    if it had finished otherwise: that is final. `status` is where it stands now.
    """

    run_id: str
    effective: bool
    status: RunStatus
    task_queue: str = ""
    available_at: Instant = 0


class Fork(Struct, frozen=True, kw_only=True):
    """What makes a fork of a repeat. The source may be live, keeps its id and does not change. What it has recorded
    before the end of the step `from_step` is kept, nothing without one; the input and the version may be others."""

    from_step: str | None = None  # its whole id
    input: bytes | None = None
    version: str | None = None


class RepeatRun(Struct, frozen=True, kw_only=True):
    """Insert a run like `of_run_id`, which has finished: same type, version, queue and input. With `keep_id` the id of
    the old one (`external_id`) goes to the new one; the old one changes in nothing else. The caller makes `run_id`, so
    repeating this is harmless.

    With `keep_steps` the new run begins with what the old one has recorded, up to its first final failure or to its
    cancellation; without, from scratch. The answer is `Started`, NotFound, or Conflict for a run that has not finished
    and for a `run_id` that a run has which differs from what is asked for. A run gives its id up once: with `keep_id`
    the answer is then the run that has it from there (`already_exists`), or Conflict if that has not ended well.
    """

    namespace: str
    run_id: str
    of_run_id: str
    keep_steps: bool
    keep_id: bool = True
    fork: Fork | None = None


class SendSignal(Struct, frozen=True, kw_only=True):
    """Tell a live run something. Kept until the workflow takes it, in the order of arrival. A repeat with the same key
    changes nothing and gets the same answer, also when the run has finished since. Without a `run_id` it is for the run
    that has the id `external_id` at that moment."""

    namespace: str
    run_id: str = ""
    external_id: str | None = None
    name: str
    value: bytes
    key: str


class SignalAnswer(Struct, frozen=True, kw_only=True):
    """Answer to SendSignal: its number in the run's inbox, and where the run stands. Errors: NotFound, Conflict for a
    finished run and for a key that a signal of another name has, LimitExceeded for an inbox that is full."""

    run_id: str
    seq: int
    status: RunStatus
    repeated: bool = False
    task_queue: str = ""
    available_at: Instant = 0


class WakeAnswer(Struct, frozen=True, kw_only=True):
    """What came of waking a run: whether it slept or waited for another attempt, and where it stands now."""

    run_id: str
    woken: bool
    status: RunStatus
    task_queue: str = ""
    available_at: Instant = 0


Write: TypeAlias = StartRun | Chunk | CancelRun | TerminateRun | RepeatRun | SendSignal
Answer: TypeAlias = "Started | ChunkAnswer | CancelAnswer | SignalAnswer | Exception"
