"""Workflows that there are, and the installation itself."""

from __future__ import annotations

from typing import Annotated, Any, Final

from msgspec import Meta, Struct

from kagzi.core.health import HealthStatus
from kagzi.core.versions import WorkflowVersion
from kagzi.dashboard.shell import page
from kagzi.http.call import Call, Html, Namespaced
from kagzi.http.limits import NAMES
from kagzi.http.system import get_health, list_workflows

OURS: Final = "kagzi."  # workflows of Kagzi's own begin like this


class PlainQuery(Namespaced, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What every page may be asked. `done` names what a form has just done, `many` says to how many."""

    done: Annotated[str, Meta(max_length=20)] | None = None
    many: Annotated[int, Meta(ge=0)] | None = None


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


async def show_system(call: Call[Any, None]) -> Html:
    health = await get_health(call)
    return await page(
        call,
        "system.html",
        title="System",
        tab="/system",
        report=health,
        well=health.status is HealthStatus.HEALTHY,
    )
