"""Reading steps."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Final

import msgspec

from kagzi.core.step import Step, StepStatus, step_kind
from kagzi.store.sqlite.statements import execute

_STATUSES: Final = {status.value: status for status in StepStatus}


def get_steps(
    connection: sqlite3.Connection, namespace: str, run_id: str, payloads: bool, step_id: str | None
) -> list[Step]:
    rows = execute(connection, "get_steps", (namespace, run_id, payloads, step_id)).fetchall()
    return [step_of(*row) for row in rows]


def read_history(connection: sqlite3.Connection, namespace: str, run_ids: Sequence[str]) -> dict[str, tuple[Step, ...]]:
    """Returns the history of each of these runs that has any, events in order of completed_seq."""
    rows = execute(connection, "read_history", (namespace, msgspec.json.encode(run_ids).decode())).fetchall()
    histories: dict[str, list[Step]] = {}
    for row in rows:
        histories.setdefault(row[0], []).append(step_of(*row[1:]))
    return {run_id: tuple(sorted(steps, key=_place)) for run_id, steps in histories.items()}


def _place(step: Step) -> tuple[bool, int, int, str, int]:
    seq = step.completed_seq
    return (seq is None, seq or 0, step.started_at, step.step_id, step.attempt)


def step_of(
    step_id: str,
    attempt: int,
    kind: str,
    status: str,
    completed_seq: int | None,
    started_at: int,
    finished_at: int | None,
    retry_at: int | None,
    input_hash: int,
    output: bytes | None,
    error: bytes | None,
    input: bytes | None = None,
    child_run_id: str | None = None,
) -> Step:
    return Step(
        step_id=step_id,
        attempt=attempt,
        kind=step_kind(kind, step_id),
        status=_STATUSES[status],
        completed_seq=completed_seq,
        started_at=started_at,
        finished_at=finished_at,
        retry_at=retry_at,
        input_hash=input_hash,
        output=output,
        error=error,
        input=input,
        child_run_id=child_run_id,
    )
