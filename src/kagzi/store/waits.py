"""What a parked run waits for, as the stores keep it."""

from __future__ import annotations

import msgspec

from kagzi.api.operations import RunOperation
from kagzi.core.run import RunStatus


def waiting_for(park: RunOperation) -> str | None:
    """Returns what a ParkRun says as a JSON list; None if nothing but time wakes the run."""
    names: tuple[str, ...] = getattr(park, "waiting_for", ())
    return msgspec.json.encode(names).decode() if names else None


def read_waits(stored: str | None, status: RunStatus) -> tuple[str, ...]:
    """Returns what the run waits for now. The column keeps what was said last, and only a parked run waits."""
    if stored is None or status is not RunStatus.SLEEPING:
        return ()
    return msgspec.json.decode(stored, type=tuple[str, ...])
