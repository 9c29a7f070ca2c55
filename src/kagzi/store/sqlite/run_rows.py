"""Turns rows of runs into records, and computes the order of claiming."""

from __future__ import annotations

from typing import Any, Final

from kagzi.core.carried import TO_PEOPLE
from kagzi.core.family import policy_of
from kagzi.core.instant import Instant
from kagzi.core.run import AGEING, Run, RunStatus
from kagzi.store.columns import SHOWN_RUN, reader
from kagzi.store.waits import read_waits

# Payloads up to this size stay in their run's row.
INLINE_BYTES: Final = 1024

STATUSES: Final = {status.value: status for status in RunStatus}


def claim_key(available_at: Instant, priority: int, now: Instant) -> Instant:
    """Returns the order of claiming. It lies in the past exactly if the run is due, so one index serves both
    questions."""
    if available_at > now:
        return available_at
    return min(available_at - priority * AGEING, now)


_run_of: Final = reader(
    Run,
    SHOWN_RUN,
    TO_PEOPLE,
    read={"parent_policy": policy_of},
    given=("status", "waiting_for", "lease_expires_at", "cancel_deadline"),
)


def run_of(row: tuple[Any, ...]) -> Run:
    status = STATUSES[row[6]]
    return _run_of(
        row,
        status,
        read_waits(row[20], status),
        row[21] if status is RunStatus.RUNNING else None,
        None if status.finished else row[22],
    )
