"""Forks: runs that go on from a chosen step of another one, live or finished."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kagzi.api.operations import Answer, Fork, RepeatRun, Started
from kagzi.core.instant import Instant
from kagzi.core.run import RunStatus
from kagzi.core.step import escape
from kagzi.errors import NotFound, Unavailable
from kagzi.store.postgres.single import INLINE_BYTES
from kagzi.store.postgres.statements import STATEMENTS
from kagzi.store.starts import id_taken, step_has_no_end

if TYPE_CHECKING:
    from kagzi.store.postgres.connection import Connection

_FIND_FORKED_RUN = STATEMENTS["find_forked_run"]
_NUMBER_OF_STEP = STATEMENTS["number_of_step"]
_STEPS_NAMED = STATEMENTS["steps_named"]
_CHANGE_FORK = STATEMENTS["change_fork"]
_FIND_FORK = STATEMENTS["find_fork"]
_REPEAT_RUN = STATEMENTS["repeat_run"]
_STORE_INPUTS = STATEMENTS["store_inputs"]
_COPY_INPUT = STATEMENTS["copy_input"]
_COPY_FAILED_INPUT = STATEMENTS["copy_failed_input"]
_COPY_STEPS = STATEMENTS["copy_steps"]
_COPY_SIGNALS = STATEMENTS["copy_signals"]


async def fork_run(connection: Connection, request: RepeatRun, fork: Fork, now: Instant | None) -> Answer:
    """Answers a request to fork a run, in the transaction of the caller."""
    namespace, source, run_id = request.namespace, request.of_run_id, request.run_id
    # One statement after the other: the next one sees all that was written before this lock was given.
    if await connection.fetchrow(_FIND_FORKED_RUN, namespace, source) is None:
        return NotFound(f"there is no run {source} in namespace {namespace}")
    keep = 0
    if fork.from_step is not None:
        number = await connection.fetchval(_NUMBER_OF_STEP, namespace, source, fork.from_step)
        if number is None:
            return step_has_no_end(source, fork.from_step)
        keep = number - 1
    row = await connection.fetchrow(_REPEAT_RUN, now, namespace, source, run_id, keep)
    if row is None:
        wanted = (namespace, run_id, source, fork.input, keep)
        row = await connection.fetchrow(_FIND_FORK, *wanted)
        if row is None:
            return Unavailable("the run with this id has just been deleted; trying again is safe")
        if not row["same"]:
            return id_taken(run_id, row["workflow_type"])
    else:
        await _copy(connection, request, fork, keep)
    return Started(run_id=run_id, status=RunStatus(row["status"]), available_at=row["available_at"] or 0)


async def steps_named(connection: Connection, namespace: str, run_id: str, name: str) -> list[str]:
    """Returns the ids of the steps of a run that have ended and have this name, or one in which it occurs."""
    rows = await connection.fetch(_STEPS_NAMED, namespace, run_id, name, escape(name))
    return [row["step_id"] for row in rows]


async def _copy(connection: Connection, request: RepeatRun, fork: Fork, keep: int) -> None:
    """Gives a fork what its source has recorded before the chosen step, and what it has other than that."""
    namespace, source, run_id = request.namespace, request.of_run_id, request.run_id
    inline = fork.input if len(fork.input or b"") <= INLINE_BYTES else None
    await connection.execute(_CHANGE_FORK, namespace, run_id, fork.version, fork.input is not None, inline)
    if fork.input is None:
        await connection.execute(_COPY_INPUT, namespace, source, run_id)
    elif inline is None:
        await connection.execute(_STORE_INPUTS, [namespace], [run_id], [fork.input])
    await connection.execute(_COPY_FAILED_INPUT, namespace, source, run_id)
    if keep > 0:
        await connection.execute(_COPY_STEPS, namespace, source, run_id, keep)
    if fork.from_step is not None:
        await connection.execute(_COPY_SIGNALS, namespace, source, run_id, keep)
