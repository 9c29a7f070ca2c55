"""Claims under limits, and runs that are held for them. See `kagzi.store.lines`.

Both transactions lock the limits of the namespace first and count in later statements; under READ COMMITTED those see
all that was committed before the lock was given. From then on they skip locked runs and wait for nobody, so they can be
part of no circle.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from kagzi.api.workers import Poll
from kagzi.core.flow import MOST_BEFORE, FlowLimit, Scope, SlotWait
from kagzi.core.instant import Instant, Span
from kagzi.store.lines import FREED, LINES, LOOKED_AT, Due, Line, Room, decide, free
from kagzi.store.postgres.limit_rows import limit_of
from kagzi.store.postgres.prepared import prepare
from kagzi.store.postgres.statements import STATEMENTS
from kagzi.store.protocol.limits import Unheld

if TYPE_CHECKING:
    import asyncpg

    from kagzi.store.postgres.connection import Connection

_LOCK_LIMITS = STATEMENTS["lock_limits"]
_COUNT_LIMITED = STATEMENTS["count_limited"]
_FIND_DUE_LIMITED = STATEMENTS["find_due_limited"]
_CLAIM_LIMITED = STATEMENTS["claim_limited"]
_HOLD_RUNS = STATEMENTS["hold_runs"]
_FIND_LINES = STATEMENTS["find_lines"]
_FREE_LINES = STATEMENTS["free_lines"]
_FORGET_LIMITS = STATEMENTS["forget_limits"]
_CLOCK = STATEMENTS["schedule_clock"]
_READ_TURNS = STATEMENTS["read_turns"]
_WRITE_TURNS = STATEMENTS["write_turns"]
_DELETE_TURNS = STATEMENTS["delete_turns"]
_LIST_LIMITS = STATEMENTS["list_limits"]
_READ_WAITING = STATEMENTS["read_waiting"]
_COUNT_BEFORE = STATEMENTS["count_before"]
_COUNT_DUE_BEFORE = STATEMENTS["count_due_before"]

_START = ("", "", "", "", "")
# What the two transactions send while they hold the limits.
_UNDER_LIMITS = (_LOCK_LIMITS, _CLOCK, _COUNT_LIMITED, _READ_TURNS)
_CLAIMING = (*_UNDER_LIMITS, _FIND_DUE_LIMITED, _HOLD_RUNS, _CLAIM_LIMITED, _WRITE_TURNS)
_UNHOLDING = (*_UNDER_LIMITS, _FIND_LINES, _FREE_LINES, _FORGET_LIMITS, _DELETE_TURNS)


async def claim_limited(
    connection: Connection, poll: Poll, most: int, lease: Span, now: Instant | None
) -> tuple[list[asyncpg.Record], bool, bool]:
    """Returns the claims of a poll among runs that are limited, at most so many, whether it should look again (others
    may be behind those that were held), and whether some were held until their turn comes."""
    await prepare(connection, _CLAIMING)
    async with connection.transaction():
        limits = await _lock(connection, poll.namespace)
        time: Instant = await connection.fetchval(_CLOCK, now)
        room = await _room(connection, poll.namespace, limits, time)
        paused = {(limit.scope, limit.name) for limit in limits if limit.paused_at is not None}
        queues = [
            queue for queue in sorted(set(poll.queues)) if (Scope.QUEUE, queue) not in paused and not room.full(queue)
        ]
        if (Scope.NAMESPACE, "") in paused or not queues:
            return [], False, False
        rows = await connection.fetch(
            _FIND_DUE_LIMITED,
            now,
            poll.namespace,
            queues,
            poll.token,
            [type.name for type in poll.types if type.version is None],
            [f"{len(type.name)}:{type.name}{type.version}" for type in poll.types if type.version is not None],
            LOOKED_AT,
        )
        names = {limit.name for limit in limits if limit.scope is Scope.WORKFLOW}
        limited = {limit.name for limit in limits if limit.scope is Scope.QUEUE}
        due = [
            Due(str(run_id), *run)
            for _, run_id, *run in rows
            if run[0] in limited or run[1] in names or run[2] in names
        ]
        await _read_turns(connection, poll.namespace, room, due)
        taken, held, waiting = decide(room, due, most, time)
        if held:
            await connection.execute(_HOLD_RUNS, now, poll.namespace, [run.run_id for run in held], room.rated)
        claimed: list[asyncpg.Record] = []
        if taken:
            claimed = await connection.fetch(
                _CLAIM_LIMITED,
                now,
                lease,
                poll.namespace,
                poll.worker_id,
                poll.token,
                poll.number,
                [run.run_id for run in taken],
                [run.limit_name for run in taken],
                [run.limit_key for run in taken],
                [run.version for run in taken],
            )
        if room.moved:
            moved = sorted(room.moved)
            turns = [list(column) for column in zip(*moved, strict=True)]
            await connection.execute(_WRITE_TURNS, poll.namespace, *turns, [room.turn(turn) for turn in moved])
        return claimed, bool(held) and len(taken) < most, waiting


async def unhold(connection: Connection, namespace: str, after: tuple[str, ...], now: Instant | None) -> Unheld:
    await prepare(connection, _UNHOLDING)
    async with connection.transaction():
        limits = await _lock(connection, namespace)
        rows = await connection.fetch(_FIND_LINES, now, namespace, *(after or _START), LINES, FREED)
        lines = [Line(*row) for row in rows]
        more = _identity(lines[-1]) if len(lines) >= LINES else ()
        if not any(line.held for line in lines):
            if not more and not after:
                await connection.execute(_FORGET_LIMITS, namespace, True)
                await connection.execute(_DELETE_TURNS, now, namespace)
            return Unheld([], more)
        time: Instant = await connection.fetchval(_CLOCK, now)
        room = await _room(connection, namespace, limits, time)
        await _read_turns(connection, namespace, room, lines)
        wanted = free(room, lines, time)
        if not wanted:
            return Unheld([], more)
        columns = [list(column) for column in zip(*[_identity(each.line) for each in wanted], strict=True)]
        freed = await connection.fetch(
            _FREE_LINES,
            now,
            namespace,
            *columns,
            [each.runs for each in wanted],
            [each.at for each in wanted],
        )
        queues = sorted({(namespace, row["task_queue"]) for row in freed})
        return Unheld(queues, more, any(each.at is not None and each.at > time for each in wanted))


async def read_wait(connection: Connection, namespace: str, run_id: str, now: Instant | None) -> SlotWait | None:
    """Reads what a run waits for, without a lock, for people: it may have changed since."""
    row = await connection.fetchrow(_READ_WAITING, namespace, run_id, now)
    if row is None or row["place"] is None:
        return None
    values = tuple(row)
    run, version, time = Due(str(values[0]), *values[1:7]), values[7], values[8]
    limits = [limit_of(each) for each in await connection.fetch(_LIST_LIMITS, namespace)]
    room = await _room(connection, namespace, limits, time)
    await _read_turns(connection, namespace, room, [run])
    if room.waits(run, 0) is None:
        return None
    line = (run.limit_name, run.limit_key, run.task_queue, run.workflow_type, version)
    place = (run.claim_key, MOST_BEFORE, run_id)
    before = await connection.fetchval(_COUNT_BEFORE, namespace, *line, *place)
    if not before:
        before = await connection.fetchval(_COUNT_DUE_BEFORE, namespace, run.task_queue, *place)
    return room.waits(run, before)


async def _lock(connection: Connection, namespace: str) -> list[FlowLimit]:
    return [limit_of(row) for row in await connection.fetch(_LOCK_LIMITS, namespace)]


async def _room(connection: Connection, namespace: str, limits: list[FlowLimit], now: Instant) -> Room:
    rows = await connection.fetch(_COUNT_LIMITED, namespace)
    return Room(limits, [tuple(row) for row in rows], now)


async def _read_turns(connection: Connection, namespace: str, room: Room, runs: Iterable[Due | Line]) -> None:
    wanted = sorted(room.turns_of(runs))
    if wanted:
        columns = [list(column) for column in zip(*wanted, strict=True)]
        rows = await connection.fetch(_READ_TURNS, namespace, *columns)
        room.know({(scope, name, key): turn for scope, name, key, turn in rows})


def _identity(line: Line) -> tuple[str, ...]:
    return line.limit_name, line.limit_key, line.task_queue, line.workflow_type, line.version
