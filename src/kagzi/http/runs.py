"""Looking at runs over HTTP: lists, one run, its steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final

from msgspec import Meta, Struct

from kagzi.api.explanation import explain
from kagzi.api.handling import failure_handlers
from kagzi.api.workflows import RunFilter
from kagzi.core.instant import SECOND
from kagzi.core.limits import (
    DEFAULT_PAGE_SIZE,
    PAGE_SIZE,
    is_run_id,
)
from kagzi.core.page import page_of
from kagzi.core.run import Run, RunStatus
from kagzi.core.step import Step
from kagzi.core.tags import read_tag
from kagzi.errors import NotFound
from kagzi.http.apart import apart
from kagzi.http.call import Call, Namespaced
from kagzi.http.fields import WAIT, Name, When
from kagzi.http.lengths import length_of, moment_of
from kagzi.http.limits import ANSWER_BYTES, LONGEST_WAIT_SECONDS, STEPS_PAGE
from kagzi.http.problems import BadField, naming
from kagzi.ports.documents.common import Moment, moment
from kagzi.ports.documents.runs import RunDocument, RunSummary, StepDocument, run_document, run_summary, step_document

_TOKEN: Final = 1000

Token = Annotated[str, Meta(max_length=_TOKEN, description="`next` or `prev` of another page of the same listing.")]
PageSize = Annotated[int, Meta(ge=1, le=PAGE_SIZE, description="How many a page may hold.")]


async def run_id_of(call: Call[Any, Any], named: str) -> str:
    """Returns the run id of a run that is named by it, or by the id it was started with. What looks like a run id is
    one."""
    if is_run_id(named):
        return named.lower()
    return (await call.engine.workflows.get_by_external_id(call.namespace, named)).run_id


async def schedule_id_of(call: Call[Any, Any], named: str) -> str:
    """Returns the id of a schedule that is named by it, or by its name. One that was deleted has runs, too."""
    if is_run_id(named):
        return named.lower()
    return (await call.engine.schedules.get(call.namespace, named)).schedule_id


def tag_of(text: str) -> dict[str, str]:
    """Reads a tag that is written as `batch=7`."""
    with naming("tag"):
        name, value = read_tag(text)
        return {name: value}


# Looking.


class RunsQuery(Namespaced, frozen=True, kw_only=True, forbid_unknown_fields=True):
    status: Annotated[RunStatus | None, Meta(description="Only runs that stand like this.")] = None
    workflow: Annotated[Name | None, Meta(description="Only runs of this workflow.")] = None
    queue: Annotated[Name | None, Meta(description="Only runs of this queue.")] = None
    created_after: When | None = None
    created_before: When | None = None
    parent: Annotated[Name | None, Meta(description="Only runs that the run of this id has started.")] = None
    tag: Annotated[Name | None, Meta(description="Only runs with this tag, `name=value`.", examples=["batch=7"])] = None
    id_prefix: Annotated[Name | None, Meta(description="Only runs whose id begins so.")] = None
    error: Annotated[
        Name | None, Meta(description="Only runs that ended with an error of this class, with its module or without.")
    ] = None
    schedule: Annotated[Name | None, Meta(description="Only runs that this schedule, by name or id, has started.")] = (
        None
    )
    id: Annotated[Name | None, Meta(description="Only the run that was started with this id. Alone.")] = None
    limit: PageSize = DEFAULT_PAGE_SIZE
    page: Token | None = None


class RunPage(Struct, frozen=True, kw_only=True):
    """Runs, newest first. `next` leads to older ones, `prev` to newer ones. Filters look at 20,000 runs at a time: then
    there may be fewer runs than `limit`, or none, `searched_until` says how far they came, and the neighbour goes on
    there."""

    runs: tuple[RunSummary, ...]
    next: str | None
    prev: str | None
    searched_until: Moment | None = None


async def list_runs(call: Call[RunsQuery, None]) -> RunPage:
    query = call.query
    nothing = RunPage(runs=(), next=None, prev=None)
    try:
        parent = None if query.parent is None else await run_id_of(call, query.parent)
        schedule = None if query.schedule is None else await schedule_id_of(call, query.schedule)
    except NotFound:
        return nothing
    filter = RunFilter(
        namespace=call.namespace,
        status=query.status,
        workflow_type=query.workflow,
        task_queue=query.queue,
        created_after=moment_of(query.created_after, "created_after"),
        created_before=moment_of(query.created_before, "created_before"),
        parent_run_id=parent,
        tags={} if query.tag is None else tag_of(query.tag),
        id_prefix=query.id_prefix,
        error=query.error,
        schedule_id=schedule,
    )
    if query.id is not None:
        if filter != RunFilter(namespace=call.namespace) or query.page is not None:
            raise BadField("id", "id finds one run; it does not go with other filters")
        try:
            found = await call.engine.workflows.get_by_external_id(call.namespace, query.id)
        except NotFound:
            return nothing
        return RunPage(runs=(run_summary(found),), next=None, prev=None)
    with naming("page"):  # the filters have been looked at
        page = await call.engine.workflows.list(filter, page_size=query.limit, page_token=query.page)
    return RunPage(
        runs=tuple([run_summary(run) for run in page.items]),
        next=page.next,
        prev=page.prev,
        searched_until=None if page.searched_until is None else moment(page.searched_until),
    )


class RunQuery(Namespaced, frozen=True, kw_only=True, forbid_unknown_fields=True):
    wait: Annotated[
        str | None,
        Meta(
            description="Answer when the run has finished, or after this long (at most `60s`).", extra_json_schema=WAIT
        ),
    ] = None


async def get_run(call: Call[RunQuery, None]) -> RunDocument:
    workflows = call.engine.workflows
    run_id = await run_id_of(call, call.path["run_id"])
    wait = 0 if call.query.wait is None else length_of(call.query.wait, "wait")
    found: Run | None = None
    if wait:
        wait = min(wait, round(LONGEST_WAIT_SECONDS * SECOND))
        found = await call.host.closing.until(lambda: workflows.wait(call.namespace, run_id, wait), None)
    if found is None:
        found = await workflows.get(call.namespace, run_id)
    why = await explain(call.engine, found, call.host.clock.now())
    handlers = await failure_handlers(call.engine, found)
    return await apart(len(found.input) + len(found.output or b""), run_document, found, why, handlers)


class StepsQuery(Namespaced, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: Annotated[Name | None, Meta(description="Only attempts of steps of this name.")] = None
    payloads: Annotated[bool, Meta(description="With inputs and outputs.")] = False
    limit: PageSize = STEPS_PAGE
    page: Token | None = None


class StepPage(Struct, frozen=True, kw_only=True):
    """Attempts of steps in the order they ended, then those that are running as they began."""

    steps: tuple[StepDocument, ...]
    next: str | None
    prev: str | None


async def list_steps(call: Call[StepsQuery, None]) -> StepPage:
    query, run_id = call.query, await run_id_of(call, call.path["run_id"])
    steps = await call.engine.workflows.steps(call.namespace, run_id, payloads=query.payloads)
    if query.name is not None:
        steps = tuple([step for step in steps if step.name == query.name])
    about = f"steps {call.namespace!r} {run_id!r} {query.name!r} {query.payloads}"
    size = query.limit
    while True:
        with naming("page"):
            page = page_of(steps, size, query.page, about, call.engine.page_tokens)
        total = sum(map(_size_of, page.items))
        if size == 1 or total <= ANSWER_BYTES:
            return StepPage(
                steps=await apart(total, _step_documents, page.items, payloads=query.payloads),
                next=page.next,
                prev=page.prev,
            )
        # A page of large payloads is a shorter page.
        size = max(1, min(size, len(page.items)) // 2)


def _size_of(step: Step) -> int:
    return sum(len(part) for part in (step.input, step.output, step.error) if part)


def _step_documents(steps: Sequence[Step], *, payloads: bool) -> tuple[StepDocument, ...]:
    return tuple([step_document(step, payloads=payloads) for step in steps])
