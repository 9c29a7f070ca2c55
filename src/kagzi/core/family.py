"""Families: runs that other runs have started and may wait for."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

MOST_DEPTH: Final = 100  # generations of children below a run that has no parent
MOST_CHILDREN: Final = 10_000  # of one run, spawned and not yet seen to have ended

ANY_CHILD: Final = "c:*"  # what `ParkRun.waiting_for` says instead of naming many children


class ParentPolicy(StrEnum):
    """What becomes of a child when its parent ends, however that ends. NONE is a run that only remembers where it was
    started: it is not told of its parent's end, and its parent not of its."""

    CANCEL = "cancel"
    ABANDON = "abandon"
    TERMINATE = "terminate"
    NONE = "none"


def policy_of(name: str | None) -> ParentPolicy | None:
    """Returns the policy that is kept under this name; None for a run without a parent."""
    return None if name is None else ParentPolicy(name)


def awaits_child(run_id: str) -> str:
    """Returns what `ParkRun.waiting_for` says of a wait for the outcome of this child."""
    return f"c:{run_id}"
