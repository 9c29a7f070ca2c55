"""Chunks: operations of runs under their leases.

The transaction holds the only write lock, so a batch is decided in Python: read who holds the runs, sort the operations
into a few lists of rows, write each list with one statement. What the lists say about a run is known as the batch goes
on, so several chunks of one run apply in their order, and one that comes after the run was let go of is a repeat like
any other.
"""

from __future__ import annotations

import sqlite3
from operator import attrgetter
from typing import Final, assert_never

import msgspec
from msgspec import Struct

from kagzi.api.operations import (
    TRANSITIONS,
    Answer,
    CancelStep,
    Chunk,
    ChunkAnswer,
    CompleteRun,
    CompleteStep,
    ContinueRun,
    EndCancelledRun,
    FailRun,
    FailStep,
    HandBackRun,
    Operation,
    ParkRun,
    RetryRun,
    SetValue,
    SpawnChild,
    StartStep,
    StepOperation,
    TakeOutcome,
    TakeSignal,
    lets_go_as,
)
from kagzi.core.instant import Instant
from kagzi.core.step import StepKind
from kagzi.store.ends import has_consequences
from kagzi.store.protocol.changes import RunKey, Told
from kagzi.store.sqlite.children import spawn_child, take_outcome
from kagzi.store.sqlite.continues import continue_run
from kagzi.store.sqlite.ends import ended
from kagzi.store.sqlite.run_rows import INLINE_BYTES, claim_key
from kagzi.store.sqlite.signals import take_signal
from kagzi.store.sqlite.statements import Row, execute, execute_rows
from kagzi.store.sqlite.values import set_values
from kagzi.store.waits import waiting_for

_STEP_STATUS: Final[dict[type[Operation], str]] = {
    kind: kind.status.value for kind in (StartStep, CompleteStep, FailStep, CancelStep, TakeSignal)
}
_RELEASES: Final = frozenset(kind for kind in TRANSITIONS if not kind.status.finished)
_step_columns = attrgetter(
    "step_id",
    "attempt",
    "completed_seq",
    "started_at",
    "finished_at",
    "retry_at",
    "timeout_at",
    "input",
    "input_hash",
    "output",
    "error",
)


class _Lease(Struct, array_like=True):
    """What is known of a run while the batch is decided: a row of `read_leases`."""

    run_id: str
    token: str | None
    status: str
    inbox_seq: int
    priority: int
    attempts: int
    cancel_requested: int


_read_rows = msgspec.json.Decoder(list[_Lease]).decode


class _Rows:
    """What the batch will write, in the order of writing."""

    def __init__(self) -> None:
        self.completed: list[Row] = []
        self.steps: list[Row] = []
        self.taken: list[Row] = []
        self.values: list[Row] = []
        self.outcomes: list[Row] = []
        self.woken: list[Told] = []
        self.finished: list[Row] = []
        self.ended: list[RunKey] = []  # of those, the runs whose end may have consequences
        self.outputs: list[Row] = []
        self.released: list[Row] = []
        self.handed_back: list[RunKey] = []
        self.retried: list[tuple[Chunk, RetryRun, _Lease]] = []
        self.continued: list[tuple[Chunk, ContinueRun, _Lease]] = []


def apply_chunks(
    connection: sqlite3.Connection, chunks: list[tuple[int, Chunk]], answers: list[Answer], now: Instant
) -> list[Told]:
    """Applies chunks and answers them; returns who was told of the ends among them."""
    leases = None if _all_held(connection, chunks) else _read_leases(connection, chunks)
    lease: _Lease | None = None
    rows = _Rows()
    completed, function = rows.completed, StepKind.FUNCTION
    for position, chunk in chunks:
        namespace, run_id = chunk.namespace, chunk.run_id
        if leases is not None:
            lease = leases.get((namespace, run_id))
            if lease is None or lease.token != chunk.token:
                answers[position] = ChunkAnswer.LEASE_LOST
                continue
            if lease.status != "RUNNING":
                # The token is still ours, so nobody has touched the run since it was let go of: by this chunk, or it
                # comes too late.
                if not lets_go_as(chunk, lease.status):
                    answers[position] = ChunkAnswer.LEASE_LOST
                continue
        plain = leases is None  # then each run has one chunk only
        for operation in chunk.operations:
            if (
                plain
                and type(operation) is CompleteStep
                and operation.kind is function
                and (input := operation.input) is not None
                and (output := operation.output) is not None
            ):
                # Nearly every operation is such a one. None and bytes are what Python's binding of SQLite is slow to
                # take: it looks for adapters, raising and dropping an AttributeError for each. So nothing of that is
                # among the values here (bytearray it takes at once), which saves a quarter of the whole statement.
                completed.append(
                    (
                        namespace,
                        run_id,
                        operation.step_id,
                        operation.attempt,
                        operation.completed_seq,
                        operation.started_at,
                        operation.finished_at,
                        bytearray(input),
                        operation.input_hash,
                        bytearray(output),
                    )
                )
            elif (status := _STEP_STATUS.get(type(operation))) is not None:
                assert isinstance(operation, StepOperation)
                plain = False  # what follows in this chunk is written after this one
                rows.steps.append((namespace, run_id, status, operation.kind._value_, *_step_columns(operation)))
                if type(operation) is TakeSignal:
                    rows.taken.append((namespace, run_id, operation.signal, operation.completed_seq))
            elif type(operation) is SetValue:
                rows.values.append((namespace, run_id, chunk.token, operation.name, operation.value, operation.number))
            elif type(operation) is SpawnChild:
                _spawn(connection, rows, chunk, operation, lease, now)
            elif type(operation) is TakeOutcome:
                rows.outcomes.append(
                    (
                        namespace,
                        run_id,
                        operation.step_id,
                        operation.attempt,
                        operation.completed_seq,
                        operation.finished_at,
                    )
                )
            elif not _transition(rows, chunk, operation, lease, now):
                answers[position] = ChunkAnswer.NEWS
    return _write(connection, rows, now)


def _spawn(
    connection: sqlite3.Connection, rows: _Rows, chunk: Chunk, spawn: SpawnChild, lease: _Lease | None, now: Instant
) -> None:
    """Inserts a child at once: an outcome that is there already counts for a ParkRun behind it."""
    told = spawn_child(connection, chunk, spawn, now)
    if told is not None:
        rows.woken.append(told)
        if told.run_id == chunk.run_id and lease is not None:
            lease.inbox_seq = told.inbox_seq


def _all_held(connection: sqlite3.Connection, chunks: list[tuple[int, Chunk]]) -> bool:
    """Whether all these runs are held under the tokens of their chunks, and nothing else need be known of them: as a
    rule it is so, and counting them costs half of what reading them does. Nothing has arrived for them, either."""
    tokens: dict[str, dict[str, str]] = {}
    for _, chunk in chunks:
        if not chunk.operations or type(chunk.operations[-1]) in _RELEASES:
            return False
        tokens.setdefault(chunk.namespace, {})[chunk.run_id] = chunk.token
    held = 0
    for namespace, wanted in tokens.items():
        values = (namespace, msgspec.json.encode(wanted).decode())
        held += execute(connection, "count_held_runs", values).fetchone()[0]
    return held == len(chunks)  # with two chunks of one run there are fewer: the second depends on the first


def _read_leases(connection: sqlite3.Connection, chunks: list[tuple[int, Chunk]]) -> dict[tuple[str, str], _Lease]:
    wanted: dict[str, list[str]] = {}
    for _, chunk in chunks:
        wanted.setdefault(chunk.namespace, []).append(chunk.run_id)
    leases: dict[tuple[str, str], _Lease] = {}
    for namespace, run_ids in wanted.items():
        text = execute(connection, "read_leases", (namespace, msgspec.json.encode(run_ids).decode())).fetchone()[0]
        for lease in _read_rows(text):
            leases[namespace, lease.run_id] = lease
    return leases


def _transition(rows: _Rows, chunk: Chunk, operation: Operation, lease: _Lease | None, now: Instant) -> bool:
    """Notes what happens to the run; False if it goes on because there is news. Without a lease there is none."""
    namespace, run_id, token = chunk.namespace, chunk.run_id, chunk.token
    match operation:
        case CompleteRun(output=output):
            if operation.unless_cancelled and lease is not None and lease.cancel_requested:
                return False
            if len(output) > INLINE_BYTES:
                rows.outputs.append((namespace, run_id, "output", output))
            stored = bytearray(output) if len(output) <= INLINE_BYTES else None
            rows.finished.append((namespace, run_id, token, "COMPLETED", stored, None, now))
        case FailRun(error=error):
            rows.finished.append((namespace, run_id, token, "FAILED", None, error, now))
        case EndCancelledRun(error=error):
            rows.finished.append((namespace, run_id, token, "CANCELLED", None, error, now))
        case ContinueRun():
            assert lease is not None  # see _all_held
            rows.continued.append((chunk, operation, lease))
        case ParkRun() | HandBackRun() | RetryRun():
            assert lease is not None  # see _all_held
            if not _release(rows, chunk, operation, lease, now):
                return False
        case StepOperation() | SetValue():
            raise TypeError(f"nobody has said here what {type(operation).__name__} writes")
        case _:
            assert_never(operation)
    if lease is not None:
        lease.status = operation.status._value_
    if has_consequences(operation):
        rows.ended.append((namespace, run_id))
    return True


def _release(
    rows: _Rows, chunk: Chunk, operation: ParkRun | HandBackRun | RetryRun, lease: _Lease, now: Instant
) -> bool:
    namespace, run_id, token = chunk.namespace, chunk.run_id, chunk.token
    match operation:
        case ParkRun(available_at=at):
            if lease.inbox_seq > operation.inbox_seq:
                return False
            rows.released.append(
                (namespace, run_id, token, "SLEEPING", at, claim_key(at, lease.priority, now), waiting_for(operation))
            )
        case HandBackRun(available_at=available_at):
            at = now if available_at is None else _when(available_at, lease, now)
            rows.released.append((namespace, run_id, token, "PENDING", at, claim_key(at, lease.priority, now), None))
            rows.handed_back.append((namespace, run_id))
        case RetryRun():
            rows.retried.append((chunk, operation, lease))
        case _:
            assert_never(operation)
    return True


def _when(available_at: Instant, lease: _Lease, now: Instant) -> Instant:
    """Returns when a run can be claimed again: at once if it was told to end."""
    return min(available_at, now) if lease.cancel_requested else available_at


def _write(connection: sqlite3.Connection, rows: _Rows, now: Instant) -> list[Told]:
    if rows.completed:
        execute_rows(connection, "complete_steps", rows.completed)
    if rows.steps:
        execute_rows(connection, "write_steps", rows.steps)
    for taken in rows.taken:
        take_signal(connection, taken)
    if rows.values:
        set_values(connection, rows.values, now)
    for outcome in rows.outcomes:
        take_outcome(connection, outcome)
    if rows.outputs:
        execute_rows(connection, "insert_payloads", rows.outputs)
    if rows.finished:
        execute_rows(connection, "finish_runs", rows.finished)
    if rows.released:
        execute_rows(connection, "release_runs", rows.released)
    for run in rows.handed_back:
        execute(connection, "forget_step_timeouts", run)
    for chunk, retry, lease in rows.retried:
        _retry_run(connection, chunk, retry, lease, now)
    for chunk, anew, lease in rows.continued:
        continue_run(connection, chunk, anew, lease.priority, now)
    return rows.woken + ended(connection, rows.ended, now)


def _retry_run(connection: sqlite3.Connection, chunk: Chunk, retry: RetryRun, lease: _Lease, now: Instant) -> None:
    attempts = lease.attempts + 1
    at = _when(retry.available_at, lease, now)
    key = claim_key(at, lease.priority, now)
    execute(
        connection,
        "retry_run",
        (
            chunk.namespace,
            chunk.run_id,
            chunk.token,
            attempts,
            at,
            key,
            retry.error,
            retry.keep_seq,
        ),
    )
    execute(connection, "set_steps_aside", (chunk.namespace, chunk.run_id, retry.keep_seq, attempts))
    execute(connection, "give_signals_back", (chunk.namespace, chunk.run_id, retry.keep_seq))
    execute(connection, "give_outcomes_back", (chunk.namespace, chunk.run_id, retry.keep_seq))
