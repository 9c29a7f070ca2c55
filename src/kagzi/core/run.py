"""A run: one execution of a workflow, and which status may follow which."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from msgspec import Struct

from kagzi.core.family import ParentPolicy
from kagzi.core.instant import Instant, Span


class RunStatus(StrEnum):
    PENDING = "PENDING"
    RUNNING = "RUNNING"
    SLEEPING = "SLEEPING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    TIMED_OUT = "TIMED_OUT"
    # Schedule templates share the table with runs and are never claimed.
    SCHEDULED = "SCHEDULED"
    PAUSED = "PAUSED"

    @property
    def finished(self) -> bool:
        return self in FINISHED


FINISHED: Final = frozenset({RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED, RunStatus.TIMED_OUT})
# What a run can be; the others are of templates.
RUN_STATUSES: Final = tuple(status for status in RunStatus if status not in (RunStatus.SCHEDULED, RunStatus.PAUSED))
CLAIMABLE: Final = frozenset({RunStatus.PENDING, RunStatus.SLEEPING})

_ENDS = FINISHED
FOLLOWS: Final[dict[RunStatus, frozenset[RunStatus]]] = {
    RunStatus.PENDING: frozenset({RunStatus.RUNNING, *_ENDS}) - {RunStatus.COMPLETED},
    RunStatus.RUNNING: frozenset({RunStatus.PENDING, RunStatus.SLEEPING, *_ENDS}),
    RunStatus.SLEEPING: frozenset({RunStatus.RUNNING, RunStatus.PENDING, *_ENDS}) - {RunStatus.COMPLETED},
    RunStatus.COMPLETED: frozenset(),
    RunStatus.FAILED: frozenset(),
    RunStatus.CANCELLED: frozenset(),
    RunStatus.TIMED_OUT: frozenset(),
    RunStatus.SCHEDULED: frozenset({RunStatus.PAUSED}),
    RunStatus.PAUSED: frozenset({RunStatus.SCHEDULED}),
}

# One priority level is worth this much waiting time in the claim order: a run of priority 3 is claimed as if it had
# become due three minutes earlier, so nothing starves. There is no priority below 0: it would put the key of a run that
# is due into the future, and the key is also what says that a run is due.
AGEING: Final[Span] = 60_000_000
PRIORITY_LIMIT: Final = 1000

# How long a run that is told to end may clean up, unless the request says otherwise.
CANCEL_GRACE: Final[Span] = 30_000_000
# A cancelled run that is held for a limit has so much more time: waiting for a slot is not cleaning up. Not for ever,
# since nobody may ever be let in.
HELD_GRACE: Final[Span] = 3_600_000_000


class Run(Struct, frozen=True, kw_only=True):
    """What is known about a run, as the engine shows it. Instants are microseconds (see `core.instant`)."""

    namespace: str
    run_id: str
    external_id: str | None
    task_queue: str
    workflow_type: str
    version: str
    status: RunStatus
    priority: int
    attempts: int
    executions: int
    crashes: int
    created_at: Instant
    available_at: Instant | None
    started_at: Instant | None
    finished_at: Instant | None
    deadline_at: Instant | None
    worker_id: str | None
    input: bytes
    output: bytes | None
    error: bytes | None
    parent_run_id: str | None = None
    parent_step_id: str | None = None
    parent_attempt: int | None = None  # of that step, if its body has started the run
    parent_policy: ParentPolicy | None = None
    depth: int = 0  # generations above it
    handles_run_id: str | None = None  # the failed run that it, or one above it, was started for
    on_failure: str | None = None  # the workflow that is started if it fails
    waiting_for: tuple[str, ...] = ()  # what wakes it while it is SLEEPING, as its ParkRun said
    lease_expires_at: Instant | None = None  # while RUNNING
    incarnation: int = 0  # how often it has begun anew, with a new input, by `continue_as_new`
    cancel_deadline: Instant | None = None  # until when it may clean up; None: it was not asked to end
    tags: dict[str, str] = {}  # what its starter wrote on it, to find it by
    superseded_by: str | None = None  # the run that has taken its id over
    former_id: str | None = None  # that id
    origin: str | None = None  # the run that it repeats, restarts or was forked from
    schedule_id: str | None = None  # the schedule that has started it
    scheduled_for: Instant | None = None  # the firing of that schedule; None if it was triggered by hand
    limit_key: str | None = None  # whose share of limits it takes
    seed_run_id: str | None = None  # the run whose chance it draws, because it goes on with the history of that one
    debounce_key: str | None = None  # of the starts that become this run until it begins
    joins: int = 0  # how many starts have joined it after the one that has made it
    joined_at: Instant | None = None  # when the last of them did
    joined_by: str | None = None  # the run id that the last of them would have had
    timezone: str | None = None  # of the schedule that has started it
    lineage: str | None = None  # for whom its payloads may be sealed beside it: see `core.lineage`

    @property
    def fired_for(self) -> Instant | None:
        """The firing of its schedule that it is, or when somebody has triggered it; None if no schedule has started
        it. `fired_for` in the fragments.sql of both stores says it, too."""
        return self.created_at if self.scheduled_for is None and self.timezone is not None else self.scheduled_for
