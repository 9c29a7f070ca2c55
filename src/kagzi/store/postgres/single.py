"""A chunk that is alone in its batch, as on an idle system: the same as `chunks`, without arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kagzi.api.operations import (
    Chunk,
    ChunkAnswer,
    CompleteRun,
    EndCancelledRun,
    FailRun,
    Operation,
    ParkRun,
    RunOperation,
    SpawnChild,
    StepOperation,
    TakeOutcome,
    TakeSignal,
    lets_go_as,
)
from kagzi.core.instant import Instant
from kagzi.core.run import RunStatus
from kagzi.store.ends import has_consequences
from kagzi.store.postgres.statements import STATEMENTS
from kagzi.store.waits import waiting_for

if TYPE_CHECKING:
    from kagzi.store.postgres.connection import Connection

UNLESS_CANCELLED: Final = -(2**31)  # as the statements have it
_WHATEVER_HAS_ARRIVED: Final = 2**31 - 1
INLINE_BYTES: Final = 1024  # larger inputs and outputs of runs live in workflow_payloads

_RECORD_STEP = STATEMENTS["record_step"]
_RECORD_STEP_AND_MOVE_RUN = STATEMENTS["record_step_and_move_run"]
_NO_STEP = (None,) * 13
_MORE_THAN_A_ROW: Final = frozenset({SpawnChild, TakeOutcome, TakeSignal})  # steps that something else follows from


async def apply_single(connection: Connection, chunk: Chunk, now: Instant | None) -> ChunkAnswer | None:
    """The answer to this chunk; None if it is not simple enough and nothing was done."""
    simple = _simple(chunk.operations)
    if simple is None:
        return None
    step, move = simple
    columns = _NO_STEP if step is None else step_columns(step)
    if move is None:
        rows = await connection.fetch(_RECORD_STEP, chunk.namespace, chunk.run_id, chunk.token, *columns)
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
            move.error if isinstance(move, FailRun | EndCancelledRun) else None,
            park and waiting_for(park),
        )
    if not rows:
        return ChunkAnswer.LEASE_LOST
    status = rows[0]["status"]
    if status != RunStatus.RUNNING:
        return ChunkAnswer.DONE if lets_go_as(chunk, status) else ChunkAnswer.LEASE_LOST
    return ChunkAnswer.DONE if rows[0]["quiet"] else ChunkAnswer.NEWS


def seen_by(move: RunOperation) -> int:
    """Returns how much of the run's inbox this transition knows of; UNLESS_CANCELLED if only a cancellation counts."""
    if isinstance(move, CompleteRun) and move.unless_cancelled:
        return UNLESS_CANCELLED
    return move.inbox_seq if isinstance(move, ParkRun) else _WHATEVER_HAS_ARRIVED


def _simple(operations: tuple[Operation, ...]) -> tuple[StepOperation | None, RunOperation | None] | None:
    """At most one step, then at most one transition that touches nothing but the run's row."""
    if not 1 <= len(operations) <= 2:
        return None
    first, last = operations[0], operations[-1]
    if isinstance(last, StepOperation):
        return (last, None) if len(operations) == 1 and type(last) not in _MORE_THAN_A_ROW else None
    if not isinstance(last, ParkRun | CompleteRun | FailRun | EndCancelledRun):
        return None
    if has_consequences(last) or (isinstance(last, CompleteRun) and len(last.output) > INLINE_BYTES):
        return None
    if len(operations) == 1:
        return None, last
    return (first, last) if isinstance(first, StepOperation) and type(first) not in _MORE_THAN_A_ROW else None


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
