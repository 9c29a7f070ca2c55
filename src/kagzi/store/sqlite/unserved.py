"""Due runs that no worker of their queue executes. See `kagzi.store.unserved`."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence

import msgspec

from kagzi.core.instant import Instant
from kagzi.store.protocol.changes import Queue
from kagzi.store.protocol.duties import Offer, SetAside
from kagzi.store.sqlite.statements import execute
from kagzi.store.unserved import OVERDUE, Line, Served, looked, offers_of


def set_runs_aside(
    connection: sqlite3.Connection, offered: Sequence[Offer], limit: int, silent_since: Instant, now: Instant
) -> SetAside:
    served = Served([*offered, *_live_offers(connection, silent_since)])
    back: set[Queue] = set()
    room, left = limit, _is_any_aside(connection)
    if left:
        for offer in zip(*served.columns, strict=True):
            line = execute(connection, "served_aside", offer).fetchone()
            if line is not None and (brought := execute(connection, "bring_back", (*line, now, room)).rowcount):
                back.add(line[:2])
                room -= brought
        left = _is_any_aside(connection)
    aside = 0
    for namespace, queue in served.queues:
        rows = execute(connection, "find_overdue", (namespace, queue, now - OVERDUE, limit)).fetchall()
        run_ids = [run_id for run_id, *run in rows if not served.executes(Line(namespace, queue, *run))]
        if run_ids:
            aside += execute(connection, "set_aside", (namespace, _json(run_ids))).rowcount
    return looked(aside, back, left)


def _live_offers(connection: sqlite3.Connection, silent_since: Instant) -> Iterator[Offer]:
    for namespace, *texts in execute(connection, "live_offers", (silent_since,)):
        queues, types, versions = [msgspec.json.decode(text, type=list[str]) for text in texts]
        yield from offers_of(namespace, queues, types, versions)


def _is_any_aside(connection: sqlite3.Connection) -> bool:
    return execute(connection, "is_any_aside", ()).fetchone() is not None


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
