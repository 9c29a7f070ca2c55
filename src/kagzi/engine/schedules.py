"""Schedules: checking what is asked, and what follows from it. They are fired by a duty of the coordinator."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from operator import attrgetter
from typing import Final

from msgspec.structs import replace

from kagzi.api.events import ScheduleChange
from kagzi.api.operations import StartRun
from kagzi.api.schedules import Backfilled, CreateSchedule, DeclareSchedule, UpdateSchedule
from kagzi.api.workers import Registration
from kagzi.core.audit import OK, AuditEntry
from kagzi.core.cron import check_zone, parse_times
from kagzi.core.declaration import Declaration, Verdict, warning
from kagzi.core.duration import LONGEST
from kagzi.core.instant import Instant
from kagzi.core.limits import (
    DEFAULT_PAGE_SIZE,
    check_id,
    check_name,
    check_new_run_id,
    is_run_id,
)
from kagzi.core.page import BY_ID, Page
from kagzi.core.run import PRIORITY_LIMIT, Run
from kagzi.core.schedule import Schedule, Skip, backfilled, check_catchup, check_jitter, check_overlap
from kagzi.core.tags import check_tags
from kagzi.engine.checks import (
    check_bytes,
    check_handler,
    check_instant,
    check_number,
    check_policy,
    check_reason,
    check_span,
)
from kagzi.engine.listing import Listing
from kagzi.engine.namespaces import Namespaces
from kagzi.engine.patience import Patience, patient
from kagzi.engine.settings import EngineSettings
from kagzi.engine.versions import VersionRegistry
from kagzi.errors import Conflict, InvalidRequest, KagziError, LimitExceeded, NotFound
from kagzi.store.protocol.changes import Recovered
from kagzi.store.protocol.store import Store

_SKIPS: Final = 100  # records in one answer
_BATCH: Final = 100  # firings of a backfill in one transaction
_AT_ONCE: Final = 10  # expressions that are read, or firings that are found, before others run
_DECLARED: Final = 1000  # by one worker


class Schedules:
    """`api.schedules.ScheduleService` over a store. `started` hears of runs that were inserted, `changed` that some
    schedule may be due at another moment than before, `tell` what has happened to which one."""

    def __init__(
        self,
        store: Store,
        namespaces: Namespaces,
        versions: VersionRegistry,
        settings: EngineSettings,
        *,
        new_run_id: Callable[[], str],
        started: Callable[[list[Recovered]], None],
        changed: Callable[[], None],
        tell: Callable[[str, str, ScheduleChange, int | None], None],
        audit: Callable[[AuditEntry], None],
        patience: Patience,
    ) -> None:
        self._store = store
        self.patience = patience
        self._namespaces = namespaces
        self._versions = versions
        self._listing = Listing[Schedule](store.page_secret, attrgetter("schedule_id"), BY_ID)
        self._runs = Listing[Run](store.page_secret, attrgetter("run_id"), BY_ID)
        self._payload_bytes = settings.payload_bytes
        self._new_run_id = new_run_id
        self._started = started
        self._changed = changed
        self._tell = tell
        self._audit = audit

    @patient
    async def create(self, create: CreateSchedule) -> Schedule:
        check_name(create.namespace, "namespace")
        create = replace(create, schedule_id=check_new_run_id(create.schedule_id, "schedule id"))
        if create.name is not None:
            _check_own_name(create.name)
        check_name(create.workflow_type, "workflow type")
        check_name(create.task_queue, "task queue")
        if create.version:
            check_name(create.version, "version")
        parse_times(create.cron_expr, check_zone(create.timezone))
        _check_handler(create.on_failure, create.on_failure_queue)
        self._check_options(create)
        if create.by_name:
            create = await self._completed(create)
        await self._namespaces.admit(create.namespace)
        made = await self._store.schedules.create(create)
        if isinstance(made, Conflict | LimitExceeded):
            raise made
        self._changed()
        self._tell(made.namespace, made.schedule_id, ScheduleChange.CREATED, None)
        return made

    async def _completed(self, create: CreateSchedule) -> CreateSchedule:
        """Returns a schedule of a workflow that is known by its name alone, whose runs are those that a start by name
        makes now. InvalidRequest if the input does not fit."""
        start = StartRun(
            namespace=create.namespace,
            run_id=create.schedule_id,
            workflow_type=create.workflow_type,
            task_queue=create.task_queue,
            version=create.version or None,
            input=create.input,
            external_id=create.schedule_id,  # as each of its runs has one, so that none joins another
            timeout=create.timeout,
            on_failure=create.on_failure,
            on_failure_queue=create.on_failure_queue,
            limit_key=create.limit_key,
            by_name=True,
            other_queue=create.other_queue,
        )
        whole, _ = await self._versions.complete(start)
        return replace(
            create,
            task_queue=whole.task_queue,
            timeout=whole.timeout,
            on_failure=whole.on_failure,
            on_failure_queue=whole.on_failure_queue,
            limit_key=whole.limit_key,
        )

    async def get(self, namespace: str, schedule_id: str) -> Schedule:
        found = await self._store.schedules.get(namespace, await self._id_of(namespace, schedule_id))
        if found is None:
            raise _missing(namespace, schedule_id)
        return found

    async def list(
        self,
        namespace: str,
        *,
        task_queue: str | None = None,
        page_size: int = DEFAULT_PAGE_SIZE,
        page_token: str | None = None,
    ) -> Page[Schedule]:
        check_name(namespace, "namespace")
        if task_queue is not None:
            check_name(task_queue, "task queue")
        about = f"schedules {namespace!r} {task_queue!r}"
        cursor = self._listing.begin(page_size, page_token, about)
        rows = await self._store.schedules.page(namespace, task_queue, cursor, page_size + 1)
        return self._listing.page(rows, page_size, about, cursor)

    @patient
    async def update(self, update: UpdateSchedule) -> Schedule:
        schedule_id = await self._id_of(update.namespace, update.schedule_id)
        if update.workflow_type is not None:
            check_name(update.workflow_type, "workflow type")
        if update.task_queue is not None:
            check_name(update.task_queue, "task queue")
        if update.version:
            check_name(update.version, "version")
        if update.next_fire_at is not None:
            check_instant(update.next_fire_at, "next_fire_at")
        _check_handler(update.on_failure or None, update.on_failure_queue)
        if update.reset and update != UpdateSchedule(
            namespace=update.namespace, schedule_id=update.schedule_id, reset=True
        ):
            raise InvalidRequest("reset changes nothing else; leave the other fields out")
        if update.pause_reason is not None:
            check_reason(update.pause_reason)
        if update.cron_expr is not None or update.timezone is not None:
            before = await self.get(update.namespace, schedule_id)
            zone = before.timezone if update.timezone is None else update.timezone
            parse_times(before.cron_expr if update.cron_expr is None else update.cron_expr, check_zone(zone))
        self._check_options(update)
        changed = await self._store.schedules.update(replace(update, schedule_id=schedule_id))
        if changed is None:
            raise _missing(update.namespace, update.schedule_id)
        if isinstance(changed, InvalidRequest):
            raise changed
        self._changed()
        told = [] if update.enabled is None else [ScheduleChange.RESUMED if update.enabled else ScheduleChange.PAUSED]
        if update.enabled is None or update.is_by_hand:
            told.append(ScheduleChange.UPDATED)
        for change in told:
            self._tell(update.namespace, schedule_id, change, None)
        return changed

    async def check_declared(self, registration: Registration) -> None:
        """Refuses declarations that cannot be, and those of workflows or queues that the worker does not serve: its key
        is for those alone."""
        declared = registration.schedules
        if len(declared) > _DECLARED:
            raise InvalidRequest(f"a worker declares at most {_DECLARED:,} schedules, not {len(declared):,}")
        offered = {each.name for each in registration.types}
        for number, each in enumerate(declared):
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)
            _check_own_name(each.name)
            if each.workflow_type not in offered:
                raise InvalidRequest(
                    f"schedule {each.name!r} is of workflow {each.workflow_type!r}, which this worker does not execute"
                )
            check_name(each.task_queue, "task queue")
            if each.task_queue not in registration.queues:
                raise InvalidRequest(
                    f"schedule {each.name!r} is for queue {each.task_queue!r}, which this worker does not serve"
                )
            check_name(each.hash, "hash")
            parse_times(each.cron_expr, check_zone(each.timezone))
            self._check_options(each)
            _check_handler(each.on_failure, each.on_failure_queue)

    async def declare(self, registration: Registration) -> tuple[str, ...]:
        """Carries out what a worker's code declares, one schedule at a time; returns the declarations that do not
        count, and why. Repeating is harmless."""
        warnings = []
        for each in registration.schedules:
            declare = DeclareSchedule(
                namespace=registration.namespace,
                schedule_id=self._new_run_id(),
                worker_id=registration.worker_id,
                starting=not registration.look,
                declaration=each,
            )
            verdict = await self._store.schedules.declare(declare)
            if (told := warning(verdict, each.name)) is not None:
                warnings.append(told)
            if verdict in (Verdict.CREATED, Verdict.TAKEN_OVER):
                self._changed()
                await self._tell_declared(registration.namespace, each.name, verdict)
                self._audit(
                    AuditEntry(
                        actor=registration.actor or f"worker:{registration.worker_id}",
                        action="declare schedule",
                        namespace=registration.namespace,
                        target=f"schedule {each.name}",
                        request_id="",
                        peer=registration.peer or registration.hostname,
                        result=OK,
                    )
                )
        return tuple(warnings)

    async def _tell_declared(self, namespace: str, name: str, verdict: Verdict) -> None:
        found = await self._store.schedules.find(namespace, name)
        if found is not None:
            created = verdict is Verdict.CREATED
            self._tell(namespace, found, ScheduleChange.CREATED if created else ScheduleChange.UPDATED, None)

    @patient
    async def trigger(self, namespace: str, schedule_id: str, run_id: str) -> str:
        run_id = check_new_run_id(run_id, "run id")
        found = await self._id_of(namespace, schedule_id)
        await self._namespaces.admit(namespace)
        started = await self._store.schedules.trigger(namespace, found, run_id)
        if started is None:
            raise _missing(namespace, schedule_id)
        if isinstance(started, Conflict):
            raise started
        self._started([started])
        self._tell(namespace, found, ScheduleChange.FIRED, 1)
        return run_id

    @patient
    async def backfill(self, namespace: str, schedule_id: str, since: Instant, until: Instant) -> Backfilled:
        check_instant(since, "since")
        check_instant(until, "until")
        schedule = await self.get(namespace, schedule_id)
        if until > (await self._store.overview.horizon([])).now:
            raise InvalidRequest("backfill: `until` lies in the future; what is still to come fires by itself")
        times = parse_times(schedule.cron_expr, schedule.timezone)
        instants = []
        for at in backfilled(times, since, until):
            instants.append(at)
            if len(instants) % _AT_ONCE == 0:
                await asyncio.sleep(0)
        await self._namespaces.admit(namespace)
        inserted = 0
        for begin in range(0, len(instants), _BATCH):
            batch = [(at, self._new_run_id()) for at in instants[begin : begin + _BATCH]]
            started = await self._store.schedules.backfill(schedule, batch)
            if started is None:
                raise Conflict(
                    f"schedule {schedule_id} was changed or deleted meanwhile; {inserted} runs were started. "
                    "Backfilling again starts the rest"
                )
            self._started(started)
            if started:
                self._tell(namespace, schedule.schedule_id, ScheduleChange.FIRED, len(started))
            inserted += len(started)
        return Backfilled(started=inserted, existing=len(instants) - inserted)

    async def delete(self, namespace: str, schedule_id: str) -> None:
        found = (await self.patience(lambda: self.get(namespace, schedule_id))).schedule_id
        # What was there and is not any more is deleted, by this try or by one whose answer was lost.
        await self.patience(lambda: self._store.schedules.delete(namespace, found))
        self._tell(namespace, found, ScheduleChange.DELETED, None)

    async def runs(
        self, namespace: str, schedule_id: str, *, page_size: int = DEFAULT_PAGE_SIZE, page_token: str | None = None
    ) -> Page[Run]:
        found = await self._id_of(namespace, schedule_id)
        about = f"runs of schedule {found} {namespace!r}"
        cursor = self._runs.begin(page_size, page_token, about)
        runs = await self._store.schedules.page_of_runs(namespace, found, cursor, page_size + 1)
        if not runs and cursor is None:
            await self.get(namespace, found)  # a schedule without runs is another answer than none at all
        return self._runs.page(runs, page_size, about, cursor)

    async def skips(self, namespace: str, schedule_id: str) -> tuple[Skip, ...]:
        schedule = await self.get(namespace, schedule_id)
        return tuple(await self._store.schedules.skips(namespace, schedule.schedule_id, _SKIPS))

    async def _id_of(self, namespace: str, schedule_id: str) -> str:
        """Returns the id of a schedule that is named by its id or its name."""
        check_name(namespace, "namespace")
        check_name(schedule_id, "schedule")
        if is_run_id(schedule_id):
            return check_id(schedule_id, "schedule id")
        found = await self._store.schedules.find(namespace, schedule_id)
        if found is None:
            raise _missing(namespace, schedule_id)
        return found

    def _check_options(self, asked: CreateSchedule | UpdateSchedule | Declaration) -> None:
        if asked.input is not None:
            check_bytes(asked.input, "input", self._payload_bytes)
        if asked.max_catchup is not None:
            check_catchup(asked.max_catchup)
        if asked.overlap is not None:
            check_overlap(asked.overlap)
        if asked.jitter is not None:
            check_jitter(asked.jitter)
        if asked.priority is not None:
            check_number(asked.priority, "priority", 0, PRIORITY_LIMIT)
        if asked.timeout is not None:
            check_span(asked.timeout, "timeout", 1, LONGEST)
        if asked.retry_policy is not None:
            check_policy(asked.retry_policy)
        if asked.limit_key:
            check_name(asked.limit_key, "limit_key")
        if not isinstance(asked, Declaration) and asked.tags is not None:
            check_tags(asked.tags)


def _check_handler(name: str | None, queue: str | None) -> None:
    if name is not None or queue is not None:
        check_handler(name, queue)


def _check_own_name(name: str) -> None:
    check_name(name, "name")
    if is_run_id(name):
        raise InvalidRequest(f"name: {name} looks like the id of a schedule; choose one that people can tell from it")


def _missing(namespace: str, schedule_id: str) -> KagziError:
    return NotFound(f"there is no schedule {schedule_id} in namespace {namespace}")
