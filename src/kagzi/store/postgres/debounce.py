"""Debounced starts. See `kagzi.store.debounce`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kagzi.api.operations import Answer, Started, StartRun
from kagzi.core.carried import kept_of
from kagzi.core.instant import Instant
from kagzi.core.run import RunStatus
from kagzi.errors import Unavailable
from kagzi.store.debounce import Found, stands_in_the_way
from kagzi.store.postgres.single import INLINE_BYTES
from kagzi.store.postgres.statements import STATEMENTS

if TYPE_CHECKING:
    from kagzi.store.postgres.connection import Connection

_JOIN_RUN = STATEMENTS["join_run"]
_START_DEBOUNCED_RUN = STATEMENTS["start_debounced_run"]
_FIND_DEBOUNCED = STATEMENTS["find_debounced"]
_STORE_INPUTS = STATEMENTS["store_inputs"]
_TRIES = 5


async def start_debounced(connection: Connection, start: StartRun, now: Instant | None) -> Answer:
    """Joins the run with this key that nobody has begun, or makes one. Each start by itself: two batches that join the
    same runs in another order would wait for each other."""
    for _ in range(_TRIES):
        if len(start.input) <= INLINE_BYTES:
            answer = await _join_or_insert(connection, start, now)
        else:
            async with connection.transaction():
                answer = await _join_or_insert(connection, start, now)
                if isinstance(answer, Started):
                    await connection.execute(_STORE_INPUTS, [start.namespace], [answer.run_id], [start.input])
        if answer is not None:
            return answer
        debounce = start.debounce
        assert debounce is not None
        key = (start.workflow_type, debounce.key, start.task_queue)
        row = await connection.fetchrow(_FIND_DEBOUNCED, start.namespace, start.run_id, *key)
        if row is not None:
            return stands_in_the_way(start, Found(str(row[0]), *tuple(row)[1:]))
        # Another start has made the run since we looked: then we join it. Or it was begun meanwhile: then we make one.
    return Unavailable("runs of this key are being started and begun at once; trying again is safe")


async def _join_or_insert(connection: Connection, start: StartRun, now: Instant | None) -> Started | None:
    debounce = start.debounce
    assert debounce is not None
    input = start.input if len(start.input) <= INLINE_BYTES else None
    row = await connection.fetchrow(
        _JOIN_RUN,
        now,
        start.namespace,
        start.workflow_type,
        debounce.key,
        start.task_queue,
        start.run_id,
        debounce.wait,
        debounce.most,
        input,
        start.version,
        start.trace_context,
        start.limit_name,
        start.limit_key,
        start.timeout,
        start.deadline_at,
    )
    if row is not None:
        run_id = str(row["run_id"])
        return Started(
            run_id=run_id,
            already_exists=run_id != start.run_id,
            status=RunStatus(row["status"]),
            available_at=row["available_at"],
            left_line=row["left_line"],
        )
    row = await connection.fetchrow(
        _START_DEBOUNCED_RUN,
        now,
        start.namespace,
        start.run_id,
        start.task_queue,
        start.workflow_type,
        start.version,
        start.priority,
        input,
        debounce.wait,
        start.timeout,
        start.deadline_at,
        start.lease_length,
        start.limit_name,
        debounce.key,
        *kept_of(start),
    )
    return None if row is None else Started(run_id=start.run_id, available_at=row["available_at"])
