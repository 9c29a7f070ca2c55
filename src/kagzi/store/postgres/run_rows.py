"""Turns rows of runs into records, and makes the keys that they are found by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from kagzi.core.carried import TO_PEOPLE
from kagzi.core.family import policy_of
from kagzi.core.limits import ID
from kagzi.core.run import Run, RunStatus
from kagzi.store.columns import SHOWN_RUN, reader
from kagzi.store.protocol.changes import RunKey
from kagzi.store.waits import read_waits

if TYPE_CHECKING:
    import asyncpg


STATUSES = {status.value: status for status in RunStatus}


def text_of(id: UUID | None) -> str | None:
    return None if id is None else str(id)


_run_of = reader(
    Run,
    SHOWN_RUN,
    TO_PEOPLE,
    read={
        "run_id": str,
        "parent_policy": policy_of,
        **dict.fromkeys(("worker_id", "parent_run_id", "handles_run_id", "superseded_by"), text_of),
        **dict.fromkeys(("origin", "schedule_id", "seed_run_id", "joined_by"), text_of),
    },
    given=("status", "waiting_for", "lease_expires_at", "cancel_deadline"),
)


def run_of(row: asyncpg.Record) -> Run:
    status = STATUSES[row["status"]]
    return _run_of(
        row,
        status,
        read_waits(row["waiting_for"], status),
        row["lease_expires_at"] if status is RunStatus.RUNNING else None,
        None if status.finished else row["cancel_deadline"],
    )


def columns_of(runs: Sequence[RunKey]) -> tuple[list[str], list[str]]:
    return [namespace for namespace, _ in runs], [run_id for _, run_id in runs]


def is_id(text: str) -> bool:
    """Returns whether a run can have this id at all."""
    if ID.fullmatch(text):  # as ids of ours are written; a UUID takes ten times as long to be made
        return True
    try:
        UUID(text)
    except ValueError:
        return False
    return True
