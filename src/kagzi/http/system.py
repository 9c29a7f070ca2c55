"""The server itself: probes, health, what it is, and how much there is of everything."""

from __future__ import annotations

from collections import Counter

from msgspec import Struct

from kagzi.core.health import HealthStatus
from kagzi.core.run import RunStatus
from kagzi.core.worker import WorkerStatus
from kagzi.http.call import Call, Namespaced, NoQuery, Reply, Text
from kagzi.http.limits import NAMES
from kagzi.metrics.exposition import render
from kagzi.ports.documents.common import Count, Moment
from kagzi.ports.documents.system import ComponentDocument, HealthDocument, health_document
from kagzi.version import __version__


async def metrics(call: Call[NoQuery, None]) -> Text:
    return Text(*await render(call.engine))


class Alive(Struct, frozen=True, kw_only=True):
    """The answer of `/livez`: this process lives."""

    status: str


async def livez(call: Call[NoQuery, None]) -> Alive:  # noqa: ARG001
    return Alive(status="alive")


class Readiness(Struct, frozen=True, kw_only=True):
    """Whether requests should be sent here, and how well what is behind it is."""

    ready: bool
    status: HealthStatus
    components: tuple[ComponentDocument, ...]
    checked_at: Moment | None


async def readyz(call: Call[NoQuery, None]) -> Reply:
    health = await call.host.checkups.health()
    ready = call.host.ready() and health.can_serve
    document = health_document(health, outside=True, details=False)  # nobody knows who asks
    return Reply(
        document=Readiness(
            ready=ready, status=document.status, components=document.components, checked_at=document.checked_at
        ),
        status=200 if ready else 503,
    )


async def get_health(call: Call[NoQuery, None]) -> HealthDocument:
    return health_document(await call.host.checkups.health(), outside=True, details=not call.confined)


class ServerInfo(Struct, frozen=True, kw_only=True):
    """The server that answers here: its version, and that of its API."""

    name: str
    version: str
    api: str


async def get_server(call: Call[NoQuery, None]) -> ServerInfo:  # noqa: ARG001
    return ServerInfo(name="kagzi", version=__version__, api="v1")


class ScheduleStats(Struct, frozen=True, kw_only=True):
    """How many schedules there are, how many of them fire, and what became of their firings: exact, from counters."""

    total: Count
    enabled: Count
    runs: Count
    successful: Count
    failed: Count
    skipped: Count


class Stats(Struct, frozen=True, kw_only=True):
    """How much there is in a namespace. Counts may be a few seconds old; `at_least`: there is more than was counted."""

    namespace: str
    runs: Count
    runs_by_status: dict[RunStatus, int]
    runs_by_workflow: dict[str, int]
    workers_by_status: dict[WorkerStatus, int]
    schedules: ScheduleStats
    at_least: bool


async def get_stats(call: Call[Namespaced, None]) -> Stats:
    counts = await call.engine.admin.count_runs(call.namespace)
    schedules = await call.engine.admin.count_schedules(call.namespace)
    by_status: Counter[RunStatus] = Counter()
    by_workflow: Counter[str] = Counter()
    for run in counts:
        by_status[run.status] += run.count
        by_workflow[run.workflow_type] += run.count
    return Stats(
        namespace=call.namespace,
        runs=by_status.total(),
        runs_by_status={status: count for status, count in by_status.items() if count},
        runs_by_workflow=dict(by_workflow.most_common(NAMES)),
        workers_by_status=await call.engine.admin.count_workers(call.namespace),
        schedules=ScheduleStats(
            total=schedules.total,
            enabled=schedules.enabled,
            runs=schedules.runs,
            successful=schedules.successful,
            failed=schedules.failed,
            skipped=schedules.skipped,
        ),
        at_least=any(run.at_least for run in counts),
    )


class WorkflowDocument(Struct, frozen=True, kw_only=True):
    """A workflow of which there are runs. `at_least`: there are more runs than were counted."""

    workflow: str
    queues: tuple[str, ...]
    runs: Count
    live: Count
    at_least: bool


class WorkflowList(Struct, frozen=True, kw_only=True):
    """Every workflow of which there are runs, by name."""

    workflows: tuple[WorkflowDocument, ...]


async def list_workflows(call: Call[Namespaced, None]) -> WorkflowList:
    runs: Counter[str] = Counter()
    live: Counter[str] = Counter()
    queues: dict[str, set[str]] = {}
    uncertain: set[str] = set()
    for run in await call.engine.admin.count_runs(call.namespace):
        runs[run.workflow_type] += run.count
        live[run.workflow_type] += 0 if run.status.finished else run.count
        queues.setdefault(run.workflow_type, set()).add(run.task_queue)
        if run.at_least:
            uncertain.add(run.workflow_type)
    return WorkflowList(
        workflows=tuple(
            [
                WorkflowDocument(
                    workflow=name,
                    queues=tuple(sorted(queues[name])[:NAMES]),
                    runs=runs[name],
                    live=live[name],
                    at_least=name in uncertain,
                )
                for name in sorted(runs)[:NAMES]
            ]
        )
    )
