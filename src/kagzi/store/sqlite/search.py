"""Lists of runs, bounded in what they read: see `store/searching.py`."""

from __future__ import annotations

import sqlite3

from kagzi.api.workflows import RunFilter
from kagzi.core.driving import drive
from kagzi.core.page import Cursor
from kagzi.core.run import Run
from kagzi.store import searching
from kagzi.store.protocol.runs import FoundRuns
from kagzi.store.searching import Lead
from kagzi.store.sqlite.run_rows import run_of
from kagzi.store.sqlite.statements import execute


def list_runs(connection: sqlite3.Connection, filter: RunFilter, cursor: Cursor | None, limit: int) -> FoundRuns:
    return drive(searching.find_runs(_Search(connection, filter), filter, cursor, limit))


class _Search:
    def __init__(self, connection: sqlite3.Connection, filter: RunFilter) -> None:
        self._connection = connection
        self._filter = filter
        self._asked = searching.asked_of(filter, tag_list=True)
        self._tag = searching.tag_of(filter)

    async def are_few(self, lead: Lead) -> bool:
        values = (self._filter.namespace, searching.FEW + 1, *self._asked.lead_value(lead, self._tag))
        count: int = execute(self._connection, f"count_{lead.value}", values).fetchone()[0]
        return count <= searching.FEW

    async def edge(self, lead: Lead, cursor: Cursor, bite: int) -> str | None:
        values = (self._filter.namespace, cursor.key, bite, *self._asked.lead_value(lead, self._tag))
        row = execute(self._connection, _name("edge", lead, cursor), values).fetchone()
        return None if row is None else row[0]

    async def list(self, lead: Lead, cursor: Cursor, until: str, limit: int) -> list[Run]:
        rows = execute(
            self._connection,
            _name("list", lead, cursor),
            (*self._asked.listed(self._filter, lead, cursor, until, limit), self._tag),
        ).fetchall()
        return [run_of(row) for row in rows]


def _name(kind: str, lead: Lead, cursor: Cursor) -> str:
    return f"{kind}_{lead.value}{'_backward' if cursor.backward else ''}"
