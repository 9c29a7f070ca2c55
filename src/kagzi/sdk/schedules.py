"""`app.schedules`: workflows started by the clock."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from msgspec import Struct

from kagzi.api.schedules import CreateSchedule, ScheduleService, UpdateSchedule
from kagzi.core.cron import check_zone, parse_times, upcoming
from kagzi.core.duration import Duration, format_span, parse_duration
from kagzi.core.instant import Instant, to_datetime
from kagzi.core.limits import DEFAULT_PAGE_SIZE
from kagzi.core.lineage import schedule_input
from kagzi.core.options import names_its_options
from kagzi.core.page import Page
from kagzi.core.schedule import (
    DEFAULT_CATCHUP,
    DEFAULT_PREVIEWED,
    Schedule,
    Skip,
    check_catchup,
    check_count,
    check_overlap,
)
from kagzi.errors import InvalidRequest
from kagzi.sdk.blocking import Portal, blocking
from kagzi.sdk.cron import jitter_of
from kagzi.sdk.debounce import Debounce
from kagzi.sdk.definitions import Workflow, WorkflowOptions
from kagzi.sdk.handle import Handle
from kagzi.sdk.limits import limit_of
from kagzi.sdk.moments import instant_of
from kagzi.sdk.records import Read, RunRecord, run_record

DEFAULT_QUEUE = "default"
# Options of a run that a schedule cannot give to each of many, and those that are for children.
_OF_ONE_RUN = ("id", "delay", "start_at", "deadline", "signal")
_OF_CHILDREN = ("key", "on_parent_end")


class ScheduleRecord(Struct, frozen=True, kw_only=True):
    """What is known about a schedule at one moment. Moments are in UTC."""

    id: str
    name: str | None
    namespace: str
    workflow: str
    queue: str
    version: str | None  # None: the default one at the time of firing
    cron: str
    tz: str
    enabled: bool
    catchup: int
    overlap: str
    jitter: str
    priority: int
    input: Any  # the arguments as plain JSON data
    created_at: datetime
    updated_at: datetime
    next_fire_at: datetime | None  # None while paused
    last_fired_at: datetime | None
    last_run_id: str | None
    total_runs: int
    successful_runs: int
    failed_runs: int
    skipped_runs: int
    buffered_for: datetime | None  # the firing that waits for the run before it
    error: str | None  # why it could not fire the last time
    pause_reason: str | None
    tags: dict[str, str] = {}
    limit_key: str | None = None  # whose share of limits its runs take
    on_failure: str | None = None  # the workflow that is started if a run of it fails
    declared: bool = False  # code declares it
    changed_by_hand: bool = False  # a person has changed what code declares
    abandoned: bool = False  # code has declared it, and no live worker does


class SkipRecord(Struct, frozen=True, kw_only=True):
    """Firings in a row that did not become runs. `reason` is catchup (missed, and more than are made up for), overlap
    (the run before was live) or paused."""

    first_at: datetime
    last_at: datetime
    count: int  # from 10,000 on it may have been more
    reason: str
    at: datetime


class Home(Struct, frozen=True, kw_only=True):
    """The part of an app that schedules need."""

    portal: Portal
    namespace: Callable[[], str]
    service: Callable[[], ScheduleService]
    new_run_id: Callable[[], str]
    handle: Callable[[str], Handle[Any]]
    read: Read
    now: Callable[[], Instant]


class ScheduleHandle:
    """A schedule that was made or found. Each call asks for it anew, by its id."""

    def __init__(self, home: Home, schedule_id: str, namespace: str) -> None:
        self._home = home
        self.id = schedule_id
        self.namespace = namespace

    async def info(self) -> ScheduleRecord:
        """Everything that is known about it now. NotFound if it was deleted."""
        return self._record(await self._service.get(self.namespace, self.id))

    @names_its_options
    async def update(
        self,
        *,
        cron: str | None = None,
        tz: str | None = None,
        args: tuple[Any, ...] | None = None,
        workflow: Workflow[Any, Any] | None = None,
        catchup: int | None = None,
        overlap: str | None = None,
        jitter: Duration | None = None,
        next_fire_at: datetime | None = None,
    ) -> ScheduleRecord:
        """Change what is given. Its next firing is computed anew, from now on.

        `args` are other arguments for the workflow; `workflow` is another one, or the same with other `.options(...)`,
        and needs `args`. `next_fire_at` is when to fire next, instead of what the expression says.
        """
        changes: dict[str, Any] = {}
        if workflow is not None:
            if args is None:
                raise InvalidRequest("update: with another workflow give its arguments, too: args=(...)")
            changes |= _options_of(workflow)
            changes["on_failure"] = changes["on_failure"] or ""
            context = None
            if workflow.codec is not None:
                found = await self._service.get(self.namespace, self.id)
                context = schedule_input(self.namespace, found.name or self.id)
            changes |= {"input": workflow.signature.encode_arguments(args, {}, context)}
            changes["limit_key"] = limit_of(workflow, workflow.run_options, args, {})[1] or ""
        elif args is not None:
            raise InvalidRequest("update: arguments are checked against the workflow: give workflow= along with args=")
        if catchup is not None:
            changes["max_catchup"] = check_catchup(catchup, "catchup")
        if overlap is not None:
            changes["overlap"] = check_overlap(overlap)
        if jitter is not None:
            changes["jitter"] = jitter_of(jitter)
        if next_fire_at is not None:
            changes["next_fire_at"] = instant_of(next_fire_at, "next_fire_at")
        if cron is not None:
            parse_times(cron, "UTC" if tz is None else check_zone(tz), "cron")
        update = UpdateSchedule(namespace=self.namespace, schedule_id=self.id, cron_expr=cron, timezone=tz, **changes)
        return self._record(await self._service.update(update))

    async def pause(self, reason: str | None = None) -> ScheduleRecord:
        """Fire nothing until resumed. What falls into the pause is not made up for."""
        update = UpdateSchedule(namespace=self.namespace, schedule_id=self.id, enabled=False, pause_reason=reason)
        return self._record(await self._service.update(update))

    async def resume(self) -> ScheduleRecord:
        """Fire again, from now on."""
        update = UpdateSchedule(namespace=self.namespace, schedule_id=self.id, enabled=True)
        return self._record(await self._service.update(update))

    async def reset(self) -> ScheduleRecord:
        """Let what code declares count again, after a person has changed it: when a worker of that code looks at it
        next, which is within a minute. Without such a worker it stays as it is."""
        update = UpdateSchedule(namespace=self.namespace, schedule_id=self.id, reset=True)
        return self._record(await self._service.update(update))

    async def trigger(self) -> Handle[Any]:
        """Start a run now, beside the plan: also while paused, and whatever `overlap` says."""
        run_id = await self._service.trigger(self.namespace, self.id, self._home.new_run_id())
        return self._home.handle(run_id)

    async def backfill(self, since: datetime, until: datetime) -> int:
        """Start runs for the firings from `since` to before `until` that have none; returns how many were started.

        At most 1,000 firings, oldest first, all at once. Harmless to repeat.
        """
        begin, end = instant_of(since, "since"), instant_of(until, "until")
        return (await self._service.backfill(self.namespace, self.id, begin, end)).started

    async def delete(self) -> None:
        """Remove it. The runs it has started stay, and go on."""
        await self._service.delete(self.namespace, self.id)

    @names_its_options
    async def runs(self, *, page_size: int = DEFAULT_PAGE_SIZE, page_token: str | None = None) -> Page[RunRecord]:
        """One page of the runs it has started, newest first; also after it was deleted."""
        page = await self._service.runs(self.namespace, self.id, page_size=page_size, page_token=page_token)
        read = self._home.read
        return Page(tuple([run_record(run, read) for run in page.items]), page.next, page.prev)

    async def skips(self) -> tuple[SkipRecord, ...]:
        """The newest firings that did not become runs, and why."""
        return tuple([_skip_record(skip) for skip in await self._service.skips(self.namespace, self.id)])

    @property
    def portal(self) -> Portal:
        """The portal by which blocking code reaches the app."""
        return self._home.portal

    # For code that cannot await.

    info_sync = blocking(info)
    update_sync = blocking(update)
    pause_sync = blocking(pause)
    resume_sync = blocking(resume)
    trigger_sync = blocking(trigger)
    backfill_sync = blocking(backfill)
    delete_sync = blocking(delete)
    reset_sync = blocking(reset)
    runs_sync = blocking(runs)
    skips_sync = blocking(skips)

    @property
    def _service(self) -> ScheduleService:
        return self._home.service()

    def _record(self, schedule: Schedule) -> ScheduleRecord:
        return schedule_record(schedule, self._home.read)

    def __repr__(self) -> str:
        return f"<schedule {self.id}>"


class Schedules:
    """The schedules of an app, as `app.schedules`."""

    def __init__(self, home: Home) -> None:
        self._home = home

    async def create(
        self,
        /,
        name: str,
        workflow: Workflow[..., Any],
        *args: Any,
        cron: str,
        tz: str = "UTC",
        catchup: int = DEFAULT_CATCHUP,
        overlap: str = "allow",
        jitter: Duration = 0,
        enabled: bool = True,
        **kwargs: Any,
    ) -> ScheduleHandle:
        """Start a workflow by the clock: `await app.schedules.create("nightly", cleanup, "logs", cron="0 2 * * *")`.

        `args` and further keywords are the arguments of each run; `workflow.options(queue=, version=, priority=,
        retry=, timeout=, tags=)` says the rest about them. `catchup` is how many missed firings are made up for, the
        newest ones; `overlap` what happens while the run before is live: allow, skip, cancel_previous or buffer. Runs
        begin up to `jitter` later than they fire. Conflict if there is a schedule of this name.
        """
        parse_times(cron, check_zone(tz), "cron")
        options = _options_of(workflow)
        namespace = workflow_options(workflow).namespace or self._home.namespace()
        made = await self._home.service().create(
            CreateSchedule(
                namespace=namespace,
                schedule_id=self._home.new_run_id(),
                name=name,
                cron_expr=cron,
                timezone=tz,
                enabled=enabled,
                input=workflow.signature.encode_arguments(args, kwargs, schedule_input(namespace, name)),
                max_catchup=check_catchup(catchup, "catchup"),
                overlap=check_overlap(overlap),
                jitter=jitter_of(jitter),
                limit_key=limit_of(workflow, workflow.run_options, args, kwargs)[1] or None,
                **options,
            )
        )
        return ScheduleHandle(self._home, made.schedule_id, namespace)

    async def get(self, name: str) -> ScheduleHandle:
        """The schedule with this name, or id. NotFound if there is none."""
        found = await self._home.service().get(self._home.namespace(), name)
        return ScheduleHandle(self._home, found.schedule_id, found.namespace)

    @names_its_options
    async def list(
        self, *, queue: str | None = None, page_size: int = DEFAULT_PAGE_SIZE, page_token: str | None = None
    ) -> Page[ScheduleRecord]:
        """One page of schedules, newest first; `page.next` and `page.prev` are the tokens of its neighbours."""
        page = await self._home.service().list(
            self._home.namespace(), task_queue=queue, page_size=page_size, page_token=page_token
        )
        read = self._home.read
        return Page(tuple([schedule_record(each, read) for each in page.items]), page.next, page.prev)

    @names_its_options
    def preview(
        self, cron: str, *, tz: str = "UTC", count: int = DEFAULT_PREVIEWED, after: datetime | None = None
    ) -> tuple[datetime, ...]:
        """Returns when an expression fires next, in its zone. Needs no engine: the app may be closed.

        `for at in app.schedules.preview("30 2 * * *", tz="America/New_York", count=5): ...`
        """
        times = parse_times(cron, check_zone(tz), "cron")
        start = self._home.now() if after is None else instant_of(after, "after")
        return tuple([to_datetime(at).astimezone(ZoneInfo(tz)) for at in upcoming(times, start, check_count(count))])

    @property
    def portal(self) -> Portal:
        """The portal by which blocking code reaches the app."""
        return self._home.portal

    # For code that cannot await.

    create_sync = blocking(create)
    get_sync = blocking(get)
    list_sync = blocking(list)


def schedule_record(schedule: Schedule, read: Read) -> ScheduleRecord:
    return ScheduleRecord(
        id=schedule.schedule_id,
        name=schedule.name,
        namespace=schedule.namespace,
        workflow=schedule.workflow_type,
        queue=schedule.task_queue,
        version=schedule.version or None,
        cron=schedule.cron_expr,
        tz=schedule.timezone,
        enabled=schedule.enabled,
        catchup=schedule.max_catchup,
        overlap=schedule.overlap.value,
        jitter=format_span(schedule.jitter),
        priority=schedule.priority,
        input=read(schedule.input, schedule_input(schedule.namespace, schedule.name or schedule.schedule_id)),
        created_at=to_datetime(schedule.created_at),
        updated_at=to_datetime(schedule.updated_at),
        next_fire_at=_moment(schedule.next_fire_at),
        last_fired_at=_moment(schedule.last_fired_at),
        last_run_id=schedule.last_run_id,
        total_runs=schedule.total_runs,
        successful_runs=schedule.successful_runs,
        failed_runs=schedule.failed_runs,
        skipped_runs=schedule.skipped_runs,
        buffered_for=_moment(schedule.buffered_for),
        error=schedule.error,
        pause_reason=schedule.pause_reason,
        tags=schedule.tags,
        limit_key=schedule.limit_key,
        on_failure=schedule.on_failure,
        declared=schedule.declared,
        changed_by_hand=schedule.changed_by_hand,
        abandoned=schedule.abandoned,
    )


def _skip_record(skip: Skip) -> SkipRecord:
    return SkipRecord(
        first_at=to_datetime(skip.first_at),
        last_at=to_datetime(skip.last_at),
        count=skip.count,
        reason=skip.reason.value,
        at=to_datetime(skip.at),
    )


def _moment(instant: Instant | None) -> datetime | None:
    return None if instant is None else to_datetime(instant)


def workflow_options(workflow: object) -> WorkflowOptions:
    if not isinstance(workflow, Workflow):
        raise InvalidRequest(
            f"a schedule starts a workflow of this app, such as a function with @app.workflow, not {workflow!r:.100}"
        )
    return workflow.run_options


def _options_of(workflow: Workflow[..., Any]) -> dict[str, Any]:
    """Checks and returns what `.options(...)` says about each run of a schedule."""
    options = workflow_options(workflow)
    for field in _OF_ONE_RUN:
        if getattr(options, field) is not None:
            raise InvalidRequest(f"{field} is for one run, and a schedule starts many; leave it out of .options(...)")
    for field in _OF_CHILDREN:
        if getattr(options, field) is not None:
            raise InvalidRequest(f"{field} is for children, and a schedule has none; leave it out of .options(...)")
    if options.on_conflict is not None:
        raise InvalidRequest("on_conflict is for a start with an id; leave it out of .options(...)")
    if isinstance(options.debounce, Debounce):
        raise InvalidRequest(
            "debounce is for starts by callers; schedules have overlap=. Leave it out of .options(...)"
        )
    return schedule_options(workflow)


def schedule_options(workflow: Workflow[..., Any]) -> dict[str, Any]:
    """Returns what the workflow and its `.options(...)` say about each run, as a schedule keeps it."""
    options = workflow.run_options
    handler = options.on_failure or workflow.on_failure
    timeout = options.timeout if options.timeout is not None else workflow.timeout
    return {
        "workflow_type": workflow.name,
        "task_queue": options.queue or workflow.queue or DEFAULT_QUEUE,
        "version": options.version or "",
        "priority": options.priority,
        "timeout": None if timeout is None else parse_duration(timeout, "timeout"),
        "retry_policy": None if options.retry is None else options.retry.encode(),
        "tags": options.tags,
        "on_failure": None if handler is None else handler.name,
        "on_failure_queue": None if handler is None else handler.queue,
    }
