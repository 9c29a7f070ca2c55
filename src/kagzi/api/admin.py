"""The contract for operators: look after workers, count workers, schedules and runs."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from kagzi.core.instant import Instant
from kagzi.core.limits import DEFAULT_PAGE_SIZE
from kagzi.core.page import Page
from kagzi.core.run import RunStatus
from kagzi.core.schedule import ScheduleCounts
from kagzi.core.worker import Worker, WorkerStatus


class WorkerFilter(Struct, frozen=True, kw_only=True):
    """Chooses the workers of a list, which has the newest first."""

    namespace: str = "default"
    task_queue: str | None = None
    status: WorkerStatus | None = None


class RunCount(Struct, frozen=True):
    """The number of runs of one workflow on one queue that have the same status; `at_least`: there may be more."""

    workflow_type: str
    task_queue: str
    status: RunStatus
    count: int
    at_least: bool = False


class AdminService(Protocol):
    async def get_worker(self, worker_id: str, namespace: str | None = None) -> Worker:
        """Returns a worker; NotFound if there is none, or none in this namespace."""
        ...

    async def list_workers(
        self, filter: WorkerFilter, *, page_size: int = DEFAULT_PAGE_SIZE, page_token: str | None = None
    ) -> Page[Worker]: ...

    async def drain_worker(self, worker_id: str, namespace: str | None = None) -> Worker:
        """Ask a worker to finish what it has and take nothing new; it is told with its next heartbeat. One that has
        gone stays gone."""
        ...

    async def count_workers(self, namespace: str | None) -> dict[WorkerStatus, int]:
        """Counts workers by status; None counts those of all namespaces."""
        ...

    async def count_schedules(self, namespace: str | None) -> ScheduleCounts:
        """Counts schedules and what became of their firings; None counts those of all namespaces. Reads counters, no
        runs; of many schedules the answer may be half a minute old."""
        ...

    async def count_runs(
        self,
        namespace: str | None,
        *,
        live: bool = False,
        created_after: Instant | None = None,
        created_before: Instant | None = None,
    ) -> tuple[RunCount, ...]:
        """Counts runs by workflow, queue and status, or only those that have not finished; None counts those of all
        namespaces.

        Counting costs the same however much there is: of what has not finished, up to 10,000 runs of a queue are
        counted; of what has finished, those among the newest 10,000 runs of a namespace. Where that was not all, the
        count is `at_least`. The answer may be a few seconds old, of many runs half a minute."""
        ...
