"""Starting a run from a page, also as another one was started."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta, Struct

from kagzi.api.operations import StartRun
from kagzi.core.limits import DEFAULT_QUEUE, PAYLOAD_BYTES
from kagzi.dashboard.actions import read_json_field
from kagzi.dashboard.shell import page, path_to
from kagzi.dashboard.system import PlainQuery
from kagzi.dashboard.text import whole_payload
from kagzi.http.call import Call, Html, Redirect
from kagzi.http.fields import Name
from kagzi.http.runs import run_id_of

_KNOWN: Final = 100  # workflows that are offered by name


class StartQuery(PlainQuery, frozen=True, kw_only=True, forbid_unknown_fields=True):
    workflow: Name | None = None
    like: Name | None = None  # a run whose input is filled in


async def ask_start(call: Call[StartQuery, None]) -> Html:
    values = {"workflow": call.query.workflow or "", "queue": DEFAULT_QUEUE, "version": "", "input": "[]"}
    if call.query.like is not None:
        run = await call.engine.workflows.get(call.namespace, await run_id_of(call, call.query.like))
        values = {
            "workflow": run.workflow_type,
            "queue": run.task_queue,
            "version": run.version,
            "input": whole_payload(run.input),
        }
    counts = await call.engine.admin.count_runs(call.namespace)
    known = sorted({each.workflow_type for each in counts})[:_KNOWN]
    return await page(call, "start.html", title="Start a run", tab="/runs", values=values, known=known)


class StartForm(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    workflow: Name
    input: Annotated[str, Meta(max_length=PAYLOAD_BYTES)] = "[]"
    queue: Name = DEFAULT_QUEUE
    version: Name | None = None
    id: Name | None = None


async def start(call: Call[PlainQuery, StartForm]) -> Redirect:
    body = call.body
    started = await call.engine.workflows.start(
        StartRun(
            namespace=call.namespace,
            run_id=call.host.ids.run_id(),
            workflow_type=body.workflow,
            task_queue=body.queue,
            version=body.version,
            input=read_json_field(body.input, "input"),
            external_id=body.id,
        )
    )
    return Redirect(path_to(call, f"/runs/{started.run_id}", done="found" if started.already_exists else "start"))
