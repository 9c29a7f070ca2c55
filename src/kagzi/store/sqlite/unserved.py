"""Due runs that no worker of their queue executes. See `kagzi.store.unserved`."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence

import msgspec

from kagzi.core.instant import Instant
from kagzi.store.protocol.changes import Queue
from kagzi.store.protocol.duties import Offer, SetAside
from kagzi.store.sqlite.statements import execute
from kagzi.store.unserved import LINES, OVERDUE, Line, Served, offers_of


def set_runs_aside(
    connection: sqlite3.Connection, offered: Sequence[Offer], limit: int, silent_since: Instant, now: Instant
) -> SetAside:
    served = Served([*offered, *_live_offers(connection, silent_since)])
    back: set[Queue] = set()
    left, room = 0, limit
    for line in _lines(connection):
        identity = (line.namespace, line.task_queue, line.workflow_type, line.version)
        if served.executes(line) and room:
            brought = execute(connection, "bring_back", (*identity, now, room)).rowcount
            back.add((line.namespace, line.task_queue))
            room -= brought
        else:
            left += 1
    aside = 0
    for namespace, queue in served.queues:
        rows = execute(connection, "find_overdue", (namespace, queue, now - OVERDUE, limit)).fetchall()
        run_ids = [run_id for run_id, *run in rows if not served.executes(Line(namespace, queue, *run))]
        if run_ids:
            aside += execute(connection, "set_aside", (namespace, _json(run_ids))).rowcount
    more = aside > 0 or not room
    return SetAside(aside=aside, back=tuple(sorted(back)), left=bool(left or aside or more), more=more)


def _live_offers(connection: sqlite3.Connection, silent_since: Instant) -> Iterator[Offer]:
    for namespace, *texts in execute(connection, "live_offers", (silent_since,)):
        queues, types, versions = [msgspec.json.decode(text, type=list[str]) for text in texts]
        yield from offers_of(namespace, queues, types, versions)


def _lines(connection: sqlite3.Connection) -> Iterator[Line]:
    """Yields what is set aside, from one workflow and version to the next."""
    at = ("", "", "", "")
    for _ in range(LINES):
        row = execute(connection, "next_aside", at).fetchone()
        if row is None:
            return
        at = row
        yield Line(*row)


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
