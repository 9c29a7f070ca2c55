"""What a parked run waits for, as the stores keep it."""

from __future__ import annotations

import msgspec

from kagzi.api.operations import ParkRun
from kagzi.core.run import RunStatus


def waiting_for(park: ParkRun) -> str | None:
    """Returns as a JSON list what a ParkRun waits for; None if nothing but time wakes the run."""
    return msgspec.json.encode(park.waiting_for).decode() if park.waiting_for else None


def read_waits(stored: str | None, status: RunStatus) -> tuple[str, ...]:
    """Returns what the run waits for now. The column keeps what was said last, and only a parked run waits."""
    if stored is None or status is not RunStatus.SLEEPING:
        return ()
    return msgspec.json.decode(stored, type=tuple[str, ...])
