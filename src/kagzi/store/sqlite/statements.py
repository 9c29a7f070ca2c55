"""The statements of this store: how their values reach SQLite, and one form of each for many rows at once.

Statements number their values (`?1`), since many say one of them twice. To Python 3.12.0 to 3.12.3 a number is a name,
and values that come in a sequence then raise a DeprecationWarning. So what SQLite gets has plain question marks, and
the values in the order in which the statement says them.

executemany() steps SQLite once for each row, and gives the interpreter lock away each time; while the event
loop is busy every row then waits for its turn. One statement with many rows waits once. So a statement whose
VALUES hold one row of question marks exists in a few widths, and rows are sent in slices of these.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Sequence
from functools import cache
from itertools import chain
from operator import itemgetter
from typing import Final

from kagzi.store.sql import load_statements

SQL: Final = load_statements("kagzi.store.sqlite")

Value = str | int | bytes | bytearray | None
Row = tuple[Value, ...]

_NUMBERED: Final = re.compile(r"\?(\d+)")
# Few enough to stay in the connection's statement cache, close enough that a slice is seldom a single row.
_WIDTHS: Final = (64, 16, 4, 1)
_ROW: Final = re.compile(r"VALUES \((\?(?:, (?:\?|'[A-Z]+'))*)\)")


def execute(connection: sqlite3.Connection, name: str, values: Row = ()) -> sqlite3.Cursor:
    """Runs a statement with the values that it numbers."""
    statement, arrange = unnumbered(SQL[name])
    return connection.execute(statement, values if arrange is None else arrange(values))


@cache
def unnumbered(statement: str) -> tuple[str, Callable[[Row], Row] | None]:
    """Returns a statement with plain question marks, and how to bring its values into their order; None if they are in
    it."""
    order = [int(number) - 1 for number in _NUMBERED.findall(statement)]
    return _NUMBERED.sub("?", statement), None if order == list(range(len(order))) else itemgetter(*order)


def execute_rows(connection: sqlite3.Connection, name: str, rows: Sequence[Row]) -> int:
    """Runs a statement for all rows; returns how many rows of the table changed."""
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
