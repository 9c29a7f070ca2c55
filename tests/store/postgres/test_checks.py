"""The one check of runs: a row that would be a dead end is refused."""

from __future__ import annotations

import asyncpg
import pytest

_INSERT = """INSERT INTO kagzi.workflow_runs (
                 namespace, run_id, task_queue, workflow_type, version, created_at, {columns})
             VALUES ('default', gen_random_uuid(), 'q', 'w', '1', 0, {values})"""
_LEASED = {"token": "gen_random_uuid()", "lease_expires_at": "1", "started_at": "1"}
_DUE = {"claim_key": "1", "available_at": "1"}


@pytest.mark.parametrize(
    ("row", "fine"),
    [
        ({"status": "'PENDING'", **_DUE}, True),
        ({"status": "'SLEEPING'", **_DUE}, True),
        ({"status": "'RUNNING'", **_LEASED}, True),
        ({"status": "'COMPLETED'", "finished_at": "1"}, True),
        ({"status": "'SCHEDULED'", "cron_expr": "'@daily'"}, True),
        ({"status": "'PENDING'"}, False),
        ({"status": "'SLEEPING'", "claim_key": "1"}, False),
        ({"status": "'COMPLETED'"}, False),
        ({"status": "'SCHEDULED'"}, False),
        ({"status": "'RUNNING'", **_LEASED, "finished_at": "1"}, False),
        ({"status": "'PENDING'", **_DUE, "finished_at": "1"}, False),
        *[({"status": "'RUNNING'", **_DUE, **_LEASED, missing: "NULL"}, False) for missing in _LEASED],
    ],
)
async def test_a_run_can_be_claimed_is_leased_has_ended_or_is_a_template(
    postgres_database: str, row: dict[str, str], fine: bool
) -> None:
    connection = await asyncpg.connect(postgres_database)
    try:
        insert = _INSERT.format(columns=", ".join(row), values=", ".join(row.values()))
        if fine:
            await connection.execute(insert)
        else:
            with pytest.raises(asyncpg.CheckViolationError, match="workflow_runs_moves"):
                await connection.execute(insert)
    finally:
        await connection.close()
