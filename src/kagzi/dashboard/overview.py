"""The first page: how much there is of everything, and what needs somebody."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from msgspec import Struct

from kagzi.api.workflows import RunFilter
from kagzi.core.run import RunStatus
from kagzi.core.worker import WorkerStatus
from kagzi.dashboard.decoding import read_run
from kagzi.dashboard.shell import page
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
    return await page(
        call,
        "overview.html",
        title="Overview",
        tab="/",
        live="",
        tiles=[Tile(status, by_status[status], status in uncertain) for status in _TILES],
        workers=(await admin.count_workers(call.namespace)).get(WorkerStatus.ONLINE, 0),
        unserved=[queue for queue in queues if _is_unserved(queue)],
        failures=[read_run(call, run) for run in (await workflows.list(failed, page_size=_ENDED)).items],
        newest=(await workflows.list(RunFilter(namespace=call.namespace), page_size=_NEWEST)).items,
    )


def _is_unserved(queue: QueueDocument) -> bool:
    return queue.ready > 0 and queue.workers == 0
