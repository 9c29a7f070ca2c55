"""Counts runs at a price that does not grow: bounds what is looked at, and says what follows from that.

What waits is counted queue by queue along the index of claims, so that a long queue does not hide a short one; what is
leased by the index of leases; what has finished among the newest runs of a namespace. A count that may be short says
so.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from kagzi.api.admin import RunCount
from kagzi.core.instant import Instant
from kagzi.core.run import CLAIMABLE, RunStatus

OF_A_QUEUE: Final = 10_000
OF_A_NAMESPACE: Final = 10_000  # newest runs, looked through for what has finished
IN_ALL: Final = 50_000  # rows of each sort that one question reads
QUEUES: Final = 1000  # of a namespace
NAMESPACES: Final = 1000
GROUPS: Final = 10_000


class Seen(Struct, frozen=True):
    """A group of rows that were looked at; `count` of them are wanted."""

    namespace: str
    workflow_type: str
    task_queue: str
    status: RunStatus
    rows: int
    count: int
    version: str = ""
    oldest_at: Instant = 0  # when the oldest of them was started


def cut_short(live: Iterable[Seen]) -> bool:
    """Returns whether there may be more live runs than these, somewhere."""
    of_queues: dict[tuple[str, str], int] = {}
    groups = 0
    for seen in live:
        groups += 1
        if seen.status in CLAIMABLE:
            queue = (seen.namespace, seen.task_queue)
            of_queues[queue] = of_queues.get(queue, 0) + seen.rows
    return groups >= GROUPS or sum(of_queues.values()) >= IN_ALL or max(of_queues.values(), default=0) >= OF_A_QUEUE


def folded(live: Iterable[Seen], newest: Iterable[Seen] = ()) -> list[RunCount]:
    """Adds up what was looked at: `live` are all rows seen that had not finished, `newest` the newest of each
    namespace, whatever their status."""
    live, newest = list(live), list(newest)
    of_queues: dict[tuple[str, str], int] = {}
    of_namespaces: dict[str, int] = {}
    for seen in live:
        if seen.status in CLAIMABLE:
            queue = (seen.namespace, seen.task_queue)
            of_queues[queue] = of_queues.get(queue, 0) + seen.rows
    for seen in newest:
        of_namespaces[seen.namespace] = of_namespaces.get(seen.namespace, 0) + seen.rows
    live_cut = sum(of_queues.values()) >= IN_ALL or len(live) >= GROUPS
    newest_cut = sum(of_namespaces.values()) >= IN_ALL or len(newest) >= GROUPS
    found: dict[tuple[str, str, RunStatus], RunCount] = {}
    for seen in (*live, *(seen for seen in newest if seen.status.finished)):
        if seen.status.finished:
            short = newest_cut or of_namespaces[seen.namespace] >= OF_A_NAMESPACE
        else:
            short = live_cut or of_queues.get((seen.namespace, seen.task_queue), 0) >= OF_A_QUEUE
        key = (seen.workflow_type, seen.task_queue, seen.status)
        before = found.get(key)
        count, at_least = (0, False) if before is None else (before.count, before.at_least)
        if seen.count:
            found[key] = RunCount(*key, count + seen.count, at_least or short)
    return list(found.values())
