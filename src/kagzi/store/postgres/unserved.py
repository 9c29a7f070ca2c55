"""Due runs that no worker of their queue executes. See `kagzi.store.unserved`.

Every statement is a transaction of its own and skips what others have locked, so it waits for nobody.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kagzi.core.instant import Instant, Span
from kagzi.store.postgres.statements import STATEMENTS
from kagzi.store.protocol.changes import Queue
from kagzi.store.protocol.duties import Offer, SetAside
from kagzi.store.unserved import OVERDUE, Line, Served, looked, offers_of

if TYPE_CHECKING:
    from kagzi.store.postgres.connection import Connection

_LIVE_OFFERS = STATEMENTS["live_offers"]
_IS_ANY_ASIDE = STATEMENTS["is_any_aside"]
_SERVED_ASIDE = STATEMENTS["served_aside"]
_BRING_BACK = STATEMENTS["bring_back"]
_FIND_OVERDUE = STATEMENTS["find_overdue"]
_SET_ASIDE = STATEMENTS["set_aside"]


async def set_runs_aside(
    connection: Connection, offered: Sequence[Offer], limit: int, stale: Span, now: Instant | None
) -> SetAside:
    workers = await connection.fetch(_LIVE_OFFERS, now, stale)
    time: Instant = workers[0]["now"]
    live = [offer for _, *row in workers if row[0] is not None for offer in offers_of(*row)]
    served = Served([*offered, *live])
    back: set[Queue] = set()
    room, left = limit, await connection.fetchval(_IS_ANY_ASIDE)
    if left:
        for row in await connection.fetch(_SERVED_ASIDE, *served.columns):
            if brought := len(await connection.fetch(_BRING_BACK, now, *row, room)):
                back.add((row["namespace"], row["task_queue"]))
                room -= brought
        left = await connection.fetchval(_IS_ANY_ASIDE)
    aside = await _set_aside(connection, served, limit, time)
    return looked(aside, back, left)


async def _set_aside(connection: Connection, served: Served, limit: int, now: Instant) -> int:
    queues = served.queues
    if not queues:
        return 0
    namespaces, names = zip(*queues, strict=True)
    unserved: dict[str, list[str]] = {}
    for row in await connection.fetch(_FIND_OVERDUE, namespaces, names, now - OVERDUE, limit):
        if not served.executes(Line(row["namespace"], row["task_queue"], row["workflow_type"], row["version"])):
            unserved.setdefault(row["namespace"], []).append(row["run_id"])
    aside = 0
    for namespace, run_ids in unserved.items():
        aside += len(await connection.fetch(_SET_ASIDE, namespace, run_ids, now))
    return aside
