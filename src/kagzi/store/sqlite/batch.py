"""apply(): the writes of one batch in one transaction.

The transaction holds the only write lock, so the batch is decided in Python: read who holds the runs, sort
the operations into a few lists of rows, write each list with one statement. What the lists say about a run is
known as the batch goes on, so several chunks of one run apply in their order, and one that comes after the
run was let go of is a repeat like any other.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from operator import attrgetter
from typing import Final

import msgspec
from msgspec import Struct

from kagzi.api.operations import (
    Answer,
    CancelStep,
    Chunk,
    ChunkAnswer,
    CompleteRun,
    CompleteStep,
    EndCancelledRun,
    FailRun,
    FailStep,
    HandBackRun,
    Operation,
    ParkRun,
    RetryRun,
    SendSignal,
    SetValue,
    Started,
    StartRun,
    StartStep,
    StepOperation,
    TakeSignal,
    Write,
    lets_go_as,
)
from kagzi.core.instant import Instant
from kagzi.core.run import RunStatus
from kagzi.core.step import StepKind
from kagzi.errors import InvalidRequest, KagziError
from kagzi.store.sqlite.cancels import apply_request
from kagzi.store.sqlite.connection import begin
from kagzi.store.sqlite.runs import INLINE_BYTES, claim_key
from kagzi.store.sqlite.signals import send_signal, take_signal
from kagzi.store.sqlite.statements import Row, execute, execute_rows
from kagzi.store.sqlite.values import set_values
from kagzi.store.starts import Identity, identity_of, refusal
from kagzi.store.waits import waiting_for

# What a value that no column takes raises, from Python or from SQLite.
_BAD_VALUES: Final = (
    OverflowError,
    UnicodeError,
    TypeError,
    ValueError,
    sqlite3.IntegrityError,
    sqlite3.DataError,
    sqlite3.InterfaceError,
    sqlite3.ProgrammingError,
)


def apply(connection: sqlite3.Connection, writes: Sequence[Write], now: Instant) -> list[Answer]:
    try:
        return _apply(connection, writes, now)
    except _BAD_VALUES:
        connection.execute("ROLLBACK")
        begin(connection)
        return _apply_one_by_one(connection, writes, now)


def _apply(connection: sqlite3.Connection, writes: Sequence[Write], now: Instant) -> list[Answer]:
    answers: list[Answer] = [ChunkAnswer.DONE] * len(writes)
    starts = [(position, write) for position, write in enumerate(writes) if type(write) is StartRun]
    if starts:
        _start_runs(connection, starts, answers, now)
    if len(starts) < len(writes):
        chunks = [(position, write) for position, write in enumerate(writes) if isinstance(write, Chunk)]
        if chunks:
            _apply_chunks(connection, chunks, answers, now)
        if len(starts) + len(chunks) < len(writes):
            for position, write in enumerate(writes):
                if isinstance(write, SendSignal):
                    answers[position] = send_signal(connection, write, now)
                elif not isinstance(write, StartRun | Chunk):
                    answers[position] = apply_request(connection, write, now)
    return answers


def _apply_one_by_one(connection: sqlite3.Connection, writes: Sequence[Write], now: Instant) -> list[Answer]:
    """Something in the batch cannot be stored: find it, and let the others pass."""
    answers: list[Answer] = []
    refused: dict[tuple[str, str], KagziError] = {}
    for write in writes:
        run = (write.namespace, write.run_id)
        if run in refused:
            answers.append(refused[run])  # nothing of a run is applied after a refused operation
            continue
        connection.execute("SAVEPOINT single")
        try:
            answers += _apply(connection, [write], now)
        except _BAD_VALUES as error:
            connection.execute("ROLLBACK TO single")
            refused[run] = InvalidRequest(f"the database cannot store this: {error}")
            answers.append(refused[run])
        connection.execute("RELEASE single")
    return answers


# Starts.


def _start_runs(
    connection: sqlite3.Connection,
    starts: list[tuple[int, StartRun]],
    answers: list[Answer],
    now: Instant,
) -> None:
    rows: list[Row] = []
    large: list[Row] = []
    for position, start in starts:
        answers[position] = started = _new_run(start, now)
        if len(start.input) > INLINE_BYTES:
            large.append((start.namespace, start.run_id, "input", start.input))
        rows.append(_run_row(start, started, now))
    if execute_rows(connection, "insert_runs", rows) == len(rows):
        if large:
            execute_rows(connection, "insert_payloads", large)
        return
    # Some were there before, or twice in this batch.
    fresh = {identity_of(start): start.input for _, start in reversed(starts)}
    for position, start in starts:
        answer = _existing_run(connection, start, fresh)
        answers[position] = answer
        if isinstance(answer, Started) and answer.run_id == start.run_id and len(start.input) > INLINE_BYTES:
            execute_rows(connection, "insert_payloads", [(start.namespace, start.run_id, "input", start.input)])


def _new_run(start: StartRun, now: Instant) -> Started:
    # What is due in the past waits from now on: it is no older than others that are started now.
    available_at = max(now + start.delay, start.start_at or 0)
    if start.lease is not None and available_at <= now:
        return Started(
            run_id=start.run_id,
            status=RunStatus.RUNNING,
            born=True,
            started_at=now,
            available_at=available_at,
        )
    return Started(run_id=start.run_id, available_at=available_at)


def _run_row(start: StartRun, started: Started, now: Instant) -> Row:
    deadline_at = start.deadline_at
    if start.timeout is not None and (deadline_at is None or now + start.timeout < deadline_at):
        deadline_at = now + start.timeout
    token = worker_id = poll = lease_expires_at = started_at = None
    lease_length = start.lease_length
    if started.born and start.lease is not None:
        token, worker_id, poll, started_at = start.lease.token, start.lease.worker_id, start.lease.poll, now
        lease_length = start.lease.length if lease_length is None else lease_length
        lease_expires_at = now + start.lease.length
    return (
        start.namespace,
        start.run_id,
        start.external_id,
        start.task_queue,
        start.workflow_type,
        start.version,
        started.status._value_,
        start.priority,
        now,
        started.available_at,
        None if started.born else claim_key(started.available_at, start.priority, now),
        deadline_at,
        start.input if len(start.input) <= INLINE_BYTES else None,
        start.retry_policy,
        lease_length,
        token,
        worker_id,
        poll,
        lease_expires_at,
        started_at,
        1 if started.born else 0,
        start.trace_context,
    )


def _existing_run(connection: sqlite3.Connection, start: StartRun, fresh: dict[Identity, bytes]) -> Answer:
    row = execute(connection, "find_started_run", (start.namespace, start.run_id, start.external_id)).fetchone()
    *identity, status, token, started_at, available_at, input = row
    found = Identity(*identity)
    if input is None:
        # Inserted by this batch, and its large input is not written yet.
        input = fresh[found]
    if (conflict := refusal(start, found, input)) is not None:
        return conflict
    if found.run_id == start.run_id:
        # Inserted now, or by an earlier sending of this very start.
        born = start.lease is not None and token == start.lease.token and status == "RUNNING"
        return Started(
            run_id=start.run_id,
            status=RunStatus(status),
            born=born,
            started_at=started_at or 0,
            available_at=available_at,
        )
    return Started(run_id=found.run_id, already_exists=True, status=RunStatus(status), available_at=available_at)


# Chunks.

_STEP_STATUS: Final[dict[type[Operation], str]] = {
    StartStep: "RUNNING",
    CompleteStep: "COMPLETED",
    FailStep: "FAILED",
    CancelStep: "CANCELLED",
    TakeSignal: "COMPLETED",
}
_RELEASES: Final[frozenset[type[Operation]]] = frozenset({ParkRun, HandBackRun, RetryRun})
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
        self.finished: list[Row] = []
        self.outputs: list[Row] = []
        self.released: list[Row] = []
        self.handed_back: list[tuple[str, str]] = []
        self.retried: list[tuple[Chunk, RetryRun, _Lease]] = []


def _apply_chunks(
    connection: sqlite3.Connection, chunks: list[tuple[int, Chunk]], answers: list[Answer], now: Instant
) -> None:
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
            elif not _transition(rows, chunk, operation, lease, now):
                answers[position] = ChunkAnswer.NEWS
    _write(connection, rows, now)


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
    if lease is not None:
        if type(operation) is CompleteRun:
            if operation.unless_cancelled and lease.cancel_requested:
                return False
        elif type(operation) in _RELEASES:
            return _release(rows, chunk, operation, lease, now)
        lease.status = operation.status._value_  # type: ignore[union-attr]
    namespace, run_id, token = chunk.namespace, chunk.run_id, chunk.token
    match operation:
        case CompleteRun(output=output):
            if len(output) > INLINE_BYTES:
                rows.outputs.append((namespace, run_id, "output", output))
            stored = bytearray(output) if len(output) <= INLINE_BYTES else None
            rows.finished.append((namespace, run_id, token, "COMPLETED", stored, None, now))
        case FailRun(error=error):
            rows.finished.append((namespace, run_id, token, "FAILED", None, error, now))
        case EndCancelledRun(error=error):
            rows.finished.append((namespace, run_id, token, "CANCELLED", None, error, now))
        case _:
            raise TypeError(f"{type(operation).__name__} is not an operation of a chunk")
    return True


def _release(rows: _Rows, chunk: Chunk, operation: Operation, lease: _Lease, now: Instant) -> bool:
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
    lease.status = operation.status._value_  # type: ignore[union-attr]
    return True


def _when(available_at: Instant, lease: _Lease, now: Instant) -> Instant:
    """Whoever was told to end does not wait in the queue."""
    return min(available_at, now) if lease.cancel_requested else available_at


def _write(connection: sqlite3.Connection, rows: _Rows, now: Instant) -> None:
    if rows.completed:
        execute_rows(connection, "complete_steps", rows.completed)
    if rows.steps:
        execute_rows(connection, "write_steps", rows.steps)
    for taken in rows.taken:
        take_signal(connection, taken)
    if rows.values:
        set_values(connection, rows.values, now)
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
