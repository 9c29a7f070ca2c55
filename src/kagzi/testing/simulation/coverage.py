"""What a batch of seeds must have seen to count: a simulation in which nothing happens finds nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kagzi.testing.simulation.faults import Fault

_OPERATIONS = (
    "StartRun",
    "StartStep",
    "CompleteStep",
    "FailStep",
    "CancelStep",
    "ParkRun",
    "HandBackRun",
    "RetryRun",
    "CompleteRun",
    "FailRun",
    "CancelRun",
    "TerminateRun",
    "EndCancelledRun",
    "SendSignal",
    "TakeSignal",
    "SetValue",
    "repeated signal",
    "signal that woke a run",
    "signal for a run that has ended",
    "signal given back",
    "refused chunk",
    "declined completion",
    "declined park",
    "run given up after crashes",
    "SpawnChild",
    "TakeOutcome",
    "child at depth 2",
    "child that ended after its parent",
    "child that was refused",
    "outcome by apply",
    "outcome by time_out_runs",
    "outcome given back",
    "outcome that woke a run",
    "firing by fire_schedules",
    "firing by trigger_schedule",
    "firing that was skipped",
    "buffer while a run is live",
    "skip while a run is live",
    "run cancelled by the next firing",
    "handler by apply",
    "handler by recover_runs",
    "handler by time_out_runs",
    "claim under a limit",
    "first claim under a rate",
    "run held",
    "run let go",
    "held run that was cancelled or ended",
)
_TRANSACTIONS = (
    "apply",
    "claim",
    "register",
    "heartbeats",
    "drain_worker",
    "deregister",
    "recover_runs",
    "time_out_steps",
    "time_out_runs",
    "end_cancelled_runs",
    "cascade_ends",
    "fire_schedules",
    "fold_schedule_ends",
    "update_schedule",
    "backfill_schedule",
    "unhold",
    "pause",
    "resume",
    "set_limit",
    "declare_limits",
    "expire_workers",
    "prune_runs",
    "prune_workers",
    "horizon",
    "finished_of",
    "read_inbox",
    "get_run",
    "get_runs",
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


def missing(seen: Mapping[str, int]) -> list[str]:
    """What has not occurred in a batch and should have."""
    return [name for name in REQUIRED if not seen.get(name)]
