"""Workers, and the queues they serve."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Final

from msgspec import Meta, Struct

from kagzi.api.admin import WorkerFilter
from kagzi.core.flow import Scope
from kagzi.core.instant import SECOND
from kagzi.core.limits import DEFAULT_PAGE_SIZE, PAGE_SIZE
from kagzi.core.run import RunStatus
from kagzi.core.worker import WorkerStatus
from kagzi.errors import Conflict
from kagzi.http.call import Call, Namespaced, NothingBody
from kagzi.http.fields import Name
from kagzi.http.limits import NAMES
from kagzi.http.problems import naming
from kagzi.http.runs import PageSize, Token
from kagzi.ports.documents.common import Count, Moment, moment
from kagzi.ports.documents.workers import WorkerDocument, worker_document

_PAGES_OF_WORKERS: Final = 20


class WorkersQuery(Namespaced, frozen=True, kw_only=True, forbid_unknown_fields=True):
    queue: Annotated[Name | None, Meta(description="Only workers of this queue.")] = None
    status: Annotated[WorkerStatus | None, Meta(description="Only workers that stand like this.")] = None
    limit: PageSize = DEFAULT_PAGE_SIZE
    page: Token | None = None


class WorkerPage(Struct, frozen=True, kw_only=True):
    """Workers, the newest first."""

    workers: tuple[WorkerDocument, ...]
    next: str | None
    prev: str | None


async def list_workers(call: Call[WorkersQuery, None]) -> WorkerPage:
    query = call.query
    filter = WorkerFilter(namespace=call.namespace, task_queue=query.queue, status=query.status)
    with naming("page"):
        page = await call.engine.admin.list_workers(filter, page_size=query.limit, page_token=query.page)
    return WorkerPage(workers=tuple([worker_document(worker) for worker in page.items]), next=page.next, prev=page.prev)


async def get_worker(call: Call[Namespaced, None]) -> WorkerDocument:
    return worker_document(await call.engine.admin.get_worker(call.path["worker_id"], call.namespace))


async def drain_worker(call: Call[Namespaced, NothingBody]) -> WorkerDocument:
    """It is told with its next heartbeat."""
    worker = await call.engine.admin.drain_worker(call.path["worker_id"], call.namespace)
    if worker.status is WorkerStatus.OFFLINE:
        raise Conflict(f"worker {worker.worker_id} is OFFLINE already")
    return worker_document(worker)


class QueueDocument(Struct, frozen=True, kw_only=True):
    """A queue. `ready` runs could be claimed now, the oldest of them since `oldest_ready_at`: null if that was not
    counted, as of a namespace with more than 100 queues in which runs wait. `pending` and `sleeping`
    ones include those that are due later. `at_least`: there is more than was counted. `paused_at`: no run of it is
    handed out since then."""

    namespace: str
    queue: str
    pending: Count
    running: Count
    sleeping: Count
    ready: Count | None
    oldest_ready_at: Moment | None
    oldest_ready_seconds: float | None
    workers: Count
    at_least: bool
    paused_at: Moment | None = None
    paused_by: str | None = None
    pause_reason: str | None = None


class QueueList(Struct, frozen=True, kw_only=True):
    """Every queue in which there are live runs or workers, or which is paused, by name."""

    queues: tuple[QueueDocument, ...]


async def list_queues(call: Call[Namespaced, None]) -> QueueList:
    counts: dict[str, Counter[RunStatus]] = {}
    uncertain: set[str] = set()
    for run in await call.engine.admin.count_runs(call.namespace, live=True):
        counts.setdefault(run.task_queue, Counter())[run.status] += run.count
        if run.at_least:
            uncertain.add(run.task_queue)
    serving = await _workers_by_queue(call)
    load = await call.engine.load()
    waiting = (
        {} if load is None else {each.task_queue: each for each in load.queues if each.namespace == call.namespace}
    )
    counted = load is not None and load.counted(call.namespace)
    limits = await call.engine.limits.list(call.namespace)
    paused = {each.name: each for each in limits if each.scope is Scope.QUEUE and each.paused_at is not None}
    documents = []
    for queue in sorted(counts.keys() | serving.keys() | paused.keys())[:NAMES]:
        count, due = counts.get(queue, Counter()), waiting.get(queue)
        oldest = None if due is None else due.oldest_due_at
        age = None if oldest is None or load is None else max(0, load.now - oldest) / SECOND
        documents.append(
            QueueDocument(
                namespace=call.namespace,
                queue=queue,
                pending=count[RunStatus.PENDING],
                running=count[RunStatus.RUNNING],
                sleeping=count[RunStatus.SLEEPING],
                ready=due.ready if due is not None else 0 if counted else None,
                oldest_ready_at=moment(oldest),
                oldest_ready_seconds=age,
                workers=serving[queue],
                at_least=queue in uncertain,
                paused_at=None if queue not in paused else moment(paused[queue].paused_at),
                paused_by=None if queue not in paused else paused[queue].paused_by or None,
                pause_reason=None if queue not in paused else paused[queue].pause_reason or None,
            )
        )
    return QueueList(queues=tuple(documents))


async def _workers_by_queue(call: Call[Namespaced, None]) -> Counter[str]:
    """How many workers that take new runs serve each queue, of the newest two thousand."""
    serving: Counter[str] = Counter()
    filter = WorkerFilter(namespace=call.namespace, status=WorkerStatus.ONLINE)
    token: str | None = None
    for _ in range(_PAGES_OF_WORKERS):
        page = await call.engine.admin.list_workers(filter, page_size=PAGE_SIZE, page_token=token)
        for worker in page.items:
            serving.update(worker.queues)
        token = page.next
        if token is None:
            break
    return serving
