"""The statements of this store, and one form of each for many rows at once.

executemany() steps SQLite once for each row, and gives the interpreter lock away each time; while the event
loop is busy every row then waits for its turn. One statement with many rows waits once. So a statement whose
VALUES hold one row of question marks exists in a few widths, and rows are sent in slices of these.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Sequence
from functools import cache
from itertools import chain
from typing import Final

from kagzi.store.sql import load_statements

SQL: Final = load_statements("kagzi.store.sqlite")

Value = str | int | bytes | bytearray | None
Row = tuple[Value, ...]

# Few enough to stay in the connection's statement cache, close enough that a slice is seldom a single row.
_WIDTHS: Final = (64, 16, 4, 1)
_ROW: Final = re.compile(r"VALUES \((\?(?:, (?:\?|'[A-Z]+'))*)\)")


def execute_rows(connection: sqlite3.Connection, name: str, rows: Sequence[Row]) -> int:
    """Run a statement for all rows; returns how many rows of the table changed."""
    changed = start = 0
    left = len(rows)
    for width in _WIDTHS:
        while left >= width:
            values = rows[start] if width == 1 else tuple(chain.from_iterable(rows[start : start + width]))
            changed += connection.execute(widened(name, width), values).rowcount
            start += width
            left -= width
    return changed


@cache
def widened(name: str, width: int) -> str:
    statement, found = _ROW.subn(lambda row: "VALUES " + ", ".join([f"({row[1]})"] * width), SQL[name])
    assert found == 1, f"{name} has no row of question marks, or several"
    return statement
