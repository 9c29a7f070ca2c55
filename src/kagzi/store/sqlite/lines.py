"""Claims under limits, and runs that are held for them. See `kagzi.store.lines`."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

import msgspec

from kagzi.api.workers import Poll
from kagzi.core.flow import MOST_BEFORE, FlowLimit, Scope, SlotWait
from kagzi.core.instant import Instant
from kagzi.store.lines import FREED, LINES, LOOKED_AT, Due, Line, Room, decide, free
from kagzi.store.protocol.changes import Queue
from kagzi.store.protocol.limits import Unheld
from kagzi.store.sqlite.limit_rows import limit_of
from kagzi.store.sqlite.statements import execute

_START = ("", "", "", "", "")


def choose(
    connection: sqlite3.Connection, poll: Poll, limits: list[FlowLimit], now: Instant
) -> tuple[list[str], bool, bool]:
    """Returns the due runs that the poll may claim, whether it should look again (others may be behind those that were
    held), and whether some were held until their turn comes."""
    paused = {(limit.scope, limit.name) for limit in limits if limit.paused_at is not None}
    if (Scope.NAMESPACE, "") in paused:
        return [], False, False
    room = _room(connection, poll.namespace, limits, now)
    every_version = _json([each.name for each in poll.types if each.version is None])
    one_version = _json([(each.name, each.version) for each in poll.types if each.version is not None])
    due: list[Due] = []
    whole = False
    for queue in dict.fromkeys(poll.queues):
        if (Scope.QUEUE, queue) in paused or room.full(queue):
            continue
        values = (poll.namespace, queue, now, poll.token, every_version, one_version, LOOKED_AT)
        found = [Due(*(*row[:6], bool(row[6]))) for row in execute(connection, "find_due_limited", values)]
        whole = whole or len(found) >= LOOKED_AT
        due += found
    due.sort(key=lambda run: (run.claim_key, run.run_id))
    _read_turns(connection, poll.namespace, room, due)
    taken, held, waiting = decide(room, due, poll.limit, now)
    if held:
        execute(connection, "hold_runs", (poll.namespace, _json([run.run_id for run in held]), room.rated))
    for turn in room.moved:
        execute(connection, "write_turn", (poll.namespace, *turn, room.turn(turn)))
    return [run.run_id for run in taken], whole and bool(held) and len(taken) < poll.limit, waiting


def unhold(connection: sqlite3.Connection, namespace: str, after: tuple[str, ...], now: Instant) -> Unheld:
    limits = [limit_of(row) for row in execute(connection, "read_limits", (namespace,))]
    lines, more = _lines(connection, namespace, after, now)
    if not any(line.held for line in lines):
        if not more and not after:
            execute(connection, "forget_limits", (namespace, True))
            execute(connection, "delete_turns", (namespace, now))
        return Unheld([], more)
    room = _room(connection, namespace, limits, now)
    _read_turns(connection, namespace, room, lines)
    queues: dict[Queue, None] = {}
    later = False
    for line, wanted, at in free(room, lines, now):
        execute(connection, "free_line", (namespace, *_identity(line), now, wanted, at))
        queues[namespace, line.task_queue] = None
        later = later or (at is not None and at > now)
    return Unheld(list(queues), more, later)


def read_wait(connection: sqlite3.Connection, namespace: str, run_id: str, now: Instant) -> SlotWait | None:
    row = execute(connection, "read_waiting", (namespace, run_id)).fetchone()
    if row is None or row[5] is None:
        return None
    run, version = Due(*(*row[:6], bool(row[6]))), row[7]
    limits = [limit_of(each) for each in execute(connection, "list_limits", (namespace,))]
    room = _room(connection, namespace, limits, now)
    _read_turns(connection, namespace, room, [run])
    if room.waits(run, 0) is None:
        return None
    line = (run.limit_name, run.limit_key, run.task_queue, run.workflow_type, version)
    before = execute(connection, "count_before", (namespace, *line, run.claim_key, MOST_BEFORE, run_id)).fetchone()[0]
    if not before:
        place = (namespace, run.task_queue, run.claim_key, MOST_BEFORE, run_id)
        before = execute(connection, "count_due_before", place).fetchone()[0]
    return room.waits(run, before)


def _lines(
    connection: sqlite3.Connection, namespace: str, after: tuple[str, ...], now: Instant
) -> tuple[list[Line], tuple[str, ...]]:
    """Returns lines behind this one, and the last of them if there may be more."""
    lines: list[Line] = []
    at = after or _START
    while len(lines) < LINES:
        row = execute(connection, "next_line", (namespace, *at)).fetchone()
        if row is None:
            return lines, ()
        at = row
        counts = execute(connection, "count_line", (namespace, *row, now, FREED)).fetchone()
        lines.append(Line(*(*row, *counts[:3], bool(counts[3]))))
    return lines, at


def _room(connection: sqlite3.Connection, namespace: str, limits: Iterable[FlowLimit], now: Instant) -> Room:
    return Room(limits, execute(connection, "count_limited", (namespace,)).fetchall(), now)


def _read_turns(connection: sqlite3.Connection, namespace: str, room: Room, runs: Iterable[Due | Line]) -> None:
    for turn in room.turns_of(runs):
        row = execute(connection, "read_turn", (namespace, *turn)).fetchone()
        if row is not None:
            room.know({turn: row[0]})


def _identity(line: Line) -> tuple[str, ...]:
    return line.limit_name, line.limit_key, line.task_queue, line.workflow_type, line.version


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
