"""Ids that go from a finished run to the one that takes its place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kagzi.api.operations import SpawnChild
from kagzi.core.run import RunStatus
from kagzi.errors import Locked
from kagzi.store.children import gives_id_up
from kagzi.store.postgres.statements import STATEMENTS
from kagzi.store.protocol.changes import RunKey

if TYPE_CHECKING:
    from kagzi.store.postgres.connection import Connection

_GIVE_UP_ID = STATEMENTS["give_up_id"]
_TAKE_ID = STATEMENTS["take_id"]
_FIND_EARLIER_CHILDREN = STATEMENTS["find_earlier_children"]
_LOCK_HOLDER = STATEMENTS["lock_holder"]


async def free_id(connection: Connection, holder: RunKey, run_id: str) -> bool:
    """Takes the id of a finished run away, for a run that gets it in the same transaction. False if it has none."""
    return await connection.execute(_GIVE_UP_ID, *holder, run_id) == "UPDATE 1"


async def note_origin(connection: Connection, holder: RunKey, run_id: str) -> None:
    """Gives a run the id that another has given up to it, and notes whose it was."""
    await connection.execute(_TAKE_ID, holder[0], run_id, holder[1])


async def free_ids_for_children(
    connection: Connection, spawns: Sequence[tuple[str, str, SpawnChild]]
) -> dict[str, RunKey]:
    """Takes ids away from finished runs that give them up to children of these steps. Returns whose they were, by the
    run id of the child. Locked, and nothing is to be kept, if another transaction holds one of them."""
    named = [(namespace, parent, spawn) for namespace, parent, spawn in spawns if spawn.child.external_id is not None]
    if not named:
        return {}
    rows = await connection.fetch(
        _FIND_EARLIER_CHILDREN,
        [namespace for namespace, _, _ in named],
        [spawn.child.external_id for _, _, spawn in named],
        [parent for _, parent, _ in named],
        [spawn.step_id for _, _, spawn in named],
    )
    freed: dict[str, RunKey] = {}
    for row in rows:
        namespace, _, spawn = named[row["place"] - 1]
        holder = (namespace, str(row["run_id"]))
        if holder[1] == spawn.child.run_id or holder in freed.values():
            continue
        if not gives_id_up(spawn.child, row["workflow_type"], RunStatus(row["status"]), own=row["own"]):
            continue
        if await connection.fetchval(_LOCK_HOLDER, *holder) is None:
            raise Locked(f"id {spawn.child.external_id!r} is being given from run to run; trying again is safe")
        await free_id(connection, holder, spawn.child.run_id)
        freed[spawn.child.run_id] = holder
    return freed
