"""What a batch of seeds must have seen to count: a simulation in which nothing happens finds nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, get_args

from kagzi.api.operations import OPERATIONS, Chunk, Write
from kagzi.testing.simulation.faults import Fault

_OPERATIONS = (
    *(kind.__name__ for kind in (*OPERATIONS, *get_args(Write)) if kind is not Chunk),
    "repeated signal",
    "signal that woke a run",
    "signal for a run that has ended",
    "signal given back",
    "refused chunk",
    "declined completion",
    "declined park",
    "run given up after crashes",
    "child at depth 2",
    "child that ended after its parent",
    "child that was refused",
    "outcome by apply",
    "outcome by duties.time_out_runs",
    "outcome given back",
    "outcome that woke a run",
    "firing by schedules.fire",
    "firing by schedules.trigger",
    "firing that was skipped",
    "buffer while a run is live",
    "skip while a run is live",
    "run cancelled by the next firing",
    "handler by apply",
    "handler by duties.recover_runs",
    "handler by duties.time_out_runs",
    "id taken over",
    "run that began anew",
    "run moved to another version",
    "retry that keeps events",
    "retry that has other children",
    "fork that keeps events",
    "fork that has other children",
    "rerun",
    "claim under a limit",
    "first claim under a rate",
    "run held",
    "run let go",
    "held run that was cancelled or ended",
)
_TRANSACTIONS = (
    "apply",
    "claim",
    "workers.register",
    "workers.heartbeats",
    "workers.drain",
    "workers.deregister",
    "duties.recover_runs",
    "duties.time_out_steps",
    "duties.time_out_runs",
    "duties.end_cancelled_runs",
    "duties.cascade_ends",
    "schedules.fire",
    "schedules.fold_ends",
    "schedules.update",
    "schedules.backfill",
    "limits.unhold",
    "limits.pause",
    "limits.resume",
    "limits.change",
    "limits.declare",
    "workers.expire",
    "duties.prune_runs",
    "workers.prune",
    "overview.horizon",
    "runs.finished_of",
    "signals.read_inbox",
    "runs.get",
    "runs.get_many",
)
_TRANSITIONS = (
    "born PENDING",
    "born RUNNING",
    "PENDING to RUNNING",
    "SLEEPING to RUNNING",
    "RUNNING to PENDING",
    "RUNNING to SLEEPING",
    "RUNNING to COMPLETED",
    "RUNNING to FAILED",
    "RUNNING to TIMED_OUT",
    "PENDING to TIMED_OUT",
    "SLEEPING to TIMED_OUT",
    "PENDING to CANCELLED",
    "RUNNING to CANCELLED",
)

REQUIRED: Final = (
    *(f"operation: {name}" for name in _OPERATIONS),
    *(f"store: {name}" for name in _TRANSACTIONS),
    *(f"transition: {name}" for name in _TRANSITIONS),
    *(f"fault: {fault}" for fault in Fault),
)


# In worlds with jobs and debounced starts: beside what there is in all worlds, of which few need not have everything.
BULK_REQUIRED: Final = (
    *(
        f"operation: {name}"
        for name in (
            "run that a job cancelled",
            "run that a job terminated",
            "run that a job woke",
            "run that a job retried",
            "run that a job reran",
            "run that a job forked",
            "run that a job moved",
            "run that has no such step for a job",
            "run that was repeated before a job",
            "fork that keeps events",
            "run that a job deleted",
            "retry that keeps events",
            "child that a job skips",
            "child that a job repeats",
            "job of several batches",
            "job during which a process died",
            "job that was cancelled",
            "debounced start",
            "debounced start that joined a run",
            "debounced start that cannot put its run off",
            "debounced start that came twice",
        )
    ),
    "store: jobs.start",
    "store: jobs.cancel",
    "store: jobs.run_batch",
    f"fault: {Fault.CRASH}",
    f"fault: {Fault.COMMIT_UNKNOWN}",
    f"fault: {Fault.REPEAT}",
)


def missing(seen: Mapping[str, int], required: Iterable[str] = REQUIRED) -> list[str]:
    """What has not occurred in a batch and should have."""
    return [name for name in required if not seen.get(name)]
