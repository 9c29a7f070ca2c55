"""Starting a run from a page, also as another one was started."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

from kagzi.api.operations import StartRun
from kagzi.core.limits import DEFAULT_QUEUE
from kagzi.core.lineage import new_input
from kagzi.core.run import Run
from kagzi.core.versions import MADE_BY_CODE, WorkflowInterface, WorkflowVersion
from kagzi.dashboard.asking import Field
from kagzi.dashboard.decoding import made_before, read_run, written_payload
from kagzi.dashboard.inputs import (
    JSON_HINT,
    InputForm,
    WrongInput,
    fields_of,
    interface_of,
    parameters_of,
    read_input,
    values_of,
    written_values,
)
from kagzi.dashboard.shell import page, path_to
from kagzi.dashboard.system import OURS, PlainQuery
from kagzi.dashboard.text import editable, uneditable
from kagzi.errors import Conflict, InvalidRequest
from kagzi.http.call import Call, Html, Redirect
from kagzi.http.fields import Name
from kagzi.http.runs import run_id_of
from kagzi.ports.parameters import read_parameters

_KNOWN: Final = 100  # workflows that are offered by name


class StartQuery(PlainQuery, frozen=True, kw_only=True, forbid_unknown_fields=True):
    workflow: Name | None = None
    version: Name | None = None
    like: Name | None = None  # a run whose input is filled in
    raw: bool = False  # the input as JSON, although there is a form for it


class StartForm(InputForm, frozen=True, kw_only=True, forbid_unknown_fields=True):
    workflow: Name
    queue: Name | None = None
    version: Name | None = None
    id: Name | None = None
    limit_key: Name | None = None
    fresh: Name | None = None  # the id of the run: a form that is sent twice starts one


class Choice(Struct, frozen=True):
    """A workflow that can be started by a form."""

    name: str
    summary: str


async def ask_start(call: Call[StartQuery, None]) -> Html:
    query = call.query
    if query.like is None:
        return await _form(call, workflow=query.workflow, version=query.version, raw=query.raw)
    run = read_run(call, await call.engine.workflows.get(call.namespace, await run_id_of(call, query.like)))
    return await _form(call, workflow=run.workflow_type, version=run.version, raw=query.raw, like=run)


async def _form(
    call: Call[Any, Any],
    *,
    workflow: str | None,
    version: str | None,
    raw: bool,
    like: Run | None = None,
    sent: StartForm | None = None,
    error: Exception | None = None,
) -> Html:
    wrong: Mapping[str, str] = {}
    if error is not None:
        wrong = error.wrong if isinstance(error, WrongInput) else {"": str(error)}
    known = (await call.engine.versions.list(call.namespace)).items
    interface = None if workflow is None else await interface_of(call, workflow, version)
    parameters = None if interface is None else read_parameters(interface.input_schema)
    values = written_values(sent) if sent is not None else None
    note, stored = "", None
    if like is not None and values is None:
        stored = await editable(like.input)
        if stored is None:
            raw, note = True, f"The input of that run does not stand here, {uneditable(like.input)}; write it anew."
        elif parameters is not None and not raw and (values := await values_of(parameters, like.input)) is None:
            raw, note = True, "The input of that run does not fit into fields, so here it is as JSON."
    if parameters is None or raw:
        value = (values or {}).get("input", "[]" if like is None else stored or "")
        fields: tuple[Field, ...] = (
            Field(name="input", label="Input", value=value, hint=JSON_HINT, error=wrong.get("input", ""), long=True),
        )
    else:
        fields = fields_of(parameters, values or {}, wrong)
    offered = [each for each in known if each.workflow_type == workflow]
    queue = _queue_of(offered, version, (None if interface is None else interface.defaults.queue) or DEFAULT_QUEUE)
    return await page(
        call,
        "start.html",
        title="Start a run" if workflow is None else f"Start {workflow}",
        tab="/runs",
        status=200 if error is None else 409 if isinstance(error, Conflict) else 400,
        workflow=workflow,
        chosen=version,
        summary="" if interface is None else interface.summary,
        versions=[each for each in offered if each.version is not None],
        fields=fields,
        has_form=parameters is not None,
        raw=raw,
        like=None if like is None else like.run_id,
        note=note,
        trouble=wrong.get("", ""),
        id=None if sent is None else sent.id,
        fresh=(None if sent is None else sent.fresh) or call.host.ids.run_id(),
        limit_key=None if sent is None else sent.limit_key,
        asks_key=interface is not None and _asks_key(call, interface),
        queue=sent.queue if sent is not None else like.task_queue if like is not None else queue,
        queues=sorted({queue for each in offered for queue in each.queues}),
        choices=_choices(known),
    )


def _asks_key(call: Call[Any, Any], interface: WorkflowInterface) -> bool:
    """Returns whether the key of a limit has to be given: the engine cannot make it of an input that is encoded."""
    key = interface.defaults.limit_key
    return key == MADE_BY_CODE or (key is not None and call.codec is not None)


def _queue_of(offered: list[WorkflowVersion], version: str | None, told: str) -> str:
    """Returns the queue that the code of a workflow names, unless workers offer it elsewhere alone: a run would wait
    for ever."""
    for each in offered:
        if each.queues and (each.version == version if version is not None else each.default):
            return told if told in each.queues else each.queues[0]
    return told


def _choices(known: tuple[WorkflowVersion, ...]) -> list[Choice]:
    """Returns the workflows to choose from; the default version of each stands for it, else its newest."""
    found: dict[str, str] = {}
    for each in known:
        offered = each.first_seen_at is not None and not each.workflow_type.startswith(OURS)
        if offered and (each.workflow_type not in found or each.default):
            found[each.workflow_type] = each.summary
    return [Choice(name, summary) for name, summary in found.items()][:_KNOWN]


async def start(call: Call[PlainQuery, StartForm]) -> Html | Redirect:
    body, written = call.body, b""
    run_id = body.fresh or call.host.ids.run_id()
    try:
        parameters = await parameters_of(call, body.workflow, body.version) if body.fields else None
        written = await read_input(parameters, body) or b"[]"
        started = await call.engine.workflows.start(
            StartRun(
                namespace=call.namespace,
                run_id=run_id,
                workflow_type=body.workflow,
                task_queue=body.queue or DEFAULT_QUEUE,
                by_name=True,
                other_queue=body.queue is None,
                limit_key=body.limit_key,
                version=body.version,
                input=written_payload(call, written, new_input(call.namespace, run_id)),
                external_id=body.id,
            )
        )
    except (InvalidRequest, Conflict) as error:
        if isinstance(error, Conflict) and await made_before(call, run_id, written):
            return Redirect(path_to(call, f"/runs/{run_id}", done="found"))
        return await _form(
            call, workflow=body.workflow, version=body.version, raw=not body.fields, sent=body, error=error
        )
    return Redirect(path_to(call, f"/runs/{started.run_id}", done="found" if started.already_exists else "start"))
