"""Lists of runs, bounded in what they read: see `store/searching.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from uuid import UUID

from kagzi.api.workflows import RunFilter
from kagzi.core.page import Cursor
from kagzi.core.run import Run
from kagzi.store import searching
from kagzi.store.postgres.run_rows import run_of
from kagzi.store.postgres.statements import STATEMENTS
from kagzi.store.protocol.runs import FoundRuns
from kagzi.store.searching import Lead

if TYPE_CHECKING:
    from kagzi.store.postgres.connection import Connection

_ORDERED: Final = [lead for lead in Lead if not lead.gathered]
_LISTS: Final = {(lead, back): STATEMENTS[f"list_{lead.value}{back}"] for lead in Lead for back in ("", "_backward")}
_EDGES: Final = {
    (lead, back): STATEMENTS[f"edge_{lead.value}{back}"] for lead in _ORDERED for back in ("", "_backward")
}
_COUNTS: Final = {lead: STATEMENTS[f"count_{lead.value}"] for lead in Lead if lead.gathered}


async def list_runs(
    connection: Connection, filter: RunFilter, cursor: Cursor | None, limit: int, missing: tuple[str, ...] = ()
) -> FoundRuns:
    return await searching.find_runs(_Search(connection, filter), filter, cursor, limit, missing)


class _Search:
    def __init__(self, connection: Connection, filter: RunFilter) -> None:
        self._connection = connection
        self._filter = filter
        self._asked = searching.asked_of(filter, tag_list=False)
        self._tag = searching.tag_of(filter)

    async def are_few(self, lead: Lead) -> bool:
        more = self._asked.lead_value(lead, self._tag)
        count: int = await self._connection.fetchval(_COUNTS[lead], self._filter.namespace, searching.FEW + 1, *more)
        return count <= searching.FEW

    async def edge(self, lead: Lead, cursor: Cursor, bite: int) -> str | None:
        statement = _EDGES[lead, "_backward" if cursor.backward else ""]
        more = self._asked.lead_value(lead, self._tag)
        found: UUID | None = await self._connection.fetchval(statement, self._filter.namespace, cursor.key, bite, *more)
        return None if found is None else str(found)

    async def list(self, lead: Lead, cursor: Cursor, until: str, limit: int) -> list[Run]:
        more: list[object] = []
        if lead is Lead.TAG:
            more = [self._tag]
        elif lead.gathered:
            more = [searching.FEW]
        rows = await self._connection.fetch(
            _LISTS[lead, "_backward" if cursor.backward else ""],
            *self._asked.listed(self._filter, lead, cursor, until, limit),
            *more,
        )
        return [run_of(row) for row in rows]
