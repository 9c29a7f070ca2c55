"""Children: spawning them, telling their parents, and ending them after those."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kagzi.api.operations import CancelRun, SpawnChild, TakeOutcome, TerminateRun
from kagzi.api.workers import Inbox
from kagzi.core.instant import Instant
from kagzi.errors import InvalidRequest
from kagzi.store.children import end_of_child, outcome_lost, place_taken, spawn_refused
from kagzi.store.postgres.restarts import free_ids_for_children, note_origin
from kagzi.store.postgres.run_rows import columns_of
from kagzi.store.postgres.single import INLINE_BYTES, spawn_row, spawned, told_of
from kagzi.store.postgres.statements import STATEMENTS
from kagzi.store.postgres.steps import step_of
from kagzi.store.protocol.changes import RunKey, Told

if TYPE_CHECKING:
    import asyncpg

    from kagzi.store.postgres.connection import Connection

_LOCK_FAMILIES = STATEMENTS["lock_families"]
_FIND_PARENTS = STATEMENTS["find_parents"]
_LOCK_PARENTS = STATEMENTS["lock_parents"]
_SPAWN_CHILDREN = STATEMENTS["spawn_children"]
_STORE_INPUTS = STATEMENTS["store_inputs"]
_CLEAR_PLACES = STATEMENTS["clear_places"]
_UNPLACE_CHILDREN = STATEMENTS["unplace_children"]
_FIND_OWN_CHILDREN = STATEMENTS["find_own_children"]
_REFUSE_PLACES = STATEMENTS["refuse_places"]
_REFUSE_CHILDREN = STATEMENTS["refuse_children"]
_TELL_OUTCOMES = STATEMENTS["tell_outcomes"]
_RAISE_INBOXES = STATEMENTS["raise_inboxes"]
_TAKE_OUTCOMES = STATEMENTS["take_outcomes"]
_READ_OUTCOMES = STATEMENTS["read_outcomes"]
_FIND_UNTOLD = STATEMENTS["find_untold"]
_FORGET_CASCADES = STATEMENTS["forget_cascades"]
_FIND_CASCADES = STATEMENTS["find_cascades"]

Spawn = tuple[str, str, SpawnChild]  # namespace and parent
Taken = tuple[str, str, TakeOutcome]


# Locks.


async def lock_families(connection: Connection, runs: Sequence[RunKey]) -> None:
    """Locks runs that may end, with their parents, before anything else of the transaction."""
    await connection.fetchval(_LOCK_FAMILIES, *columns_of(runs))


async def lock_parents(connection: Connection, runs: Sequence[RunKey]) -> list[bool]:
    """Returns for each of these runs, which the transaction holds, whether its parent is held now, or has no need to
    be. For duties: waits for nobody."""
    free = [True] * len(runs)
    found = await connection.fetch(_FIND_PARENTS, *columns_of(runs))
    if found:
        parents = {(row["namespace"], row["run_id"]) for row in found}
        rows = await connection.fetch(_LOCK_PARENTS, *columns_of(sorted(parents)))
        held = {(row["namespace"], row["run_id"]) for row in rows}
        for row in found:
            free[row["place"] - 1] = (row["namespace"], row["run_id"]) in held
    return free


# Spawning and taking, in the transaction of a chunk and under its run's lock.


async def spawn_children(connection: Connection, spawns: Sequence[Spawn], now: Instant | None) -> list[Told]:
    """Inserts children and their steps. Returns those that were started, and parents whose child has an outcome now:
    its id is taken."""
    if not spawns:
        return []
    columns = (list(column) for column in zip(*(spawn_row(*spawn) for spawn in spawns), strict=True))
    row = await connection.fetchrow(_SPAWN_CHILDREN, now, *columns)
    assert row is not None
    placed = {str(run_id) for run_id in row["placed"] or ()}
    made = {str(run_id) for run_id in row["made"] or ()}
    at: Instant = row["now"]
    new = {spawn.child.run_id: (namespace, spawn) for namespace, _, spawn in spawns if spawn.child.run_id in made}
    large = [(namespace, spawn) for namespace, spawn in new.values() if len(spawn.input or b"") > INLINE_BYTES]
    if large:
        keys = [(namespace, spawn.child.run_id) for namespace, spawn in large]
        await connection.execute(_STORE_INPUTS, *columns_of(keys), [spawn.input for _, spawn in large])
    told = [spawned(namespace, spawn, at) for namespace, spawn in new.values()]
    if len(placed) < len(spawns):
        told += await _take_places(connection, [each for each in spawns if each[2].child.run_id not in placed], now, at)
    if placed == made:
        return told
    left = [each for each in spawns if each[2].child.run_id in placed - made]
    freed = await free_ids_for_children(connection, left)
    if freed:
        again = [each for each in left if each[2].child.run_id in freed]
        steps = [spawn.step_id for _, _, spawn in again]
        await connection.execute(_UNPLACE_CHILDREN, *columns_of([each[:2] for each in again]), steps, list(freed))
        told += await spawn_children(connection, again, now)
        for run_id, holder in freed.items():
            await note_origin(connection, holder, run_id)
    return told + await _refuse(connection, [each for each in left if each[2].child.run_id not in freed], at)


async def take_outcomes(connection: Connection, taken: Sequence[Taken]) -> None:
    """Numbers outcomes; InvalidRequest, and nothing is to be kept, if one of them is not there to be taken."""
    status = await connection.execute(
        _TAKE_OUTCOMES,
        [namespace for namespace, _, _ in taken],
        [run_id for _, run_id, _ in taken],
        [step.step_id for _, _, step in taken],
        [step.attempt for _, _, step in taken],
        [step.completed_seq for _, _, step in taken],
        [step.finished_at for _, _, step in taken],
    )
    if int(status.rpartition(" ")[2]) != len(taken):
        raise InvalidRequest("the outcome of a child was taken that has none")


async def _take_places(connection: Connection, spawns: Sequence[Spawn], now: Instant | None, at: Instant) -> list[Told]:
    """Sorts spawns whose step was there: those for which it was begun are spawned after all, the others refused.
    Returns the runs that were told."""
    places = [(namespace, parent, spawn.step_id, spawn.attempt) for namespace, parent, spawn in spawns]
    columns = (list(column) for column in zip(*places, strict=True))
    rows = await connection.fetch(_CLEAR_PLACES, *columns)
    cleared = {(row["namespace"], str(row["run_id"]), row["step_id"], row["attempt"]) for row in rows}
    if not cleared:
        return await _refuse_places(connection, spawns, at)
    left = [spawn for spawn, place in zip(spawns, places, strict=True) if place not in cleared]
    told = await spawn_children(
        connection, [spawn for spawn, place in zip(spawns, places, strict=True) if place in cleared], now
    )
    return told + (await _refuse_places(connection, left, at) if left else [])


async def _refuse_places(connection: Connection, spawns: Sequence[Spawn], now: Instant) -> list[Told]:
    """Refuses spawns whose step was there and is no child of theirs; the others came twice, or were kept by a retry.
    Returns the runs that were told."""
    refused = [
        (namespace, parent, spawn.step_id, spawn.attempt, spawn.child.run_id, place_taken(spawn.child, spawn.step_id))
        for namespace, parent, spawn in spawns
    ]
    columns = (list(column) for column in zip(*refused, strict=True))
    return await _raise_inboxes(connection, await connection.fetch(_REFUSE_PLACES, now, *columns))


async def _refuse(connection: Connection, spawns: Sequence[Spawn], now: Instant) -> list[Told]:
    if not spawns:
        return []
    rows = await connection.fetch(
        _FIND_OWN_CHILDREN,
        [namespace for namespace, _, _ in spawns],
        [spawn.child.run_id for _, _, spawn in spawns],
        [parent for _, parent, _ in spawns],
        [spawn.step_id for _, _, spawn in spawns],
    )
    own = {str(row["run_id"]) for row in rows}
    refused = [
        (namespace, parent, spawn.step_id, spawn.child.run_id, spawn_refused(spawn.child))
        for namespace, parent, spawn in spawns
        if spawn.child.run_id not in own
    ]
    return await _write_refusals(connection, refused, now)


async def _write_refusals(
    connection: Connection, refused: Sequence[tuple[str, str, str, str, bytes]], now: Instant
) -> list[Told]:
    if not refused:
        return []
    columns = (list(column) for column in zip(*refused, strict=True))
    return await _raise_inboxes(connection, await connection.fetch(_REFUSE_CHILDREN, now, *columns))


# Ends.


async def tell_parents(connection: Connection, runs: Sequence[RunKey]) -> list[Told]:
    """Tells the live parents of ended runs, which the transaction has locked. Returns them."""
    return await _raise_inboxes(connection, await connection.fetch(_TELL_OUTCOMES, *columns_of(runs)))


async def _raise_inboxes(connection: Connection, outcomes: Sequence[asyncpg.Record]) -> list[Told]:
    if not outcomes:
        return []
    rows = await connection.fetch(
        _RAISE_INBOXES,
        [row["namespace"] for row in outcomes],
        [row["run_id"] for row in outcomes],
        [row["child_run_id"] for row in outcomes],
        [row["now"] for row in outcomes],
    )
    return [told_of(row) for row in rows]


async def reconcile(connection: Connection, namespace: str, run_id: str, now: Instant | None) -> None:
    """Tells a run of children that have ended without telling it: by a server of a version before children."""
    if not await connection.fetch(_FIND_UNTOLD, namespace, run_id, now):
        return
    async with connection.transaction():
        await lock_families(connection, [(namespace, run_id)])
        untold = await connection.fetch(_FIND_UNTOLD, namespace, run_id, now)
        ended = [(namespace, str(row["child_run_id"])) for row in untold if not row["gone"]]
        if ended:
            await tell_parents(connection, ended)
        gone = [
            (namespace, run_id, row["step_id"], str(row["child_run_id"]), outcome_lost(str(row["child_run_id"])))
            for row in untold
            if row["gone"]
        ]
        if gone:
            await _write_refusals(connection, gone, untold[0]["now"])


async def read_outcomes(connection: Connection, namespace: str, run_id: str, token: str) -> Inbox | None:
    """Returns the outcomes that the holder of a lease has not taken yet; None if the run is not held under it."""
    rows = await connection.fetch(_READ_OUTCOMES, namespace, run_id, token)
    if not rows:
        return None
    return Inbox(
        inbox_seq=rows[0]["inbox_seq"],
        cancel_requested=rows[0]["cancel_requested"],
        signals=(),
        outcomes=tuple(step_of(row) for row in rows if row["step_id"] is not None),
    )


async def cascade_ends(connection: Connection, limit: int) -> list[CancelRun | TerminateRun]:
    await connection.execute(_FORGET_CASCADES)
    rows = await connection.fetch(_FIND_CASCADES, limit)
    return [end_of_child(row["namespace"], str(row["run_id"]), row["parent_policy"]) for row in rows]
