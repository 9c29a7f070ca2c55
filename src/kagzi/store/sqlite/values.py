"""Values: setting and reading them."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

import msgspec

from kagzi.core.instant import Instant
from kagzi.core.run_value import MOST_VALUES, RunValue
from kagzi.store.sqlite.statements import Row, execute
from kagzi.store.values import too_many


def set_values(connection: sqlite3.Connection, rows: Sequence[Row], now: Instant) -> None:
    """Sets values of runs that are held; ValueError, and nothing is to be kept, if a run then has too many.

    A row is namespace, run id, token, name, value and number.
    """
    for namespace, run_id, token, name, value, number in rows:
        execute(connection, "set_value", (namespace, run_id, token, name, value, now, number))
    for run in dict.fromkeys((row[0], row[1]) for row in rows):
        if execute(connection, "count_values", run).fetchone()[0] > MOST_VALUES:
            raise ValueError(too_many(str(run[1])))


def read_values(
    connection: sqlite3.Connection, namespace: str, run_id: str, names: Sequence[str], after: str
) -> list[RunValue]:
    run = (namespace, run_id, after)
    if names:
        rows = execute(connection, "get_values", (*run, msgspec.json.encode(names).decode()))
    else:
        rows = execute(connection, "list_values", run)
    return [RunValue(name=name, value=value, at=at) for name, value, at in rows]
