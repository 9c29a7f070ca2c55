"""The contract for schedules: make, read, change and fire them."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from kagzi.core.declaration import Declaration
from kagzi.core.instant import Instant, Span
from kagzi.core.limits import DEFAULT_PAGE_SIZE
from kagzi.core.page import Page
from kagzi.core.run import Run
from kagzi.core.schedule import DEFAULT_CATCHUP, Overlap, Schedule, Skip


class CreateSchedule(Struct, frozen=True, kw_only=True):
    """Makes a schedule. Its id comes from the caller, so that a repeated request finds the schedule of the first."""

    namespace: str
    schedule_id: str
    name: str | None = None
    workflow_type: str
    task_queue: str
    version: str = ""  # the default one at the time of firing
    cron_expr: str
    timezone: str = "UTC"
    enabled: bool = True
    input: bytes = b"[]"
    max_catchup: int = DEFAULT_CATCHUP
    overlap: Overlap = Overlap.ALLOW
    jitter: Span = 0
    priority: int = 0
    timeout: Span | None = None
    retry_policy: bytes | None = None
    tags: dict[str, str] = {}  # of the runs it fires
    on_failure: str | None = None
    on_failure_queue: str | None = None
    limit_key: str | None = None  # whose share of limits its runs take
    # As in StartRun: whoever makes it knows the workflow by its name alone.
    by_name: bool = False
    other_queue: bool = False


class UpdateSchedule(Struct, frozen=True, kw_only=True):
    """Changes what is not None of a schedule. Firings that were due and have not fired by then are not made up for."""

    namespace: str
    schedule_id: str
    workflow_type: str | None = None
    task_queue: str | None = None
    version: str | None = None
    cron_expr: str | None = None
    timezone: str | None = None
    enabled: bool | None = None
    input: bytes | None = None
    max_catchup: int | None = None
    overlap: Overlap | None = None
    jitter: Span | None = None
    priority: int | None = None
    timeout: Span | None = None
    retry_policy: bytes | None = None
    next_fire_at: Instant | None = None  # instead of what the expression says
    pause_reason: str | None = None  # with `enabled` false
    tags: dict[str, str] | None = None  # instead of those it has
    on_failure: str | None = None  # '' is none
    on_failure_queue: str | None = None
    limit_key: str | None = None  # '' is none
    reset: bool = False  # nothing else: what code declares counts again, from a worker's next look on

    @property
    def is_by_hand(self) -> bool:
        """Whether this changes something that code may declare, which pausing is not."""
        beside = ("namespace", "schedule_id", "enabled", "pause_reason", "next_fire_at", "reset")
        return any(getattr(self, field) is not None for field in self.__struct_fields__ if field not in beside)


class DeclareSchedule(Struct, frozen=True, kw_only=True):
    """What the code of a worker declares about a schedule, said when it starts and once a minute."""

    namespace: str
    schedule_id: str  # of the schedule, should it be made now
    worker_id: str
    starting: bool
    declaration: Declaration


class Backfilled(Struct, frozen=True, kw_only=True):
    """What became of the firings of a time that has passed."""

    started: int
    existing: int  # had become runs before


class ScheduleService(Protocol):
    """Schedules are named by `schedule_id`, which is a schedule's id or its name. Every method raises NotFound if there
    is none."""

    async def create(self, create: CreateSchedule) -> Schedule:
        """Makes a schedule; Conflict if the name is taken."""
        ...

    async def get(self, namespace: str, schedule_id: str) -> Schedule: ...

    async def list(
        self,
        namespace: str,
        *,
        task_queue: str | None = None,
        page_size: int = DEFAULT_PAGE_SIZE,
        page_token: str | None = None,
    ) -> Page[Schedule]:
        """Lists schedules, the newest first."""
        ...

    async def update(self, update: UpdateSchedule) -> Schedule: ...

    async def trigger(self, namespace: str, schedule_id: str, run_id: str) -> str:
        """Start a run now, beside the plan, also while paused; returns its id, which the caller has made."""
        ...

    async def backfill(self, namespace: str, schedule_id: str, since: Instant, until: Instant) -> Backfilled:
        """Start runs for the firings from `since` to before `until` that have none yet. Harmless to repeat."""
        ...

    async def delete(self, namespace: str, schedule_id: str) -> None:
        """Deletes a schedule. The runs that it has started stay."""
        ...

    async def runs(
        self, namespace: str, schedule_id: str, *, page_size: int = DEFAULT_PAGE_SIZE, page_token: str | None = None
    ) -> Page[Run]:
        """Lists the runs that a schedule has started, the newest first; those of a deleted one by its id."""
        ...

    async def skips(self, namespace: str, schedule_id: str) -> tuple[Skip, ...]:
        """Returns the newest firings that did not become runs, and why."""
        ...
