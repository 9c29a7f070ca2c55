"""Schedules: make, look at, change, fire."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Raw, Struct

from kagzi.api.schedules import CreateSchedule, UpdateSchedule
from kagzi.core.cron import EXPRESSION_CHARACTERS, check_zone, parse_times, upcoming
from kagzi.core.instant import Span
from kagzi.core.limits import DEFAULT_PAGE_SIZE, DEFAULT_QUEUE, REASON_CHARACTERS
from kagzi.core.run import PRIORITY_LIMIT
from kagzi.core.schedule import (
    DEFAULT_CATCHUP,
    DEFAULT_PREVIEWED,
    MOST_CATCHUP,
    MOST_PREVIEWED,
    Overlap,
    Schedule,
    check_jitter,
)
from kagzi.core.tags import check_tags
from kagzi.http.apart import apart
from kagzi.http.call import Call, Namespaced, NoQuery, NothingBody, Reply
from kagzi.http.fields import NEW_RUN_ID, TEXT, Length, Name, Tags, Timeout, When, whole
from kagzi.http.lengths import length_of, moment_of, timeout_of
from kagzi.http.limits import ANSWER_BYTES
from kagzi.http.problems import check_handler_queue, naming
from kagzi.http.reading import read_json
from kagzi.http.runs import PageSize, RunPage, Token
from kagzi.http.starts import RetryBody, policy_of
from kagzi.ports.documents.runs import run_summary
from kagzi.ports.documents.schedules import (
    FiringDocument,
    ScheduleDocument,
    SkipDocument,
    firing_document,
    schedule_document,
    skip_document,
)
from kagzi.ports.gradually import gradually

_Expression = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=EXPRESSION_CHARACTERS,
        description="5 cron fields, 6 with seconds before them, `@daily` and the like, or `every 15m`.",
        examples=["0 9 * * MON-FRI", "every 15m"],
    ),
]
_Zone = Annotated[str, Meta(max_length=255, description="A time zone.", examples=["Europe/Berlin"])]
_Catchup = Annotated[float, whole("How many missed firings are made up for, the newest.", 0, MOST_CATCHUP)]
_Overlap = Annotated[Overlap, Meta(description="What a firing does while a run of the schedule is live.")]
_Priority = Annotated[float, whole("A level is worth a minute of waiting.", 0, PRIORITY_LIMIT)]
_Input = Annotated[
    Raw, Meta(description="The arguments: an array by position, an object by name, anything else as the only one.")
]

_STAYS: Final = Raw(b"")


class SchedulesQuery(Namespaced, frozen=True, kw_only=True, forbid_unknown_fields=True):
    queue: Annotated[Name | None, Meta(description="Only those that fire into this queue.")] = None
    limit: PageSize = DEFAULT_PAGE_SIZE
    page: Token | None = None


class SchedulePage(Struct, frozen=True, kw_only=True):
    """Schedules, newest first. `next` leads to older ones, `prev` to newer ones."""

    schedules: tuple[ScheduleDocument, ...]
    next: str | None
    prev: str | None


async def list_schedules(call: Call[SchedulesQuery, None]) -> SchedulePage:
    query, size = call.query, call.query.limit
    while True:
        with naming("page"):
            page = await call.engine.schedules.list(
                call.namespace, task_queue=query.queue, page_size=size, page_token=query.page
            )
        total = sum(len(each.input) for each in page.items)
        if size == 1 or total <= ANSWER_BYTES:
            documents = await apart(total, lambda found: tuple(map(schedule_document, found)), page.items)
            return SchedulePage(schedules=documents, next=page.next, prev=page.prev)
        # A page of large payloads is a shorter page.
        size = max(1, min(size, len(page.items)) // 2)


class CreateScheduleBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    workflow: Annotated[Name, Meta(description="The name it is registered under.")]
    cron: _Expression
    tz: _Zone = "UTC"
    name: Annotated[Name | None, Meta(description="What people call it; unique in its namespace.")] = None
    input: _Input = msgspec.field(default_factory=lambda: Raw(b"[]"))
    queue: Annotated[
        Name | None, Meta(description="Without one: that of the workflow, as its worker told; if none has, `default`.")
    ] = None
    version: Annotated[Name | None, Meta(description="Without one: the default at the time of firing.")] = None
    enabled: bool = True
    catchup: _Catchup = DEFAULT_CATCHUP
    overlap: _Overlap = Overlap.ALLOW
    jitter: Length | None = None
    priority: _Priority = 0
    timeout: Timeout | None = None
    retry: RetryBody | None = None
    tags: Tags = {}
    limit_key: Annotated[Name | None, Meta(description="Whose share of limits its runs take.")] = None
    on_failure: Annotated[Name | None, Meta(description="The workflow that is started if a run of it fails.")] = None
    on_failure_queue: Name | None = None
    schedule_id: Annotated[
        str | None,
        Meta(description="A UUIDv7 made by the caller: repeating is harmless then.", extra_json_schema=NEW_RUN_ID),
    ] = None


def _jitter_of(value: float | str) -> Span:
    with naming("jitter"):
        return check_jitter(length_of(value, "jitter"))


def _tags_of(value: dict[str, str]) -> dict[str, str]:
    with naming("tags"):
        return check_tags(value)


async def create_schedule(call: Call[Namespaced, CreateScheduleBody]) -> Reply:
    body = call.body
    schedule_id = call.host.ids.run_id() if body.schedule_id is None else body.schedule_id
    call.targets = (f"schedule {schedule_id}",)
    check_times(body.cron, body.tz)
    check_handler_queue(body.on_failure, body.on_failure_queue)
    made = await call.engine.schedules.create(
        CreateSchedule(
            namespace=call.namespace,
            schedule_id=schedule_id,
            name=body.name,
            workflow_type=body.workflow,
            task_queue=body.queue or DEFAULT_QUEUE,
            by_name=True,
            other_queue=body.queue is None,
            version=body.version or "",
            cron_expr=body.cron,
            timezone=body.tz,
            enabled=body.enabled,
            input=await read_json(body.input, "input"),
            max_catchup=int(body.catchup),
            overlap=body.overlap,
            jitter=0 if body.jitter is None else _jitter_of(body.jitter),
            priority=int(body.priority),
            timeout=timeout_of(body.timeout),
            retry_policy=None if body.retry is None else policy_of(body.retry),
            tags=_tags_of(body.tags),
            limit_key=body.limit_key,
            on_failure=body.on_failure,
            on_failure_queue=body.on_failure_queue,
        )
    )
    location = {"location": f"/api/v1/schedules/{made.schedule_id}"}
    return Reply(document=await _document(made), status=201, headers=location)


class ScheduleWithSkips(ScheduleDocument, frozen=True, kw_only=True):
    """A schedule, and the newest firings that did not become runs."""

    skips: tuple[SkipDocument, ...]


async def get_schedule(call: Call[Namespaced, None]) -> ScheduleWithSkips:
    found = await call.engine.schedules.get(call.namespace, _named(call))
    skips = await call.engine.schedules.skips(call.namespace, found.schedule_id)
    document = await _document(found)
    return ScheduleWithSkips(
        **{field: getattr(document, field) for field in document.__struct_fields__},
        skips=tuple([skip_document(skip) for skip in skips]),
    )


class UpdateScheduleBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Changes of a schedule. Fields that are left out stay as they are. The next firing is computed anew."""

    workflow: Name | None = None
    cron: _Expression | None = None
    tz: _Zone | None = None
    input: _Input = msgspec.field(default_factory=lambda: _STAYS)  # a Raw cannot be one of several types
    queue: Name | None = None
    version: (
        Annotated[
            str, Meta(max_length=255, description="Empty: the default at the time of firing.", extra_json_schema=TEXT)
        ]
        | None
    ) = None
    catchup: _Catchup | None = None
    overlap: _Overlap | None = None
    jitter: Length | None = None
    priority: _Priority | None = None
    timeout: Timeout | None = None
    retry: RetryBody | None = None
    tags: Tags | None = None
    limit_key: (
        Annotated[str, Meta(max_length=255, description="Empty: none any more.", extra_json_schema=TEXT)] | None
    ) = None
    next_fire_at: When | None = None
    on_failure: (
        Annotated[str, Meta(max_length=255, description="Empty: none any more.", extra_json_schema=TEXT)] | None
    ) = None
    on_failure_queue: Name | None = None


async def update_schedule(call: Call[Namespaced, UpdateScheduleBody]) -> ScheduleDocument:
    body = call.body
    check_times(body.cron, body.tz)
    check_handler_queue(body.on_failure, body.on_failure_queue)
    update = UpdateSchedule(
        namespace=call.namespace,
        schedule_id=_named(call),
        workflow_type=body.workflow,
        task_queue=body.queue,
        version=body.version,
        cron_expr=body.cron,
        timezone=body.tz,
        input=None if bytes(body.input) in (b"", b"null") else await read_json(body.input, "input"),
        max_catchup=None if body.catchup is None else int(body.catchup),
        overlap=body.overlap,
        jitter=None if body.jitter is None else _jitter_of(body.jitter),
        priority=None if body.priority is None else int(body.priority),
        timeout=timeout_of(body.timeout),
        retry_policy=None if body.retry is None else policy_of(body.retry),
        tags=None if body.tags is None else _tags_of(body.tags),
        limit_key=body.limit_key,
        next_fire_at=moment_of(body.next_fire_at, "next_fire_at"),
        on_failure=body.on_failure,
        on_failure_queue=body.on_failure_queue,
    )
    # The other fields have been looked at by now.
    with nullcontext() if body.next_fire_at is None else naming("next_fire_at"):
        changed = await call.engine.schedules.update(update)
    return await _document(changed)


class PauseBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    reason: Annotated[str, Meta(max_length=REASON_CHARACTERS, extra_json_schema=TEXT)] | None = None


async def pause_schedule(call: Call[Namespaced, PauseBody]) -> ScheduleDocument:
    update = UpdateSchedule(
        namespace=call.namespace, schedule_id=_named(call), enabled=False, pause_reason=call.body.reason
    )
    return await _document(await call.engine.schedules.update(update))


async def reset_schedule(call: Call[Namespaced, NothingBody]) -> ScheduleDocument:
    update = UpdateSchedule(namespace=call.namespace, schedule_id=_named(call), reset=True)
    return await _document(await call.engine.schedules.update(update))


async def resume_schedule(call: Call[Namespaced, NothingBody]) -> ScheduleDocument:
    update = UpdateSchedule(namespace=call.namespace, schedule_id=_named(call), enabled=True)
    return await _document(await call.engine.schedules.update(update))


class TriggerBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    run_id: Annotated[
        str | None,
        Meta(description="A UUIDv7 made by the caller: repeating is harmless then.", extra_json_schema=NEW_RUN_ID),
    ] = None


class TriggeredRun(Struct, frozen=True, kw_only=True):
    """The run that was started beside the plan."""

    run_id: str


async def trigger_schedule(call: Call[Namespaced, TriggerBody]) -> Reply:
    run_id = call.host.ids.run_id() if call.body.run_id is None else call.body.run_id
    run_id = await call.engine.schedules.trigger(call.namespace, _named(call), run_id)
    return Reply(document=TriggeredRun(run_id=run_id), status=201, headers={"location": f"/api/v1/runs/{run_id}"})


class BackfillBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    since: When
    until: When


class BackfilledRuns(Struct, frozen=True, kw_only=True):
    """Firings that are runs now, and those that had become runs before."""

    started: int
    existing: int


async def backfill_schedule(call: Call[Namespaced, BackfillBody]) -> BackfilledRuns:
    since, until = moment_of(call.body.since, "since"), moment_of(call.body.until, "until")
    assert since is not None
    assert until is not None
    named = _named(call)
    with naming("until"):
        done = await call.engine.schedules.backfill(call.namespace, named, since, until)
    return BackfilledRuns(started=done.started, existing=done.existing)


class DeletedSchedule(Struct, frozen=True, kw_only=True):
    """It is gone; the runs it has started stay."""

    deleted: bool


async def delete_schedule(call: Call[Namespaced, NothingBody]) -> DeletedSchedule:
    await call.engine.schedules.delete(call.namespace, _named(call))
    return DeletedSchedule(deleted=True)


class ScheduleRunsQuery(Namespaced, frozen=True, kw_only=True, forbid_unknown_fields=True):
    limit: PageSize = DEFAULT_PAGE_SIZE
    page: Token | None = None


async def list_schedule_runs(call: Call[ScheduleRunsQuery, None]) -> RunPage:
    with naming("page"):
        page = await call.engine.schedules.runs(
            call.namespace, _named(call), page_size=call.query.limit, page_token=call.query.page
        )
    return RunPage(runs=tuple([run_summary(run) for run in page.items]), next=page.next, prev=page.prev)


class PreviewQuery(NoQuery, frozen=True, kw_only=True, forbid_unknown_fields=True):
    cron: _Expression
    tz: _Zone = "UTC"
    count: Annotated[int, Meta(ge=1, le=MOST_PREVIEWED, description="How many.")] = DEFAULT_PREVIEWED
    after: When | None = None


class Preview(Struct, frozen=True, kw_only=True):
    """When an expression fires next."""

    firings: tuple[FiringDocument, ...]


async def preview_schedule(call: Call[PreviewQuery, None]) -> Preview:
    query = call.query
    after = moment_of(query.after, "after")
    check_times(query.cron, query.tz)
    times, start = parse_times(query.cron, query.tz), call.host.clock.now() if after is None else after
    found = [firing_document(times, query.tz, at) async for at in gradually(upcoming(times, start, query.count))]
    return Preview(firings=tuple(found))


def check_times(cron: str | None, zone: str | None) -> None:
    """Refuses what is wrong with either by the name it has here."""
    if zone is not None:
        with naming("tz"):
            check_zone(zone)
    if cron is not None:
        with naming("cron"):
            parse_times(cron, field="cron")


async def _document(schedule: Schedule) -> ScheduleDocument:
    return await apart(len(schedule.input), schedule_document, schedule)


def _named(call: Call[Any, Any]) -> str:
    return call.path["schedule_id"]
