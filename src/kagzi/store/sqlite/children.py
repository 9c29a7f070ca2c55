"""Children: spawning them, telling their parents, and ending them after those."""

from __future__ import annotations

import sqlite3

from kagzi.api.operations import CancelRun, Chunk, SpawnChild, Started, TerminateRun
from kagzi.core.family import ANY_CHILD, awaits_child
from kagzi.core.instant import Instant
from kagzi.core.run import RunStatus
from kagzi.core.step import Step
from kagzi.store.children import end_of_child, outcome_lost, place_taken, spawn_refused
from kagzi.store.protocol.changes import RunKey, Told
from kagzi.store.sqlite.inboxes import raise_inbox
from kagzi.store.sqlite.restarts import free_id, holder_for_child, note_origin
from kagzi.store.sqlite.run_rows import INLINE_BYTES
from kagzi.store.sqlite.starts import new_run_row
from kagzi.store.sqlite.statements import Row, execute, execute_rows
from kagzi.store.sqlite.steps import step_of


def spawn_child(connection: sqlite3.Connection, chunk: Chunk, spawn: SpawnChild, now: Instant) -> Told | None:
    """Inserts a child and its step; returns it, or its parent if the id or the place is taken: that is an outcome. None
    if the child was there."""
    child, namespace, parent = spawn.child, chunk.namespace, chunk.run_id
    input = spawn.input or b"null"
    step = (namespace, parent, spawn.step_id, spawn.attempt)
    placed = (*step, spawn.started_at, spawn.input_hash, spawn.input, child.run_id)
    if not execute(connection, "place_child", placed).rowcount:
        if execute(connection, "clear_place", step).rowcount:
            return spawn_child(connection, chunk, spawn, now)
        refused = (*step, child.run_id, place_taken(child, spawn.step_id), now)
        if not execute(connection, "refuse_place", refused).rowcount:
            return None
        return raise_inbox(connection, (namespace, parent), _waits(child.run_id), now)
    execute(connection, "mark_parent", (namespace, parent))
    started = Started(run_id=child.run_id, available_at=max(now + child.delay, child.start_at or 0))
    place = (parent, spawn.step_id, child.policy.value, child.depth)
    row = (*place, *new_run_row(namespace, child, input, started, None, now))
    if not execute(connection, "insert_child", row).rowcount:
        own = (namespace, child.run_id, parent, spawn.step_id)
        if execute(connection, "is_own_child", own).fetchone()[0]:
            return None
        holder = holder_for_child(connection, (namespace, parent), spawn.step_id, child)
        if holder is None:
            execute(connection, "refuse_child", (*step, spawn_refused(child), now))
            return raise_inbox(connection, (namespace, parent), _waits(child.run_id), now)
        free_id(connection, holder, child.run_id)
        execute(connection, "insert_child", row)
        note_origin(connection, holder, child.run_id)
    if len(input) > INLINE_BYTES:
        execute_rows(connection, "insert_payloads", [(namespace, child.run_id, "input", input)])
    return Told(
        namespace=namespace,
        run_id=child.run_id,
        task_queue=child.task_queue,
        status=RunStatus.PENDING,
        available_at=started.available_at,
        inbox_seq=0,
        workflow_type=child.workflow_type,
    )


def take_outcome(connection: sqlite3.Connection, taken: Row) -> None:
    """Numbers an outcome; ValueError, and nothing is to be kept, if there is none to be taken."""
    if execute(connection, "take_outcome", taken).rowcount != 1:
        raise ValueError("the outcome of a child was taken that has none")


def tell_parent(connection: sqlite3.Connection, run: RunKey, now: Instant) -> Told | None:
    """Tells the parent of a run how that has ended, if it is live and was not told before."""
    row = execute(connection, "find_outcome", run).fetchone()
    if row is None:
        return None
    parent, step_id, status, output, error, finished_at = row
    outcome = status if status in ("COMPLETED", "CANCELLED") else "FAILED"
    told = (run[0], parent, step_id, run[1], outcome, output, error, finished_at)
    if not execute(connection, "tell_outcome", told).rowcount:
        return None
    return raise_inbox(connection, (run[0], parent), _waits(run[1]), now)


def reconcile(connection: sqlite3.Connection, run: RunKey, now: Instant) -> None:
    """Tells a run of children that have ended without telling it: by a server of a version before children."""
    for step_id, attempt, child, gone in execute(connection, "find_untold", run).fetchall():
        if not gone:
            tell_parent(connection, (run[0], child), now)
        elif execute(connection, "refuse_child", (*run, step_id, attempt, outcome_lost(child), now)).rowcount:
            raise_inbox(connection, run, _waits(child), now)


def read_outcomes(connection: sqlite3.Connection, run: RunKey) -> tuple[Step, ...]:
    return tuple([step_of(*row) for row in execute(connection, "read_outcomes", run)])


def has_untold(connection: sqlite3.Connection, run: RunKey) -> bool:
    return execute(connection, "find_untold", run).fetchone() is not None


def cascade_ends(connection: sqlite3.Connection, limit: int) -> list[CancelRun | TerminateRun]:
    execute(connection, "forget_cascades")
    return [end_of_child(*row) for row in execute(connection, "find_cascades", (limit,)).fetchall()]


def _waits(child: str) -> tuple[str, ...]:
    return awaits_child(child), ANY_CHILD
