"""Applies a chunk that is alone in its batch, as on an idle system: as `chunks` does, without arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

from kagzi.api.operations import (
    CancelStep,
    Chunk,
    ChunkAnswer,
    CompleteRun,
    CompleteStep,
    EndCancelledRun,
    FailRun,
    FailStep,
    Operation,
    ParkRun,
    SpawnChild,
    StartStep,
    StepOperation,
    TakeOutcome,
    Transition,
    lets_go_as,
)
from kagzi.core.carried import kept_of
from kagzi.core.instant import Instant
from kagzi.core.run import RunStatus
from kagzi.store.ends import may_have_family
from kagzi.store.postgres.statements import STATEMENTS
from kagzi.store.protocol.changes import Applied, Told
from kagzi.store.waits import waiting_for

if TYPE_CHECKING:
    import asyncpg

    from kagzi.store.postgres.connection import Connection

UNLESS_CANCELLED: Final = -(2**31)  # as the statements have it
_WHATEVER_HAS_ARRIVED: Final = 2**31 - 1
INLINE_BYTES: Final = 1024  # larger inputs and outputs of runs live in workflow_payloads

_RECORD_STEP = STATEMENTS["record_step"]
_RECORD_STEP_AND_MOVE_RUN = STATEMENTS["record_step_and_move_run"]
_RECORD_STEP_AND_FAIL_RUN = STATEMENTS["record_step_and_fail_run"]
_END_RUN_OF_FAMILY = STATEMENTS["end_run_of_family"]
_SPAWN_CHILD = STATEMENTS["spawn_child"]
_NO_STEP = (None,) * 13
ROWS: Final = frozenset({StartStep, CompleteStep, FailStep, CancelStep})  # steps that nothing else follows from


async def apply_single(connection: Connection, chunk: Chunk, now: Instant | None) -> Applied | None:
    """Applies this chunk and answers it; None if it is not simple enough, and nothing was done."""
    if chunk.operations and type(chunk.operations[-1]) is SpawnChild:
        return await _spawn(connection, chunk, chunk.operations[-1], now)
    simple = _simple(chunk.operations)
    if simple is None:
        return None
    step, move = simple
    columns = _NO_STEP if step is None else step_columns(step)
    if move is None:
        rows = await connection.fetch(_RECORD_STEP, chunk.namespace, chunk.run_id, chunk.token, *columns)
    elif type(move) is FailRun:
        rows = await connection.fetch(
            _RECORD_STEP_AND_FAIL_RUN, chunk.namespace, chunk.run_id, chunk.token, *columns, now, move.error
        )
        if rows and rows[0]["handled"] and rows[0]["status"] == RunStatus.RUNNING:
            return None
    elif may_have_family(move):
        return await _end_in_family(connection, chunk, step, move, now)
    else:
        park = move if isinstance(move, ParkRun) else None
        rows = await connection.fetch(
            _RECORD_STEP_AND_MOVE_RUN,
            chunk.namespace,
            chunk.run_id,
            chunk.token,
            *columns,
            seen_by(move),
            now,
            move.status,
            park and park.available_at,
            move.output if isinstance(move, CompleteRun) else None,
            move.error if isinstance(move, EndCancelledRun) else None,
            park and waiting_for(park),
        )
    if not rows:
        return Applied([ChunkAnswer.LEASE_LOST], [])
    return Applied([_answer(chunk, rows[0]["status"], rows[0]["quiet"])], [])


async def _end_in_family(
    connection: Connection, chunk: Chunk, step: StepOperation | None, move: Transition, now: Instant | None
) -> Applied | None:
    rows = await connection.fetch(
        _END_RUN_OF_FAMILY,
        chunk.namespace,
        chunk.run_id,
        chunk.token,
        *(_NO_STEP if step is None else step_columns(step)),
        seen_by(move),
        now,
        move.status,
        move.output if isinstance(move, CompleteRun) else None,
        move.error if isinstance(move, EndCancelledRun) else None,
        type(step) is TakeOutcome,
    )
    if not rows:
        return Applied([ChunkAnswer.LEASE_LOST], [])
    row = rows[0]
    if row["was"] == RunStatus.RUNNING and not row["taken"]:
        return None
    told = [] if row["run_id"] is None else [told_of(row)]
    return Applied([_answer(chunk, row["was"], row["quiet"])], told)


async def _spawn(connection: Connection, chunk: Chunk, spawn: SpawnChild, now: Instant | None) -> Applied | None:
    """A child, behind at most one other step. Only one whose id nobody else can have, and whose place is free."""
    first = chunk.operations[0] if len(chunk.operations) == 2 else None
    if len(chunk.operations) > 2 or spawn.child.external_id is not None or len(spawn.input or b"") > INLINE_BYTES:
        return None
    if first is not None and (
        not isinstance(first, StepOperation)
        or (type(first) not in ROWS and type(first) is not TakeOutcome)
        or (first.step_id, first.attempt) == (spawn.step_id, spawn.attempt)
    ):
        return None
    rows = await connection.fetch(
        _SPAWN_CHILD,
        chunk.namespace,
        chunk.run_id,
        chunk.token,
        *(_NO_STEP if first is None else step_columns(first)),
        now,
        type(first) is TakeOutcome,
        *spawn_row(chunk.namespace, chunk.run_id, spawn)[2:],
    )
    if not rows:
        return Applied([ChunkAnswer.LEASE_LOST], [])
    if rows[0]["status"] != RunStatus.RUNNING:
        return Applied([_answer(chunk, rows[0]["status"], True)], [])
    if not rows[0]["made"]:
        return None
    return Applied([ChunkAnswer.DONE], [spawned(chunk.namespace, spawn, rows[0]["now"])])


def _answer(chunk: Chunk, status: str, quiet: bool) -> ChunkAnswer:
    if status != RunStatus.RUNNING:
        return ChunkAnswer.DONE if lets_go_as(chunk, status) else ChunkAnswer.LEASE_LOST
    return ChunkAnswer.DONE if quiet else ChunkAnswer.NEWS


def told_of(row: asyncpg.Record) -> Told:
    """Returns a run that has got news, from a statement that returns `changed_run` and its inbox's number."""
    return Told(
        namespace=row["namespace"],
        run_id=str(row["run_id"]),
        task_queue=row["task_queue"],
        status=RunStatus(row["status"]),
        available_at=row["available_at"] or 0,
        inbox_seq=row["inbox_seq"],
    )


def seen_by(move: Transition) -> int:
    """Returns how much of the run's inbox this transition knows of; UNLESS_CANCELLED if only a cancellation counts."""
    if type(move) is CompleteRun and move.unless_cancelled:
        return UNLESS_CANCELLED
    return move.inbox_seq if type(move) is ParkRun else _WHATEVER_HAS_ARRIVED


def _simple(operations: tuple[Operation, ...]) -> tuple[StepOperation | None, Transition | None] | None:
    """Returns whether a chunk has at most one step, then at most one transition that touches nothing but the rows of
    the run and of its parent: a failure only if the run has none and nothing handles it, which the database knows."""
    if not 1 <= len(operations) <= 2:
        return None
    first, last = operations[0], operations[-1]
    if isinstance(last, StepOperation):
        return (last, None) if len(operations) == 1 and type(last) in ROWS else None
    if not isinstance(last, ParkRun | CompleteRun | FailRun | EndCancelledRun):
        return None
    family = may_have_family(last)
    if (family and type(last) is FailRun) or (isinstance(last, CompleteRun) and len(last.output) > INLINE_BYTES):
        return None
    if len(operations) == 1:
        return None, last
    if type(first) not in ROWS and not (isinstance(first, StepOperation) and _taken(first, last, family)):
        return None
    return cast("StepOperation", first), last


def _taken(first: StepOperation, last: Transition, family: bool) -> bool:
    """Returns whether an outcome can be taken in the statement that ends the run. If the end is declined, because the
    run was told to end, the outcome must stay taken, which that statement knows; the others know of no outcomes."""
    return type(first) is TakeOutcome and family and isinstance(last, CompleteRun | EndCancelledRun)


def step_columns(step: StepOperation) -> tuple[object, ...]:
    return (
        step.step_id,
        step.attempt,
        step.kind,
        step.status,
        step.completed_seq,
        step.started_at,
        step.finished_at,
        step.retry_at,
        step.timeout_at,
        step.input_hash,
        step.input,
        step.output,
        step.error,
    )


def spawn_row(namespace: str, parent: str, spawn: SpawnChild) -> tuple[object, ...]:
    """Returns what is written of a child and of the step that shows it, in the order of `spawn_children`."""
    child = spawn.child
    own = spawn.input or b"null"
    return (
        namespace,
        parent,
        spawn.step_id,
        spawn.attempt,
        spawn.started_at,
        spawn.input_hash,
        spawn.input,
        child.run_id,
        child.external_id,
        child.task_queue,
        child.workflow_type,
        child.version,
        child.priority,
        own if len(own) <= INLINE_BYTES else None,
        child.timeout,
        child.deadline_at,
        child.delay,
        child.start_at,
        child.policy.value,
        child.depth,
        *kept_of(child),
    )


def spawned(namespace: str, spawn: SpawnChild, now: Instant) -> Told:
    """Returns a child that was started now, for those who are told."""
    child = spawn.child
    return Told(
        namespace=namespace,
        run_id=child.run_id,
        task_queue=child.task_queue,
        status=RunStatus.PENDING,
        available_at=max(now + child.delay, child.start_at or 0),
        inbox_seq=0,
        workflow_type=child.workflow_type,
    )
