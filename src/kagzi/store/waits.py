"""What a parked run waits for, as the stores keep it."""

from __future__ import annotations

import msgspec

from kagzi.api.operations import RunOperation


def waiting_for(park: RunOperation) -> str | None:
    """Returns what a ParkRun says as a JSON list; None if nothing but time wakes the run."""
    names: tuple[str, ...] = getattr(park, "waiting_for", ())
    return msgspec.json.encode(names).decode() if names else None
