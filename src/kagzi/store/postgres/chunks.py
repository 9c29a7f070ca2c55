"""Chunks of operations, turned into one statement a batch.

Rows of one run are folded before they are sent, because a statement may not touch a row twice: steps with the
same key become one, and a run has one transition at most. A chunk that cannot share a statement with those
before it (the same run under another token, or after its transition) waits for the next round.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from kagzi.api.operations import (
    Answer,
    Chunk,
    ChunkAnswer,
    CompleteRun,
    CompleteStep,
    ContinueRun,
    EndCancelledRun,
    FailRun,
    HandBackRun,
    Operation,
    ParkRun,
    RetryRun,
    SetValue,
    SpawnChild,
    StepOperation,
    TakeOutcome,
    TakeSignal,
    Transition,
    lets_go_as,
)
from kagzi.core.instant import Instant
from kagzi.core.step import StepKind, StepStatus
from kagzi.store.ends import has_consequences, may_have_family
from kagzi.store.postgres.children import Spawn, lock_families, spawn_children, take_outcomes
from kagzi.store.postgres.continues import continue_runs
from kagzi.store.postgres.ends import ended
from kagzi.store.postgres.signals import take_signals
from kagzi.store.postgres.single import INLINE_BYTES, ROWS, UNLESS_CANCELLED, apply_single, seen_by
from kagzi.store.postgres.statements import STATEMENTS
from kagzi.store.postgres.values import set_values
from kagzi.store.protocol.changes import Applied, Told
from kagzi.store.waits import waiting_for

if TYPE_CHECKING:
    import asyncpg

    from kagzi.store.postgres.connection import Connection

_RECORD_STEPS = STATEMENTS["record_steps"]
_RECORD_STEPS_AND_MOVE_RUNS = STATEMENTS["record_steps_and_move_runs"]
_STORE_OUTPUTS = STATEMENTS["store_outputs"]
_SET_STEPS_ASIDE = STATEMENTS["set_steps_aside"]
_GIVE_SIGNALS_BACK = STATEMENTS["give_signals_back"]
_GIVE_OUTCOMES_BACK = STATEMENTS["give_outcomes_back"]
_NO_STEPS: tuple[object, ...] = ([], [], [], [], None, None, None, [], [], [], None, None, [], None, [], None)
_FORGET_STEP_TIMEOUTS = STATEMENTS["forget_step_timeouts"]


async def apply_chunks(connection: Connection, chunks: Sequence[Chunk], now: Instant | None) -> Applied:
    if len(chunks) == 1 and (applied := await apply_single(connection, chunks[0], now)) is not None:
        return applied
    woken: list[Told] = []
    answers: list[Answer] = [ChunkAnswer.LEASE_LOST] * len(chunks)
    waiting = list(range(len(chunks)))
    while waiting:
        round = Round()
        waiting = [index for index in waiting if not round.add(index, chunks[index])]
        woken += await round.send(connection, now)
        round.answer(chunks, answers)
    return Applied(answers, woken)


class Leased:
    """The operations of a batch for one run under one token."""

    __slots__ = ("chunks", "move", "namespace", "outcomes", "plain", "run_id", "spawns", "steps", "token", "values")

    def __init__(self, index: int, chunk: Chunk) -> None:
        self.namespace = chunk.namespace
        self.run_id = chunk.run_id
        self.token = chunk.token
        self.chunks = [index]
        self.steps: list[StepOperation] = []
        self.values: list[SetValue] = []
        self.spawns: list[SpawnChild] = []
        self.outcomes: dict[str, TakeOutcome] = {}  # by the id of their steps
        self.move: Transition | None = None
        self.plain = True  # nothing is written but the rows of the run and of its steps

    def add(self, operations: Iterable[Operation]) -> None:
        for operation in operations:
            if type(operation) is CompleteStep:
                self.steps.append(operation)
            elif type(operation) is CompleteRun:
                self.move = operation
                self.plain = self.plain and operation.family is False and len(operation.output) <= INLINE_BYTES
            elif type(operation) is ParkRun:
                self.move = operation
            else:
                self._add_rarer(operation)

    def _add_rarer(self, operation: Operation) -> None:
        self.plain = self.plain and _is_plain(operation)
        if isinstance(operation, SpawnChild):
            self.spawns.append(operation)
        elif isinstance(operation, TakeOutcome):
            self.outcomes[operation.step_id] = operation
        elif isinstance(operation, StepOperation):
            self.steps.append(operation)
        elif isinstance(operation, SetValue):
            self.values.append(operation)
        else:
            self.move = operation


class Round:
    """One statement, or a short transaction when something rare is in it."""

    def __init__(self) -> None:
        self._runs: dict[tuple[str, str], Leased] = {}
        self._granted: frozenset[int] = frozenset()
        self._over: dict[int, str] = {}  # those that were let go of before, with their status
        self._news: frozenset[int] = frozenset()

    def add(self, index: int, chunk: Chunk) -> bool:
        key = (chunk.namespace, chunk.run_id)
        leased = self._runs.get(key)
        if leased is None:
            leased = self._runs[key] = Leased(index, chunk)
        elif leased.token != chunk.token or leased.move is not None:
            return False
        else:
            leased.chunks.append(index)
        leased.add(chunk.operations)
        return True

    async def send(self, connection: Connection, now: Instant | None) -> list[Told]:
        """Writes the round; returns who was told of the ends in it."""
        runs = list(self._runs.values())
        leases = ([run.namespace for run in runs], [run.run_id for run in runs], [run.token for run in runs])
        steps = _step_columns(runs)
        moves = [(place, run, run.move) for place, run in enumerate(runs, 1) if run.move is not None]
        if all(run.plain for run in runs):
            await self._record(connection, runs, leases, steps, moves, now)
            return []
        after = _Afterwards(runs, moves)
        async with connection.transaction():
            told: list[Told] = []
            if any(may_have_family(move) for _, _, move in moves):
                await lock_families(connection, [(run.namespace, run.run_id) for run in runs])
            if any(run.spawns for run in runs):
                # Before runs move on: what has ended is marked no more, and an id that is taken is news to a ParkRun.
                await self._record(connection, runs, leases, steps, [], now)
                told += await spawn_children(connection, self._spawns(runs), now)
                steps = _NO_STEPS
            moved: frozenset[int] = frozenset()
            if moves or steps is not _NO_STEPS:
                moved = await self._record(connection, runs, leases, steps, moves, now)
            return told + await after.send(connection, self._held(), moved, now)

    async def _record(
        self,
        connection: Connection,
        runs: list[Leased],
        leases: tuple[list[str], ...],
        steps: tuple[object, ...],
        moves: list[Move],
        now: Instant | None,
    ) -> frozenset[int]:
        """Records steps and moves runs on; returns the places of those that moved."""
        if not moves:
            rows = await connection.fetch(_RECORD_STEPS, *leases, *steps)
        else:
            # Most complete; what says the same for all need not be sent.
            seen = [UNLESS_CANCELLED if run.move is None else seen_by(run.move) for run in runs]
            columns = _move_columns(moves, for_all=len(moves) == len(runs))
            rows = await connection.fetch(
                _RECORD_STEPS_AND_MOVE_RUNS, *leases, *steps, unless_all(seen, UNLESS_CANCELLED), now, *columns
            )
        self._learn(rows[0])
        return frozenset(rows[0]["moved"] or ())

    def _spawns(self, runs: list[Leased]) -> list[Spawn]:
        held = self._held()
        return [
            (run.namespace, run.run_id, spawn)
            for place, run in enumerate(runs, 1)
            if place in held
            for spawn in run.spawns
        ]

    def answer(self, chunks: Sequence[Chunk], answers: list[Answer]) -> None:
        done, news = ChunkAnswer.DONE, ChunkAnswer.NEWS
        for place, run in enumerate(self._runs.values(), 1):
            if (status := self._over.get(place)) is not None:
                for index in run.chunks:
                    if lets_go_as(chunks[index], status):
                        answers[index] = done
            elif place in self._granted:
                for index in run.chunks:
                    answers[index] = done
                if place in self._news and run.move is not None:
                    answers[run.chunks[-1]] = news

    def _held(self) -> frozenset[int]:
        """Returns the places of runs that were held under the token: their steps are recorded."""
        return self._granted - self._over.keys()

    def _learn(self, row: asyncpg.Record) -> None:
        self._granted = frozenset(row["granted"] or ())
        self._news = frozenset(row["news"] or ())
        if row["over"]:
            self._over = dict(zip(row["over"], row["over_as"], strict=True))


Move = tuple[int, Leased, Transition]


class _Afterwards:
    """The statements that some operations need beyond the rows of runs and steps: rare, and sent in the same
    transaction."""

    def __init__(self, runs: list[Leased], moves: list[Move]) -> None:
        self._taken = [
            (place, run, step) for place, run in enumerate(runs, 1) for step in run.steps if type(step) is TakeSignal
        ]
        self._values = [(place, run) for place, run in enumerate(runs, 1) if run.values]
        self._outcomes = [(place, run) for place, run in enumerate(runs, 1) if run.outcomes]
        self._outputs = [move for move in moves if type(move[2]) is CompleteRun and len(move[2].output) > INLINE_BYTES]
        self._retries = [move for move in moves if type(move[2]) is RetryRun]
        self._returned = [move for move in moves if type(move[2]) is HandBackRun]
        self._continued = [(place, run, move) for place, run, move in moves if type(move) is ContinueRun]
        self._ended = [move for move in moves if has_consequences(move[2])]

    async def send(
        self, connection: Connection, held: frozenset[int], moved: frozenset[int], now: Instant | None
    ) -> list[Told]:
        taken = [
            (run.namespace, run.run_id, step.signal, step.completed_seq or 0)
            for place, run, step in self._taken
            if place in held
        ]
        if taken:
            await take_signals(connection, taken)
        values = [
            (run.namespace, run.run_id, value) for place, run in self._values if place in held for value in run.values
        ]
        if values:
            await set_values(connection, values, now)
        outcomes = [
            (run.namespace, run.run_id, outcome)
            for place, run in self._outcomes
            if place in held
            for outcome in run.outcomes.values()
        ]
        if outcomes:
            await take_outcomes(connection, outcomes)
        if outputs := [move for move in self._outputs if move[0] in moved]:
            await connection.execute(
                _STORE_OUTPUTS, *_keys(outputs), [getattr(move[2], "output", b"") for move in outputs]
            )
        if retries := [move for move in self._retries if move[0] in moved]:
            kept = [getattr(move[2], "keep_seq", 0) for move in retries]
            await connection.execute(_SET_STEPS_ASIDE, *_keys(retries), kept)
            await connection.execute(_GIVE_SIGNALS_BACK, *_keys(retries), kept)
            await connection.execute(_GIVE_OUTCOMES_BACK, *_keys(retries), kept)
        if returned := [move for move in self._returned if move[0] in moved]:
            await connection.execute(_FORGET_STEP_TIMEOUTS, *_keys(returned))
        continued = [(run.namespace, run.run_id, move) for place, run, move in self._continued if place in moved]
        if continued:
            await continue_runs(connection, continued)
        over = [((run.namespace, run.run_id), move) for place, run, move in self._ended if place in moved]
        if not over:
            return []
        return await ended(
            connection,
            [key for key, move in over if may_have_family(move)],
            [key for key, move in over if type(move) is FailRun],
        )


def _keys(moves: list[Move]) -> tuple[list[str], list[str]]:
    return [run.namespace for _, run, _ in moves], [run.run_id for _, run, _ in moves]


def fold_steps(steps: list[StepOperation]) -> list[StepOperation]:
    """Folds operations of steps to one for each key, which says what the row would hold after all of them, in order."""
    folded: dict[tuple[str, int], StepOperation] = {}
    for step in steps:
        key = (step.step_id, step.attempt)
        before = folded.get(key)
        if before is None or (
            before.completed_seq is None
            and (step.status is not StepStatus.RUNNING or before.status is StepStatus.RUNNING)
        ):
            if before is not None and (step.input is None or before.status is not StepStatus.RUNNING):
                # Said when it began, and not again; what an attempt was given does not change once it has ended.
                step = msgspec.structs.replace(step, input=before.input)
            folded[key] = step
    return list(folded.values())


def _step_columns(runs: list[Leased]) -> tuple[object, ...]:
    places: list[int] | None = None
    namespaces: list[str] | None = None
    run_ids: list[str] | None = None
    if all(len(run.steps) == 1 for run in runs):
        steps = [run.steps[0] for run in runs]
    else:
        folded = [run.steps if len(run.steps) < 2 else fold_steps(run.steps) for run in runs]
        steps = [step for own in folded for step in own]
        places = [place for place, own in enumerate(folded, 1) for _ in own]
        namespaces = [runs[place - 1].namespace for place in places]
        run_ids = [runs[place - 1].run_id for place in places]
    # What is the same for every step of an ordinary batch is not sent: the statement has the default.
    return (
        places,
        namespaces,
        run_ids,
        [step.step_id for step in steps],
        unless_all([step.attempt for step in steps], 1),
        unless_all([step.kind for step in steps], StepKind.FUNCTION),
        unless_all([step.status for step in steps], StepStatus.COMPLETED),
        [step.completed_seq for step in steps],
        [step.started_at for step in steps],
        [step.finished_at for step in steps],
        optional([step.retry_at for step in steps]),
        optional([step.timeout_at for step in steps]),
        [step.input_hash for step in steps],
        optional([step.input for step in steps]),
        [step.output for step in steps],
        optional([step.error for step in steps]),
    )


def _move_columns(moves: list[Move], *, for_all: bool) -> tuple[object, ...]:
    there = {type(move) for _, _, move in moves}

    def said(by: frozenset[type], field: str) -> list[Any] | None:
        """A column that few kinds of transitions fill is not sent when there is none of them."""
        if by.isdisjoint(there):
            return None
        return [getattr(move, field) if type(move) in by else None for _, _, move in moves]

    return (
        None if for_all else [place for place, _, _ in moves],
        None if for_all else [run.namespace for _, run, _ in moves],
        None if for_all else [run.run_id for _, run, _ in moves],
        [move.status for _, _, move in moves],
        said(_RETURNING, "available_at"),
        said(_RETRYING, "keep_seq"),
        optional([_inline(move.output) if type(move) is CompleteRun else None for _, _, move in moves]),
        said(_FAILING, "error"),
        optional([waiting_for(move) if type(move) is ParkRun else None for _, _, move in moves]),
    )


_RETURNING: Final[frozenset[type]] = frozenset({ParkRun, HandBackRun, RetryRun})
_RETRYING: Final[frozenset[type]] = frozenset({RetryRun})
_FAILING: Final[frozenset[type]] = frozenset({FailRun, RetryRun, EndCancelledRun})


def _is_plain(operation: Operation) -> bool:
    """Returns whether nothing follows from an operation but the rows of its run and its steps."""
    if type(operation) is EndCancelledRun:
        return not has_consequences(operation)
    return type(operation) in ROWS or type(operation) is ParkRun


def _inline(payload: bytes) -> bytes | None:
    return payload if len(payload) <= INLINE_BYTES else None


def unless_all(column: Sequence[object], value: object) -> Sequence[object] | None:
    """Returns the column, or None if it holds nothing but this value."""
    return None if column.count(value) == len(column) else column


def optional(column: Sequence[object | None]) -> Sequence[object | None] | None:
    """Returns the column, or None if it holds nothing and need not be sent."""
    return unless_all(column, None)
