"""Workflows that there are, and each of them: what it is for, who offers it, and how it has done lately."""

from __future__ import annotations

from typing import Any, Final

from msgspec import Struct

from kagzi.api.workflows import RunFilter
from kagzi.core.duration import format_span
from kagzi.core.flow import FlowLimit, Scope
from kagzi.core.limits import PAGE_SIZE, check_name
from kagzi.core.versions import WorkflowVersion
from kagzi.core.workflow_report import LengthBar, Slice, WorkflowReport
from kagzi.dashboard.decoding import read_run
from kagzi.dashboard.shell import may, page
from kagzi.dashboard.system import OURS, PlainQuery
from kagzi.dashboard.text import exact
from kagzi.errors import NotFound
from kagzi.http.call import Call, Html
from kagzi.http.limits import NAMES
from kagzi.http.system import list_workflows

_NEWEST: Final = 10
# The chart is drawn in these units and stretched to the page.
_WIDTH, _HEIGHT, _GAP = 480, 100, 2


class WorkflowRow(Struct, frozen=True, kw_only=True):
    """A workflow that workers have offered, or of which there are runs."""

    name: str
    summary: str
    versions: int
    workers: int
    runs: int
    live: int
    at_least: bool
    queues: tuple[str, ...]


async def show_workflows(call: Call[Any, None]) -> Html:
    counted = {each.workflow: each for each in (await list_workflows(call)).workflows}
    versions: dict[str, list[WorkflowVersion]] = {}
    for each in (await call.engine.versions.list(call.namespace)).items:
        if each.workflow_type in counted or not each.workflow_type.startswith(OURS):
            versions.setdefault(each.workflow_type, []).append(each)
    rows = []
    for name in sorted(counted.keys() | versions.keys())[:NAMES]:
        runs, known = counted.get(name), versions.get(name, [])
        queues = {queue for each in known for queue in each.queues} | set(runs.queues if runs else ())
        rows.append(
            WorkflowRow(
                name=name,
                summary=next((each.summary for each in known if each.default), ""),
                versions=len(known),
                workers=max([each.workers for each in known], default=0),
                runs=runs.runs if runs else 0,
                live=runs.live if runs else 0,
                at_least=runs is not None and runs.at_least,
                queues=tuple(sorted(queues)),
            )
        )
    return await page(call, "workflows.html", title="Workflows", tab="/workflows", live="", workflows=rows)


class Column(Struct, frozen=True, kw_only=True):
    """How runs ended within a slice of time: rectangles one upon the other, and the same in words."""

    title: str
    x: float
    width: float
    parts: tuple[tuple[str, float, float], ...]  # what kind, from where, how high


class LengthRow(Struct, frozen=True, kw_only=True):
    words: str
    count: int
    share: float  # of the longest bar


async def show_workflow(call: Call[PlainQuery, None]) -> Html:
    name = check_name(call.path["workflow"], "workflow")
    engine = call.engine
    versions = (await engine.versions.list(call.namespace, name)).items
    report = await engine.versions.report(call.namespace, name)
    if not versions and not report.runs:
        raise NotFound(
            f"no worker has offered workflow {name} in namespace {call.namespace}, and none of its runs is there"
        )
    newest = await engine.workflows.list(RunFilter(namespace=call.namespace, workflow_type=name), page_size=_NEWEST)
    listed = await engine.schedules.list(call.namespace, page_size=PAGE_SIZE)
    workers = max([each.workers for each in versions], default=0)
    return await page(
        call,
        "workflow.html",
        title=name,
        tab="/workflows",
        live="",
        workflow=name,
        summary=next((each.summary for each in versions if each.default), ""),
        versions=versions,
        done_by={each.version: each for each in report.versions},
        workers=workers,
        unserved=not workers and any(each.live for each in versions),
        queues=sorted({queue for each in versions for queue in each.queues}),
        limit=await _limit(call, name),
        report=report,
        columns=columns_of(report),
        highest=max([each.ended for each in report.slices], default=0),
        lengths=length_rows(report.lengths),
        schedules=[each for each in listed.items if each.workflow_type == name],
        more_schedules=listed.next is not None,
        runs=[read_run(call, run) for run in newest.items],
        manages=may(call, "POST /limits/pause"),
        starts=may(call, "POST /start"),
    )


async def _limit(call: Call[Any, None], name: str) -> FlowLimit | None:
    for each in await call.engine.limits.list(call.namespace):
        if each.scope is Scope.WORKFLOW and each.name == name:
            return each
    return None


def columns_of(report: WorkflowReport) -> tuple[Column, ...]:
    """Returns the chart of how runs ended."""
    highest = max([each.ended for each in report.slices], default=0)
    if not highest:
        return ()
    width = _WIDTH / len(report.slices)
    return tuple(
        [_column(each, index * width, width, highest, report.slice_width) for index, each in enumerate(report.slices)]
    )


def _column(each: Slice, x: float, width: float, highest: int, span: int) -> Column:
    parts: list[tuple[str, float, float]] = []
    top = float(_HEIGHT)
    for kind, count in (("completed", each.completed), ("cancelled", each.cancelled), ("failed", each.failed)):
        if count:
            height = max(1.5, count / highest * (_HEIGHT - 4))  # one of thousands is seen, too
            top = max(0.0, top - height)
            parts.append((kind, round(top, 2), round(height, 2)))
    begins = exact(each.begins_at)
    counts = f"{each.completed:,} completed, {each.failed:,} failed, {each.cancelled:,} cancelled"
    return Column(
        title=f"{begins}, {format_span(span)}: {counts}",
        x=round(x + _GAP / 2, 2),
        width=round(max(1.0, width - _GAP), 2),
        parts=tuple(parts),
    )


def length_rows(lengths: tuple[LengthBar, ...]) -> tuple[LengthRow, ...]:
    most = max([each.count for each in lengths], default=0)
    return tuple([LengthRow(words=_between(each), count=each.count, share=each.count / most) for each in lengths])


def _between(bar: LengthBar) -> str:
    if bar.below is None:
        return f"{format_span(bar.least)} or longer"
    return f"{format_span(bar.least)} to {format_span(bar.below)}" if bar.least else f"below {format_span(bar.below)}"
