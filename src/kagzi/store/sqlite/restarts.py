"""Ids that go from a finished run to the one that takes its place."""

from __future__ import annotations

import sqlite3

from kagzi.api.operations import ChildStart
from kagzi.core.run import RunStatus
from kagzi.store.children import gives_id_up
from kagzi.store.protocol.changes import RunKey
from kagzi.store.sqlite.statements import execute


def free_id(connection: sqlite3.Connection, holder: RunKey, run_id: str) -> None:
    """Takes the id of a finished run away, for a run that gets it in the same transaction."""
    execute(connection, "give_up_id", (*holder, run_id))


def note_origin(connection: sqlite3.Connection, holder: RunKey, run_id: str) -> None:
    """Gives a run the id that another has given up to it, and notes whose it was."""
    execute(connection, "take_id", (holder[0], run_id, holder[1]))


def holder_for_child(connection: sqlite3.Connection, parent: RunKey, step_id: str, child: ChildStart) -> RunKey | None:
    """Returns the finished run that gives its id up to this child of this step."""
    if child.external_id is None:
        return None
    asked = (parent[0], child.external_id, parent[1], step_id)
    row = execute(connection, "find_earlier_child", asked).fetchone()
    if row is None or not gives_id_up(child, row[1], RunStatus(row[2]), own=bool(row[3])):
        return None
    return parent[0], row[0]
