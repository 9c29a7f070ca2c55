"""The first page: how much there is of everything, and what needs attention."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from msgspec import Struct

from kagzi.api.workflows import RunFilter
from kagzi.core.limits import PAGE_SIZE
from kagzi.core.run import RunStatus
from kagzi.core.worker import WorkerStatus
from kagzi.dashboard.decoding import read_run
from kagzi.dashboard.shell import page
from kagzi.dashboard.workflows import columns_of
from kagzi.http.call import Call, Html
from kagzi.http.workers import QueueDocument, list_queues

_NEWEST: Final = 8
_ENDED: Final = 5
_TILES: Final = (RunStatus.PENDING, RunStatus.RUNNING, RunStatus.SLEEPING, RunStatus.COMPLETED, RunStatus.FAILED)


class Tile(Struct, frozen=True):
    status: RunStatus
    count: int
    at_least: bool


async def show_overview(call: Call[Any, None]) -> Html:
    admin, workflows = call.engine.admin, call.engine.workflows
    counts = await admin.count_runs(call.namespace)
    by_status: Counter[RunStatus] = Counter()
    uncertain: set[RunStatus] = set()
    for each in counts:
        by_status[each.status] += each.count
        if each.at_least:
            uncertain.add(each.status)
    failed = RunFilter(namespace=call.namespace, status=RunStatus.FAILED, or_status=RunStatus.TIMED_OUT)
    queues = (await list_queues(call)).queues
    lonely = {queue.queue for queue in queues if _is_unserved(queue)}
    versions = (await call.engine.versions.list(call.namespace)).items
    schedules = await call.engine.schedules.list(call.namespace, page_size=PAGE_SIZE)
    report = await call.engine.versions.report(call.namespace)
    return await page(
        call,
        "overview.html",
        title="Overview",
        tab="/",
        live="",
        tiles=[Tile(status, by_status[status], status in uncertain) for status in _TILES],
        workers=(await admin.count_workers(call.namespace)).get(WorkerStatus.ONLINE, 0),
        unserved=[queue for queue in queues if _is_unserved(queue)],
        lost=[each for each in versions if each.live and not each.workers and not set(each.queues) & lonely],
        pauses=[each for each in await call.engine.limits.list(call.namespace) if each.paused_at is not None],
        broken=[each for each in schedules.items if each.error and each.enabled][:_ENDED],
        report=report,
        columns=columns_of(report),
        highest=max([each.ended for each in report.slices], default=0),
        failures=[read_run(call, run) for run in (await workflows.list(failed, page_size=_ENDED)).items],
        newest=(await workflows.list(RunFilter(namespace=call.namespace), page_size=_NEWEST)).items,
    )


def _is_unserved(queue: QueueDocument) -> bool:
    waiting = queue.pending if queue.ready is None else queue.ready
    return waiting > 0 and queue.workers == 0
