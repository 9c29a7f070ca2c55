"""Debounced starts: what the database says of the run that has their key. For both databases.

    start ──▶ a run of the key waits, not begun ──▶ it gets this input, and waits anew
         └──▶ none ──▶ a new run, which waits

Starts and claims meet in the run's row: whoever has its lock first is first. A start that comes after the claim finds
the run begun, and makes another one. What a start leaves to the one before it: the id, when it was made, queue,
priority, tags, retries and failure handler. The rest is as the last start has it: its input, and what follows from it.
"""

from __future__ import annotations

from msgspec import Struct

from kagzi.api.operations import Started, StartRun
from kagzi.core.run import RunStatus
from kagzi.errors import Conflict


class Found(Struct, frozen=True):
    """A run that stands in the way of a debounced start."""

    run_id: str
    task_queue: str
    workflow_type: str
    status: str
    available_at: int | None


def stands_in_the_way(start: StartRun, found: Found) -> Started | Conflict:
    """Answers a start that could neither join a run nor make one."""
    if found.run_id != start.run_id:
        return Conflict(
            f"run {found.run_id} of {found.workflow_type} waits in queue {found.task_queue!r}, and this start is for "
            f"queue {start.task_queue!r}: debounced starts with one key are for one queue"
        )
    if (found.workflow_type, found.task_queue) != (start.workflow_type, start.task_queue):
        return Conflict(
            f"run id {found.run_id} belongs to a run of {found.workflow_type}, which was started with another type or "
            "queue"
        )
    return Started(run_id=found.run_id, status=RunStatus(found.status), available_at=found.available_at or 0)
