"""Steps: rows into records, and a run's history."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kagzi.core.step import Step, StepStatus, step_kind
from kagzi.store.postgres.statements import STATEMENTS

if TYPE_CHECKING:
    import asyncpg

    from kagzi.store.postgres.connection import Connection

_READ_HISTORY = STATEMENTS["read_history"]
_GET_STEPS = STATEMENTS["get_steps"]
_STATUSES = {status.value: status for status in StepStatus}


async def read_histories(connection: Connection, namespace: str, run_ids: Sequence[str]) -> dict[str, list[Step]]:
    rows = await connection.fetch(_READ_HISTORY, namespace, run_ids)
    histories: dict[str, list[Step]] = {run_id: [] for run_id in run_ids}
    history: list[Step] = []
    last: object = None
    for row in rows:
        # Rows come run by run, and turning an id into text costs more than comparing it.
        if row["run_id"] != last:
            last = row["run_id"]
            history = histories[str(last)]
        history.append(step_of(row))
    return histories


async def get_steps(
    connection: Connection, namespace: str, run_id: str, payloads: bool, step_id: str | None
) -> list[Step]:
    return [step_of(row) for row in await connection.fetch(_GET_STEPS, namespace, run_id, payloads, step_id)]


def step_of(row: asyncpg.Record) -> Step:
    return Step(
        step_id=row["step_id"],
        attempt=row["attempt"],
        kind=step_kind(row["kind"], row["step_id"]),
        status=_STATUSES[row["status"]],
        completed_seq=row["completed_seq"],
        started_at=row["started_at"],
        finished_at=row["finished_at"],
        retry_at=row["retry_at"],
        input_hash=row["input_hash"],
        output=row["output"],
        error=row["error"],
        input=row["input"],
        child_run_id=None if (child := row["child_run_id"]) is None else str(child),
    )
