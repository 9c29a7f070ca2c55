"""Looking after workers, and counting."""

from __future__ import annotations

from typing import Final

from kagzi.api.admin import RunCount, WorkerFilter
from kagzi.core.instant import Instant, Span
from kagzi.core.limits import DEFAULT_PAGE_SIZE, check_id, check_name
from kagzi.core.page import BY_TIME, Page
from kagzi.core.schedule import ScheduleCounts
from kagzi.core.worker import Worker, WorkerStatus, worker_position
from kagzi.engine.checks import check_home, check_instant
from kagzi.engine.listing import Listing
from kagzi.engine.remembered import Remembered
from kagzi.errors import NotFound
from kagzi.store.protocol.store import Store

_FRESH_SECONDS: Final = 2.0


class Admin:
    """`api.admin.AdminService` over a store."""

    def __init__(self, store: Store, stale: Span) -> None:
        self._store = store
        self._stale = stale  # a worker that was not heard of for this long is OFFLINE, whatever its row says
        self._listing = Listing(store.page_secret, worker_position, BY_TIME)
        self._counts = Remembered[str | None, tuple[RunCount, ...]](_counted, least=_FRESH_SECONDS)
        self._live_counts = Remembered[str | None, tuple[RunCount, ...]](_counted)
        self._schedule_counts = Remembered[str | None, ScheduleCounts](lambda counts: counts.total)

    async def get_worker(self, worker_id: str, namespace: str | None = None) -> Worker:
        worker_id = check_id(worker_id, "worker id")
        check_home(namespace)
        worker = await self._store.workers.get(worker_id, namespace, self._stale)
        if worker is None:
            raise NotFound(f"there is no worker {worker_id}")
        return worker

    async def list_workers(
        self, filter: WorkerFilter, *, page_size: int = DEFAULT_PAGE_SIZE, page_token: str | None = None
    ) -> Page[Worker]:
        check_name(filter.namespace, "namespace")
        if filter.task_queue is not None:
            check_name(filter.task_queue, "task queue")
        about = f"workers {filter!r}"
        cursor = self._listing.begin(page_size, page_token, about)
        rows = await self._store.workers.page(filter, cursor, page_size + 1, self._stale)
        return self._listing.page(rows, page_size, about)

    async def drain_worker(self, worker_id: str, namespace: str | None = None) -> Worker:
        worker = await self.get_worker(worker_id, namespace)
        if worker.status is WorkerStatus.OFFLINE:
            return worker  # there is nobody to be told
        await self._store.workers.drain(worker.worker_id, namespace)
        return await self.get_worker(worker.worker_id, namespace)

    async def count_workers(self, namespace: str | None) -> dict[WorkerStatus, int]:
        check_home(namespace)
        return await self._store.workers.count(namespace, self._stale)

    async def count_schedules(self, namespace: str | None) -> ScheduleCounts:
        check_home(namespace)
        return await self._schedule_counts.get(namespace, lambda: self._store.schedules.count(namespace))

    async def count_runs(
        self,
        namespace: str | None,
        *,
        live: bool = False,
        created_after: Instant | None = None,
        created_before: Instant | None = None,
    ) -> tuple[RunCount, ...]:
        check_home(namespace)
        window = (created_after, created_before)
        for name, moment in zip(("created_after", "created_before"), window, strict=True):
            if moment is not None:
                check_instant(moment, name)
        if window != (None, None):
            return tuple(await self._store.runs.count(namespace, live, *window))

        async def count() -> tuple[RunCount, ...]:
            return tuple(await self._store.runs.count(namespace, live))

        # A dashboard open on ten screens costs what one does.
        return await (self._live_counts if live else self._counts).get(namespace, count)


def _counted(counts: tuple[RunCount, ...]) -> int:
    return sum(each.count for each in counts)
