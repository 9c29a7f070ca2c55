"""Jobs: one thing done to many runs."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from kagzi.access.caller import ANYONE
from kagzi.access.gate import check_role
from kagzi.api.jobs import StartJob
from kagzi.api.workflows import RunFilter
from kagzi.core.job import MOST_RATE, JobAction, JobOptions, wrong_option
from kagzi.core.limits import DEFAULT_PAGE_SIZE, NAME_CHARACTERS, STEP_ID_BYTES, check_new_run_id
from kagzi.core.run import RunStatus
from kagzi.core.tags import check_tags
from kagzi.errors import InvalidRequest, NotFound
from kagzi.http.call import Call, Namespaced, NothingBody, Reply
from kagzi.http.fields import NEW_RUN_ID, TEXT, Name, Tags, When, whole
from kagzi.http.lengths import moment_of
from kagzi.http.problems import BadField, naming
from kagzi.http.runs import PageSize, Token, run_id_of, schedule_id_of
from kagzi.ports.documents.common import Count
from kagzi.ports.documents.jobs import JobDocument, job_document
from kagzi.ports.documents.runs import RunSummary, run_summary


class RunsBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Chooses runs: those that all of this is true of."""

    status: RunStatus | None = None
    workflow: Name | None = None
    queue: Name | None = None
    tags: Tags = {}
    created_after: When | None = None
    created_before: When | None = None
    id_prefix: Name | None = None
    error: Name | None = None
    parent: Name | None = None
    schedule: Name | None = None


class StartJobBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    action: JobAction
    runs: RunsBody = RunsBody()
    from_step: Annotated[
        Annotated[str, Meta(min_length=1, max_length=STEP_ID_BYTES, extra_json_schema=TEXT)] | None,
        Meta(
            description="Of a fork: what was recorded before the end of this step is kept. By its id, or its name if a "
            "run has one of it; runs that have none are skipped. Without it nothing is kept."
        ),
    ] = None
    from_version: Annotated[Name | None, Meta(description="Of a move: the version that runs have.")] = None
    version: Annotated[
        Name | None, Meta(description="Of a fork or a move: the version that runs get. A fork has that of its source.")
    ] = None
    everything: Annotated[bool, Meta(description="Without a filter: every run of the namespace is meant.")] = False
    rate: Annotated[float, whole("Runs a second.", 1, MOST_RATE)] | None = None
    children: Annotated[bool, Meta(description="Repeat children, too, which their parent may start again.")] = False
    created_by: Annotated[
        str,
        Meta(
            description="Who starts the job, while nobody is asked for a key; else it is the caller.",
            max_length=NAME_CHARACTERS,
            extra_json_schema=TEXT,
        ),
    ] = ""
    job_id: Annotated[
        str | None,
        Meta(description="A UUIDv7 made by the caller: repeating is harmless then.", extra_json_schema=NEW_RUN_ID),
    ] = None


class PreviewDocument(Struct, frozen=True, kw_only=True):
    """The runs that a job would find. `at_least`: there are more runs than were counted; `children` of them would be
    skipped; `runs` are the newest."""

    matched: Count
    at_least: bool
    children: Count
    runs: tuple[RunSummary, ...]


class JobsQuery(Namespaced, frozen=True, kw_only=True, forbid_unknown_fields=True):
    limit: PageSize = DEFAULT_PAGE_SIZE
    page: Token | None = None


class JobPage(Struct, frozen=True, kw_only=True):
    """Jobs, newest first. `next` leads to older ones."""

    jobs: tuple[JobDocument, ...]
    next: str | None


class DeletedRun(Struct, frozen=True, kw_only=True):
    """It is gone."""

    run_id: str


async def start_job(call: Call[Namespaced, StartJobBody]) -> Reply:
    if call.body.action is JobAction.MOVE:
        check_role("POST /api/v1/versions/move", call.caller)
    asked = await _asked(call)
    call.targets = (f"job {asked.job_id}",)
    # The other fields have been looked at. Whether somebody has offered a version only the engine knows.
    with naming("runs" if call.body.version is None else "version"):
        job = await call.engine.jobs.start(asked)
    return Reply(document=job_document(job), status=201, headers={"location": f"/api/v1/jobs/{job.job_id}"})


async def preview_job(call: Call[Namespaced, StartJobBody]) -> PreviewDocument:
    asked = await _asked(call)
    with naming("runs" if call.body.version is None else "version"):
        found = await call.engine.jobs.preview(asked)
    return PreviewDocument(
        matched=found.matched,
        at_least=found.at_least,
        children=found.children,
        runs=tuple([run_summary(run) for run in found.runs]),
    )


async def _asked(call: Call[Namespaced, StartJobBody]) -> StartJob:
    body, runs = call.body, call.body.runs
    options = JobOptions(from_step=body.from_step, from_version=body.from_version, version=body.version)
    if (wrong := wrong_option(body.action, options, runs.workflow)) is not None:
        raise BadField(*wrong)
    with naming("runs.tags"):
        check_tags(runs.tags)
    after = moment_of(runs.created_after, "runs.created_after")
    before = moment_of(runs.created_before, "runs.created_before")
    with naming("runs"):
        filter = RunFilter(
            namespace=call.namespace,
            status=runs.status,
            workflow_type=runs.workflow,
            task_queue=runs.queue,
            created_after=after,
            created_before=before,
            parent_run_id=None if runs.parent is None else await run_id_of(call, runs.parent),
            tags=runs.tags,
            id_prefix=runs.id_prefix,
            error=runs.error,
            schedule_id=None if runs.schedule is None else await schedule_id_of(call, runs.schedule),
        )
    job_id = call.host.ids.run_id()
    if body.job_id is not None:
        with naming("job_id"):
            job_id = check_new_run_id(body.job_id, "job_id")
    return StartJob(
        namespace=call.namespace,
        job_id=job_id,
        action=body.action,
        filter=filter,
        everything=body.everything,
        rate=None if body.rate is None else int(body.rate),
        children=body.children,
        options=options,
        created_by=body.created_by if call.caller is None or call.caller.actor == ANYONE else call.caller.actor,
    )


async def list_jobs(call: Call[JobsQuery, None]) -> JobPage:
    with naming("page"):
        page = await call.engine.jobs.list(call.namespace, page_size=call.query.limit, page_token=call.query.page)
    return JobPage(jobs=tuple([job_document(job) for job in page.items]), next=page.next)


async def get_job(call: Call[Namespaced, None]) -> JobDocument:
    return job_document(await call.engine.jobs.get(call.namespace, job_id_of(call.path["job_id"])))


async def cancel_job(call: Call[Namespaced, NothingBody]) -> JobDocument:
    return job_document(await call.engine.jobs.cancel(call.namespace, job_id_of(call.path["job_id"])))


async def delete_run(call: Call[Namespaced, NothingBody]) -> DeletedRun:
    run_id = await run_id_of(call, call.path["run_id"])
    await call.engine.jobs.delete_run(call.namespace, run_id)
    return DeletedRun(run_id=run_id)


def job_id_of(text: str) -> str:
    try:
        return check_new_run_id(text, "job_id")
    except InvalidRequest:
        raise NotFound(f"there is no job {text}") from None
