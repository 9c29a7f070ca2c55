"""Values: setting and reading them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kagzi.api.operations import SetValue
from kagzi.core.instant import Instant
from kagzi.core.run_value import MOST_VALUES, RunValue
from kagzi.errors import InvalidRequest
from kagzi.store.postgres.statements import STATEMENTS
from kagzi.store.values import too_many

if TYPE_CHECKING:
    from kagzi.store.postgres.connection import Connection

_SET_VALUES = STATEMENTS["set_values"]
_FIND_FULL_RUNS = STATEMENTS["find_full_runs"]
_LIST_VALUES = STATEMENTS["list_values"]

Setting = tuple[str, str, SetValue]  # namespace, run id, what is set


async def set_values(connection: Connection, settings: Sequence[Setting], now: Instant | None) -> None:
    """Sets values of runs that this transaction holds; InvalidRequest, and nothing is to be kept, if a run then has too
    many."""
    last: dict[tuple[str, str, str], SetValue] = {}  # because a statement may not touch a row twice
    for namespace, run_id, value in settings:
        key = (namespace, run_id, value.name)
        if key not in last or value.number >= last[key].number:
            last[key] = value
    rows = await connection.fetch(
        _SET_VALUES,
        now,
        [namespace for namespace, _, _ in last],
        [run_id for _, run_id, _ in last],
        [name for _, _, name in last],
        [value.value for value in last.values()],
        [value.number for value in last.values()],
    )
    grown = dict.fromkeys((row["namespace"], row["run_id"]) for row in rows if row["new"])
    if grown:
        namespaces, run_ids = [run[0] for run in grown], [run[1] for run in grown]
        full = await connection.fetch(_FIND_FULL_RUNS, namespaces, run_ids, MOST_VALUES)
        if full:
            raise InvalidRequest(too_many(str(full[0]["run_id"])))


async def read_values(
    connection: Connection, namespace: str, run_id: str, names: Sequence[str], after: str
) -> list[RunValue]:
    rows = await connection.fetch(_LIST_VALUES, namespace, run_id, after, list(names) if names else None)
    return [RunValue(name=row["name"], value=row["value"], at=row["at"]) for row in rows]
