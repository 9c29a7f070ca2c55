"""Searches for runs that match a filter, within bounds.

A filter that nothing matches would read the whole table, ten seconds for ten million runs, and be interrupted. So a
listing looks at a bounded number of runs beyond its cursor and says how far it came; the caller goes on from there if
it wants to. It looks at few first, because most pages are full after those. Where the looking ends is found before the
runs are read, so that runs which are deleted meanwhile do not move that border over runs nobody has looked at.

Which runs it looks at is decided by what leads: the part of the filter that has an index, where there is one. Such an
index is in the order of run ids, or holds few runs, which are gathered and sorted; if it holds many, every run is
looked at instead, and many of them match.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, Protocol

import msgspec
from msgspec import Struct

from kagzi.api.workflows import RunFilter
from kagzi.core.instant import SECOND, Instant
from kagzi.core.page import Cursor
from kagzi.core.run import Run, RunStatus
from kagzi.core.tags import encode_tags, tag_text
from kagzi.store.protocol.runs import FoundRuns

BITES: Final = (1_000, 19_000)
LED_BITES: Final = (1_000, 2_000)  # where runs lie apart from each other, and each costs several times as much
FEW: Final = 2_000  # so many are gathered and sorted
# Run ids tell when they were made by the clock of whoever made them. No clock is wrong by more than this.
_WRONG: Final = 24 * 3600 * SECOND
OLDEST: Final = "00000000-0000-0000-0000-000000000000"
NEWEST: Final = "ffffffff-ffff-ffff-ffff-ffffffffffff"
_LAST: Final = "\U0010ffff"


class Lead(Enum):
    """What leads a search, and the names of its statements: `list_walk`, `edge_walk`."""

    WALK = "walk"  # nothing: every run is looked at
    CHILDREN = "children"
    SCHEDULE = "schedule"
    TAG = "tag"
    ERROR = "error"
    FAILED = "failed"
    PREFIX = "prefix"
    RUNNING = "running"
    WAITING = "waiting"

    @property
    def gathered(self) -> bool:
        return self in (Lead.PREFIX, Lead.RUNNING, Lead.WAITING)


# The indexes that may be missing for a while after an upgrade.
INDEXES: Final = {
    Lead.CHILDREN: "workflow_runs_children",
    Lead.SCHEDULE: "workflow_runs_scheduled",
    Lead.ERROR: "workflow_runs_errors",
    Lead.FAILED: "workflow_runs_failed",
    Lead.PREFIX: "workflow_runs_id_prefix",
}
_FAILED: Final = (RunStatus.FAILED, RunStatus.TIMED_OUT, RunStatus.CANCELLED)
_WAITING: Final = (RunStatus.PENDING, RunStatus.SLEEPING)


class Search(Protocol):
    """The statements of a search, as a database executes them. On SQLite none of them suspends."""

    async def are_few(self, lead: Lead) -> bool:
        """Returns whether so few runs have what leads that all of them can be read."""
        ...

    async def edge(self, lead: Lead, cursor: Cursor, bite: int) -> str | None:
        """Returns the last of so many runs beyond the cursor; None if there are not as many."""
        ...

    async def list(self, lead: Lead, cursor: Cursor, until: str, limit: int) -> list[Run]: ...


async def find_runs(
    search: Search, filter: RunFilter, cursor: Cursor | None, limit: int, missing: tuple[str, ...] = ()
) -> FoundRuns:
    """Lists runs, or searches for those that match. `missing` names indexes that are not built yet."""
    bounds = bounds_of(filter, cursor)
    cursor = bounds.cursor
    if not is_search(filter):
        return FoundRuns(await search.list(Lead.WALK, cursor, bounds.end, limit))
    lead = lead_of(filter, missing)
    if lead.gathered:
        if await search.are_few(lead):
            return FoundRuns(await search.list(lead, cursor, bounds.end, limit))
        lead = Lead.WALK
    found: list[Run] = []
    for bite in bites_of(lead):
        edge = await search.edge(lead, cursor, bite)
        last = edge is None or bounds.reached(edge)
        until = bounds.end if edge is None or last else edge
        found += await search.list(lead, cursor, until, limit - len(found))
        if last or len(found) == limit:
            return FoundRuns(found)
        cursor = Cursor(until, cursor.backward)
    return FoundRuns(found, cursor.key)


def is_search(filter: RunFilter) -> bool:
    """Says whether runs may have to be passed over. Those without a filter are what is listed."""
    return filter != RunFilter(namespace=filter.namespace)


def lead_of(filter: RunFilter, missing: tuple[str, ...] = ()) -> Lead:
    """Returns what leads a search best, if these indexes are missing."""
    for lead in _leads(filter):
        if INDEXES.get(lead) not in missing:
            return lead
    return Lead.WALK


def _leads(filter: RunFilter) -> list[Lead]:
    leads: list[Lead] = []
    if filter.parent_run_id is not None:
        leads.append(Lead.CHILDREN)
    if filter.schedule_id is not None:
        leads.append(Lead.SCHEDULE)
    if filter.tags:
        leads.append(Lead.TAG)
    if filter.error is not None:
        leads.append(Lead.ERROR)
    if filter.id_prefix is not None:
        leads.append(Lead.PREFIX)
    statuses = [status for status in (filter.status, filter.or_status) if status is not None]
    if filter.status is not None and all(status in _FAILED for status in statuses):
        leads.append(Lead.FAILED)
    if statuses == [RunStatus.RUNNING]:
        leads.append(Lead.RUNNING)
    if filter.status is not None and all(status in _WAITING for status in statuses):
        leads.append(Lead.WAITING)
    return leads


def bites_of(lead: Lead) -> tuple[int, ...]:
    return BITES if lead is Lead.WALK else LED_BITES


class Bounds(Struct, frozen=True):
    """Between which run ids a search takes place: beyond `cursor`, and not beyond `end`."""

    cursor: Cursor
    end: str

    def reached(self, edge: str) -> bool:
        """Returns whether there is nothing to be found beyond this id."""
        return edge >= self.end if self.cursor.backward else edge <= self.end


def bounds_of(filter: RunFilter, cursor: Cursor | None) -> Bounds:
    """Returns where a search begins and ends, by its cursor and by the times of its filter."""
    oldest = OLDEST if filter.created_after is None else _id_at(filter.created_after - _WRONG)
    newest = NEWEST if filter.created_before is None else _id_at(filter.created_before + _WRONG)
    if cursor is not None and cursor.backward:
        return Bounds(Cursor(max(cursor.key, oldest), True), newest)
    return Bounds(Cursor(newest if cursor is None else min(cursor.key, newest)), oldest)


def _id_at(instant: Instant) -> str:
    """Returns the least run id that was made at an instant, or the nearest that ids can tell of."""
    text = f"{min(max(instant // 1000, 0), 2**48 - 1):012x}"
    return f"{text[:8]}-{text[8:]}-0000-0000-000000000000"


def prefix_end(prefix: str) -> str | None:
    """Returns the first text, byte by byte, that comes behind everything with this prefix; None if nothing does."""
    kept = prefix.rstrip(_LAST)
    if not kept:
        return None
    following = ord(kept[-1]) + 1
    return kept[:-1] + chr(0xE000 if following == 0xD800 else following)


class Asked(Struct, frozen=True):
    """A filter, as the statements of both stores take it, beside what they have always taken."""

    tags: str | None  # as JSON
    other_tags: str | None  # those beside the one that leads
    prefix: str | None
    prefix_end: str | None
    error_class: str | None
    error_type: str | None
    schedule_id: str | None
    parent_run_id: str | None

    def listed(
        self, filter: RunFilter, lead: Lead, cursor: Cursor, until: str, limit: int
    ) -> tuple[str | int | None, ...]:
        """Returns what every statement takes that lists runs, in its order."""
        return (
            filter.namespace,
            cursor.key,
            None if filter.status is None else filter.status.value,
            filter.workflow_type,
            filter.task_queue,
            filter.created_after,
            filter.created_before,
            limit,
            None if filter.or_status is None else filter.or_status.value,
            until,
            self.other_tags if lead is Lead.TAG else self.tags,
            self.prefix,
            self.prefix_end,
            self.error_class,
            self.error_type,
            self.schedule_id,
            self.parent_run_id,
        )

    def lead_value(self, lead: Lead, tag: str | None) -> tuple[str | None, ...]:
        """What the statement that finds the edge of a lead takes, too."""
        values = {
            Lead.CHILDREN: (self.parent_run_id,),
            Lead.SCHEDULE: (self.schedule_id,),
            Lead.TAG: (tag,),
            Lead.ERROR: (self.error_class,),
            Lead.PREFIX: (self.prefix, self.prefix_end),
        }
        return values.get(lead, ())


def asked_of(filter: RunFilter, *, tag_list: bool) -> Asked:
    """`tag_list`: as a list of `name=value`, else as an object."""
    error, dotted = filter.error, filter.error is not None and "." in filter.error
    tags = list(filter.tags.items())
    return Asked(
        tags=_written(tags, tag_list),
        other_tags=_written(tags[1:], tag_list),
        prefix=filter.id_prefix,
        prefix_end=None if filter.id_prefix is None else prefix_end(filter.id_prefix),
        error_class=None if error is None else error.rpartition(".")[2],
        error_type=error if dotted else None,
        schedule_id=filter.schedule_id,
        parent_run_id=filter.parent_run_id,
    )


def _written(tags: list[tuple[str, str]], as_list: bool) -> str | None:
    if tags and as_list:
        return msgspec.json.encode([tag_text(*tag) for tag in tags]).decode()
    return encode_tags(dict(tags))


def tag_of(filter: RunFilter) -> str | None:
    """Returns the tag that leads: the first of them."""
    return next((tag_text(*tag) for tag in filter.tags.items()), None)
