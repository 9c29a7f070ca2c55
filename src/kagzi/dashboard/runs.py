"""The list of runs, with filters that are the address of the page."""

from __future__ import annotations

from typing import Annotated, Any, Final

from msgspec import Meta, Struct

from kagzi.api.admin import WorkerFilter
from kagzi.api.workflows import RunFilter
from kagzi.core.flow import FlowLimit
from kagzi.core.instant import SECOND, Instant
from kagzi.core.job import JobAction
from kagzi.core.limits import PAGE_SIZE, is_run_id
from kagzi.core.page import Page
from kagzi.core.run import RUN_STATUSES, Run, RunStatus
from kagzi.core.why import is_due, why
from kagzi.core.worker import Worker, WorkerStatus
from kagzi.dashboard.decoding import read_run
from kagzi.dashboard.shell import may, page
from kagzi.dashboard.system import PlainQuery
from kagzi.errors import NotFound
from kagzi.http.call import Call, Html
from kagzi.http.fields import Name
from kagzi.http.problems import naming
from kagzi.http.runs import Token, tag_of

ROWS: Final = 25
_DAY: Final = 24 * 3600 * SECOND
# How far back, in the words of the address.
SPANS: Final = {"1h": _DAY // 24, "24h": _DAY, "7d": 7 * _DAY, "30d": 30 * _DAY}
FILTERS: Final = ("status", "workflow", "queue", "since", "tag", "error", "id_prefix", "id")
# Those that people filter by; templates of schedules are no runs.

# To move runs needs versions, and another right: the page of versions does it.
OFFERED: Final = tuple([action for action in JobAction if action is not JobAction.MOVE])


class RunsQuery(PlainQuery, frozen=True, kw_only=True, forbid_unknown_fields=True):
    status: RunStatus | None = None
    workflow: Name | None = None
    queue: Name | None = None
    since: Annotated[str, Meta(pattern="^(1h|24h|7d|30d)$")] | None = None
    tag: Name | None = None
    error: Name | None = None
    id_prefix: Name | None = None
    id: Name | None = None
    page: Token | None = None


class Line(Struct, frozen=True):
    run: Run
    why: str | None


async def show_runs(call: Call[RunsQuery, None]) -> Html:
    query, now = call.query, call.host.clock.now()
    found = await _by_id(call, query.id) if query.id is not None else await _listed(call, now)
    filters = {name: getattr(query, name) for name in FILTERS}
    return await page(
        call,
        "runs.html",
        title="Runs",
        tab="/runs",
        live="" if query.page is None else None,
        lines=await _explained(call, found.items, now),
        found=found,
        statuses=RUN_STATUSES,
        spans=tuple(SPANS),
        filters=filters,
        filtered=any(filters.values()),
        actions=OFFERED if may(call, "POST /bulk") else (),
    )


def filter_of(call: Call[Any, None], now: Instant) -> RunFilter:
    """Returns what the address asks for, but for a single id."""
    query: RunsQuery = call.query
    return RunFilter(
        namespace=call.namespace,
        status=query.status,
        workflow_type=query.workflow,
        task_queue=query.queue,
        # To the minute, so that the tokens of pages stay good for the same filter.
        created_after=None if query.since is None else (now - SPANS[query.since]) // (60 * SECOND) * 60 * SECOND,
        tags={} if query.tag is None else tag_of(query.tag),
        error=query.error,
        id_prefix=query.id_prefix,
    )


async def _listed(call: Call[RunsQuery, None], now: Instant) -> Page[Run]:
    with naming("page"):
        return await call.engine.workflows.list(filter_of(call, now), page_size=ROWS, page_token=call.query.page)


async def _by_id(call: Call[RunsQuery, None], id: str) -> Page[Run]:
    """Finds a run by its run id, or by the id that its caller gave it."""
    workflows = call.engine.workflows
    try:
        if is_run_id(id):
            return Page((await workflows.get(call.namespace, id.lower()),), None, None)
        return Page((await workflows.get_by_external_id(call.namespace, id),), None, None)
    except NotFound:
        return Page((), None, None)


async def _explained(call: Call[RunsQuery, None], runs: tuple[Run, ...], now: Instant) -> list[Line]:
    """Explains why runs wait, with one read of the workers for all runs, and none of their steps."""
    online: tuple[Worker, ...] = ()
    limits: tuple[FlowLimit, ...] = ()
    if any(is_due(run, now) for run in runs):
        wanted = WorkerFilter(namespace=call.namespace, status=WorkerStatus.ONLINE)
        online = (await call.engine.admin.list_workers(wanted, page_size=PAGE_SIZE)).items
        limits = await call.engine.limits.list(call.namespace)

    def explain(run: Run) -> str | None:
        if run.status is RunStatus.RUNNING:
            return None  # it moves
        serving = [worker for worker in online if run.task_queue in worker.queues]
        return why(run, now=now, steps=None, serving=serving, others=online, limits=limits)

    return [Line(run, explain(run)) for run in (read_run(call, run) for run in runs)]
