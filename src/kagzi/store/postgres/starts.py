"""Starts of runs, turned into one INSERT a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

from msgspec.structs import replace

from kagzi.api.operations import Answer, SignalAnswer, Started, StartRun
from kagzi.core.carried import kept_columns, kept_of
from kagzi.core.instant import Instant
from kagzi.core.run import RunStatus
from kagzi.errors import Unavailable
from kagzi.store.postgres.chunks import optional
from kagzi.store.postgres.debounce import start_debounced
from kagzi.store.postgres.restarts import free_id, note_origin
from kagzi.store.postgres.signals import apply_signals
from kagzi.store.postgres.single import INLINE_BYTES
from kagzi.store.postgres.statements import STATEMENTS
from kagzi.store.protocol.changes import Applied, RunKey
from kagzi.store.starts import Identity, refusal, restarts, signal_of

if TYPE_CHECKING:
    import asyncpg

    from kagzi.store.postgres.connection import Connection

T = TypeVar("T")

_START_RUN = STATEMENTS["start_run"]
_FIND_SUPERSEDED_RUN = STATEMENTS["find_superseded_run"]
_START_RUNS = STATEMENTS["start_runs"]
_STORE_INPUTS = STATEMENTS["store_inputs"]
_FIND_STARTED_RUNS = STATEMENTS["find_started_runs"]
_TRIES = 3
_STATUSES = {status.value: status for status in RunStatus}


async def apply_starts(connection: Connection, starts: Sequence[StartRun], now: Instant | None) -> Applied:
    plain = [start for start in starts if start.signal is None and start.debounce is None]
    if len(plain) == len(starts):
        return await _apply_starts(connection, starts, now)
    answers: list[Answer] = []
    together = iter((await _apply_starts(connection, plain, now)).answers if plain else ())
    for start in starts:
        if start.signal is not None:
            answers.append(await _start_with_signal(connection, start, now))
        elif start.debounce is not None:
            answers.append(await start_debounced(connection, start, now))
        else:
            answers.append(next(together))
    return Applied(answers, [])


async def _apply_starts(connection: Connection, starts: Sequence[StartRun], now: Instant | None) -> Applied:
    def order(place: int) -> tuple[str, str, int]:
        # The same everywhere: two processes that start the same runs must not wait in a circle.
        return starts[place].namespace, starts[place].external_id or "", place

    answers: list[Answer | None] = [None] * len(starts)
    waiting = list(range(len(starts)))
    for _ in range(_TRIES):
        # Of starts with one run id only the first is sent. The others are compared with what became of it.
        first = {_key(starts[place]): place for place in reversed(waiting)}
        created = await _insert(connection, [starts[place] for place in sorted(first.values(), key=order)], now)
        for key, row in created.items():
            place = first[key]
            answers[place] = _created(row, starts[place])
        if len(created) == len(waiting):
            break
        taken = [place for place in waiting if answers[place] is None]
        waiting = await _look_up(connection, starts, taken, answers, now)
        if not waiting:
            break
    given_up = Unavailable("the run's id was being given up; try again")
    return Applied([given_up if answer is None else answer for answer in answers], [])


async def _insert(
    connection: Connection, starts: list[StartRun], now: Instant | None
) -> dict[tuple[str, str], asyncpg.Record]:
    if len(starts) == 1 and len(starts[0].input) <= INLINE_BYTES:
        rows = await connection.fetch(_START_RUN, now, *start_columns(starts[0]))
        return {_key(starts[0]): row for row in rows}
    arguments = _start_columns(starts)
    large = [start for start in starts if len(start.input) > INLINE_BYTES]
    if not large:
        rows = await connection.fetch(_START_RUNS, now, *arguments)
        return {(row["namespace"], str(row["run_id"])): row for row in rows}
    async with connection.transaction():
        rows = await connection.fetch(_START_RUNS, now, *arguments)
        created = {(row["namespace"], str(row["run_id"])): row for row in rows}
        inputs = {_key(start): start.input for start in large if _key(start) in created}
        if inputs:
            namespaces = [namespace for namespace, _ in inputs]
            run_ids = [run_id for _, run_id in inputs]
            await connection.execute(_STORE_INPUTS, namespaces, run_ids, list(inputs.values()))
    return created


async def _look_up(
    connection: Connection,
    starts: Sequence[StartRun],
    taken: list[int],
    answers: list[Answer | None],
    now: Instant | None,
) -> list[int]:
    """Answer the starts whose ids are taken; returns those whose id nobody has any more, or somebody else has now."""
    asked = [starts[place] for place in taken]
    rows = await connection.fetch(
        _FIND_STARTED_RUNS,
        [start.namespace for start in asked],
        [start.run_id for start in asked],
        [start.external_id for start in asked],
    )
    found: dict[int, asyncpg.Record] = {}
    for row in rows:
        place = taken[row["place"] - 1]
        # A run of our own id comes before one that only shares the external id: then this start is a repeat.
        if place not in found or str(row["run_id"]) == starts[place].run_id:
            found[place] = row
    for place, row in found.items():
        start, identity = starts[place], _identity(row)
        if restarts(start, identity, _STATUSES[row["status"]]):
            answers[place] = await _restart(connection, start, (identity.namespace, identity.run_id), now)
        else:
            answers[place] = _existing(row, identity, start)
    return [place for place in taken if answers[place] is None]


async def _restart(connection: Connection, start: StartRun, holder: RunKey, now: Instant | None) -> Started | None:
    """Inserts a run in the place of a finished one, whose id it gets; a transaction for each. None if another was
    faster: then the id has another holder, or none, and everything is looked up again."""
    try:
        async with connection.transaction():
            if not await free_id(connection, holder, start.run_id):
                return None
            rows = await connection.fetch(_START_RUN, now, *start_columns(start))
            if not rows:
                raise _Overtaken
            if len(start.input) > INLINE_BYTES:
                await connection.execute(_STORE_INPUTS, [start.namespace], [start.run_id], [start.input])
            await note_origin(connection, holder, start.run_id)
    except _Overtaken:
        return None
    return _created(rows[0], start)


async def _start_with_signal(connection: Connection, start: StartRun, now: Instant | None) -> Answer:
    """Tells the run that has this id something, or makes one that is told: a transaction for each."""
    for _ in range(_TRIES):
        try:
            async with connection.transaction():
                return await _tell_or_start(connection, start, now)
        except _Overtaken:
            continue
    return Unavailable("the run's id is being given from run to run; trying again is safe")


async def _tell_or_start(connection: Connection, start: StartRun, now: Instant | None) -> Answer:
    rows = await connection.fetch(_FIND_STARTED_RUNS, [start.namespace], [start.run_id], [start.external_id])
    # A run of our own id comes first: then this start is a repeat.
    row = min(rows, key=lambda row: str(row["run_id"]) != start.run_id, default=None)
    holder: RunKey | None = None
    if row is not None:
        found = _identity(row)
        if (conflict := refusal(start, found, row["input"])) is not None:
            return conflict
        # Whether it is live, and has the id, is certain from here on.
        locked = await connection.fetchrow(_FIND_SUPERSEDED_RUN, found.namespace, found.run_id)
        own = found.run_id == start.run_id
        if locked is None or not (own or locked["external_id"] == start.external_id):
            raise _Overtaken
        # A finished run that knows the key has been told before: this start comes twice, and makes no other run.
        sent = (await apply_signals(connection, [signal_of(start, found.run_id)], now)).answers[0]
        if isinstance(sent, SignalAnswer):
            return Started(
                run_id=found.run_id,
                already_exists=not own,
                status=sent.status,
                available_at=sent.available_at,
                signal=sent,
            )
        if not restarts(start, found, _STATUSES[locked["status"]]):
            return sent
        holder = (found.namespace, found.run_id)
        await free_id(connection, holder, start.run_id)
    created = await connection.fetch(_START_RUN, now, *start_columns(start))
    if not created:
        raise _Overtaken
    if len(start.input) > INLINE_BYTES:
        await connection.execute(_STORE_INPUTS, [start.namespace], [start.run_id], [start.input])
    if holder is not None:
        await note_origin(connection, holder, start.run_id)
    sent = (await apply_signals(connection, [signal_of(start, start.run_id)], now)).answers[0]
    assert isinstance(sent, SignalAnswer)
    return replace(_created(created[0], start), signal=sent)


class _Overtaken(Exception):
    """Raised to undo a transaction: another start was inserted with the id, or with the run id, first."""


def _identity(row: asyncpg.Record) -> Identity:
    return Identity(
        row["namespace"],
        str(row["run_id"]),
        row["external_id"],
        row["workflow_type"],
        row["task_queue"],
        row["version"],
    )


def _existing(row: asyncpg.Record, found: Identity, start: StartRun) -> Answer:
    run_id = found.run_id
    if (conflict := refusal(start, found, row["input"])) is not None:
        return conflict
    if run_id == start.run_id:
        return _repeated(row, start)
    return Started(
        run_id=run_id, already_exists=True, status=_STATUSES[row["status"]], available_at=row["available_at"] or 0
    )


def _created(row: asyncpg.Record, start: StartRun) -> Started:
    status = _STATUSES[row["status"]]
    return Started(
        run_id=start.run_id,
        status=status,
        born=status is RunStatus.RUNNING,  # nobody else can have claimed it yet
        started_at=row["started_at"] or 0,
        available_at=row["available_at"],
    )


def _repeated(row: asyncpg.Record, start: StartRun) -> Started:
    """Answers a start that was made before. Its lease may be gone by now."""
    status = _STATUSES[row["status"]]
    ours = start.lease is not None and row["token"] is not None and str(row["token"]) == start.lease.token
    return Started(
        run_id=start.run_id,
        status=status,
        born=ours and status is RunStatus.RUNNING,
        started_at=row["started_at"] or 0,
        available_at=row["available_at"] or 0,
    )


def _key(start: StartRun) -> tuple[str, str]:
    return start.namespace, start.run_id


def start_columns(start: StartRun) -> tuple[object, ...]:
    lease = start.lease
    return (
        start.namespace,
        start.run_id,
        start.external_id,
        start.task_queue,
        start.workflow_type,
        start.version,
        start.priority,
        start.input,
        start.lease_length,
        start.timeout,
        start.deadline_at,
        start.delay,
        start.start_at,
        lease and lease.length,
        lease and lease.token,
        lease and lease.worker_id,
        lease and lease.poll,
        start.limit_name,
        *_parent(start),
        *kept_of(start),
    )


def _start_columns(starts: list[StartRun]) -> tuple[object, ...]:
    leases = [start.lease for start in starts]
    return (
        _alike([start.namespace for start in starts]),
        [start.run_id for start in starts],
        optional([start.external_id for start in starts]),
        _alike([start.task_queue for start in starts]),
        _alike([start.workflow_type for start in starts]),
        _alike([start.version for start in starts]),
        optional([start.priority or None for start in starts]),
        [start.input if len(start.input) <= INLINE_BYTES else None for start in starts],
        optional([start.lease_length for start in starts]),
        optional([start.timeout for start in starts]),
        optional([start.deadline_at for start in starts]),
        optional([start.delay or None for start in starts]),
        optional([start.start_at for start in starts]),
        optional(_alike([lease and lease.length for lease in leases])),
        optional([lease and lease.token for lease in leases]),
        optional(_alike([lease and lease.worker_id for lease in leases])),
        optional([lease and lease.poll for lease in leases]),
        optional([start.limit_name for start in starts]),
        *(optional(list(column)) for column in zip(*map(_parent, starts), strict=True)),
        *map(optional, kept_columns(starts)),
    )


def _parent(start: StartRun) -> tuple[str | None, str | None, int | None]:
    by = start.started_by
    return (None, None, None) if by is None else (by.run_id, by.step_id, by.attempt)


def _alike(column: list[T]) -> list[T]:
    """Returns the column as it is sent: once if it holds the same everywhere."""
    return column[:1] if column.count(column[0]) == len(column) else column
