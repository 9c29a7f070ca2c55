"""Lists of runs, bounded in what they read: see `store/searching.py`."""

from __future__ import annotations

import sqlite3

from kagzi.api.workflows import RunFilter
from kagzi.core.page import Cursor
from kagzi.core.run import Run
from kagzi.store import searching
from kagzi.store.protocol.runs import FoundRuns
from kagzi.store.searching import Lead
from kagzi.store.sqlite.run_rows import run_of
from kagzi.store.sqlite.statements import execute


def list_runs(connection: sqlite3.Connection, filter: RunFilter, cursor: Cursor | None, limit: int) -> FoundRuns:
    bounds = searching.bounds_of(filter, cursor)
    cursor = bounds.cursor
    search = _Search(connection, filter)
    if not searching.is_search(filter):
        return FoundRuns(search.list(Lead.WALK, cursor, bounds.end, limit))
    lead = searching.lead_of(filter)
    if lead.gathered:
        if search.are_few(lead):
            return FoundRuns(search.list(lead, cursor, bounds.end, limit))
        lead = Lead.WALK
    found: list[Run] = []
    for bite in searching.bites_of(lead):
        edge = search.edge(lead, cursor, bite)
        last = edge is None or bounds.reached(edge)
        until = bounds.end if edge is None or last else edge
        found += search.list(lead, cursor, until, limit - len(found))
        if last or len(found) == limit:
            return FoundRuns(found)
        cursor = Cursor(until, cursor.backward)
    return FoundRuns(found, cursor.key)


class _Search:
    def __init__(self, connection: sqlite3.Connection, filter: RunFilter) -> None:
        self._connection = connection
        self._filter = filter
        self._asked = searching.asked_of(filter, tag_list=True)
        self._tag = searching.tag_of(filter)

    def are_few(self, lead: Lead) -> bool:
        values = (self._filter.namespace, searching.FEW + 1, *self._asked.lead_value(lead, self._tag))
        count: int = execute(self._connection, f"count_{lead.value}", values).fetchone()[0]
        return count <= searching.FEW

    def edge(self, lead: Lead, cursor: Cursor, bite: int) -> str | None:
        """Returns the last of so many runs beyond the cursor; None if there are not as many."""
        values = (self._filter.namespace, cursor.key, bite, *self._asked.lead_value(lead, self._tag))
        row = execute(self._connection, _name("edge", lead, cursor), values).fetchone()
        return None if row is None else row[0]

    def list(self, lead: Lead, cursor: Cursor, until: str, limit: int) -> list[Run]:
        filter, asked = self._filter, self._asked
        rows = execute(
            self._connection,
            _name("list", lead, cursor),
            (
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
                asked.other_tags if lead is Lead.TAG else asked.tags,
                asked.prefix,
                asked.prefix_end,
                asked.error_class,
                asked.error_type,
                asked.schedule_id,
                asked.parent_run_id,
                self._tag,
            ),
        ).fetchall()
        return [run_of(row) for row in rows]


def _name(kind: str, lead: Lead, cursor: Cursor) -> str:
    return f"{kind}_{lead.value}{'_backward' if cursor.backward else ''}"
