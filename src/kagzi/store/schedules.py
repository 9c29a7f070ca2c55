"""What both databases share of schedules: planning what fires, and deciding what a change drops."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from msgspec import Struct

from kagzi.api.operations import CancelAnswer
from kagzi.api.schedules import CreateSchedule, DeclareSchedule, UpdateSchedule
from kagzi.core.cron import parse_times
from kagzi.core.instant import Instant, Span, to_datetime
from kagzi.core.schedule import (
    AFTER_ERROR,
    MOST_COUNTED,
    MOST_SCHEDULES,
    ON_TIME,
    WHILE_DISABLED,
    Firing,
    Schedule,
    Skip,
    SkipReason,
    Template,
    decide,
    delay_of,
    firing_id,
    unfired,
)
from kagzi.core.tags import encode_tags
from kagzi.errors import Conflict, InvalidRequest, KagziError, LimitExceeded
from kagzi.store.protocol.changes import Recovered, Told
from kagzi.store.protocol.schedules import Fired, Turned


class Due(Struct, frozen=True, kw_only=True):
    """A schedule that the duty looks at, as its rows are under its lock."""

    namespace: str
    template: Template
    cron_expr: str
    timezone: str
    enabled: bool  # its namespace is


class Planned(Struct, frozen=True, kw_only=True):
    """A run to insert."""

    namespace: str
    schedule_id: str
    run_id: str
    external_id: str | None
    scheduled_for: Instant | None
    available_at: Instant


class Plan(Struct, frozen=True, kw_only=True):
    """What a turn makes of one schedule. With an `error`, or in a namespace that is disabled, nothing but `look_at`."""

    due: Due
    look_at: Instant | None
    runs: list[Planned] = []
    firing: Firing | None = None
    error: str | None = None

    @property
    def key(self) -> tuple[str, str]:
        return self.due.namespace, self.due.template.schedule_id

    @property
    def skipped(self) -> int:
        return 0 if self.firing is None else sum(skip.count for skip in self.firing.skipped)

    def next_look(self, inserted: Collection[str], now: Instant) -> Instant | None:
        """Returns when to look at the schedule again: at once if an instant still waits and none of the runs before it
        was inserted, because a backfill had made them. No end of a run will have the instant fire then."""
        waits = self.firing is not None and self.firing.buffered_for is not None
        if waits and self.runs and not any(run.run_id in inserted for run in self.runs):
            return now
        return self.look_at


def plan(due: Due, now: Instant, new_run_id: Callable[[], str], counted: int) -> Plan:
    """Decides about one schedule. What goes wrong with it must not keep the others from firing."""
    if not due.enabled:
        return Plan(due=due, look_at=now + WHILE_DISABLED)
    template = due.template
    try:
        firing = decide(parse_times(due.cron_expr, due.timezone), template, now, counted)
    except KagziError as error:  # a zone that is not known on this host
        return Plan(due=due, look_at=now + AFTER_ERROR, error=str(error))
    runs = [
        planned(
            due.namespace,
            template.schedule_id,
            new_run_id(),
            at,
            now + delay_of(template.schedule_id, at, template.jitter),
        )
        for at in firing.fire
    ]
    return Plan(due=due, look_at=firing.look_at, runs=runs, firing=firing)


def plan_all(found: Iterable[Due], now: Instant, new_run_id: Callable[[], str]) -> list[Plan]:
    """Decides about each of them. What all of them skip is counted one by one up to a bound."""
    plans: list[Plan] = []
    counted = MOST_COUNTED
    for due in found:
        plans.append(plan(due, now, new_run_id, counted))
        counted = max(1, counted - plans[-1].skipped)
    return plans


def planned(namespace: str, schedule_id: str, run_id: str, at: Instant | None, available_at: Instant) -> Planned:
    return Planned(
        namespace=namespace,
        schedule_id=schedule_id,
        run_id=run_id,
        external_id=None if at is None else firing_id(schedule_id, at),
        scheduled_for=at,
        available_at=available_at,
    )


def fired(
    plans: list[Plan],
    runs: list[Recovered],
    told: list[tuple[str, CancelAnswer]],
    woken: list[Told],
    now: Instant,
) -> Fired:
    """Returns the result of a turn by its plans; `runs` are those that were inserted."""
    inserted = {run.run_id for run in runs}
    return Fired(
        looked=len(plans),
        runs=runs,
        told=told,
        woken=woken,
        late=_lateness(plans, now),
        turns=_turns(plans, inserted),
        errors=[(*each.key, each.error) for each in plans if each.error],
    )


def _lateness(plans: list[Plan], now: Instant) -> Span | None:
    """Returns how late the latest firing is that is no catching up."""
    lates = [now - run.scheduled_for for each in plans for run in each.runs if run.scheduled_for is not None]
    return max([late for late in lates if late <= ON_TIME], default=None)


def _turns(plans: list[Plan], inserted: Collection[str]) -> list[Turned]:
    found = (
        Turned(
            namespace=each.due.namespace,
            schedule_id=each.due.template.schedule_id,
            started=sum(run.run_id in inserted for run in each.runs),
            skipped=each.skipped,
        )
        for each in plans
    )
    return [turn for turn in found if turn.started or turn.skipped]


def first_firing(cron_expr: str, timezone: str, after: Instant) -> Instant | None:
    return parse_times(cron_expr, timezone).after(after)


def dropped(buffered_for: Instant | None) -> list[Skip]:
    """Returns the firing that waited when its schedule was paused or changed."""
    return [] if buffered_for is None else [_alone(buffered_for)]


def not_fired(cron_expr: str, timezone: str, next_fire_at: Instant | None, now: Instant) -> list[Skip]:
    """Returns the firings that were due and had not fired when their schedule was paused or changed."""
    if next_fire_at is None or next_fire_at > now:
        return []
    try:
        return [unfired(parse_times(cron_expr, timezone), next_fire_at, now)]
    except KagziError:  # a zone that is not known here, which the change may put right
        return [_alone(next_fire_at)]


def _alone(instant: Instant) -> Skip:
    return Skip(first_at=instant, last_at=instant, count=1, reason=SkipReason.PAUSED)


def refuse_fired(next_fire_at: Instant | None, fired_until: Instant) -> InvalidRequest | None:
    if next_fire_at is None or next_fire_at > fired_until:
        return None
    return InvalidRequest(
        f"next_fire_at: {to_datetime(next_fire_at).isoformat()} has passed or fired; use backfill or trigger"
    )


def same_schedule(create: CreateSchedule, found: Schedule) -> bool:
    """Returns whether a schedule that has this id is the one that is asked for, because the request came twice."""
    return (
        all(
            getattr(create, field) == getattr(found, field)
            for field in CreateSchedule.__struct_fields__
            if field not in ("enabled", "input", "by_name", "other_queue")
        )
        and create.input == found.input
    )


def changed_template(update: UpdateSchedule) -> tuple[str | bytes | int | None, ...]:
    """Returns what an update writes to the template of its schedule, in the order of `update_template`."""
    return (
        update.task_queue,
        update.workflow_type,
        update.version,
        update.cron_expr,
        update.timezone,
        update.max_catchup,
        update.priority,
        update.retry_policy,
        update.on_failure,
        update.on_failure_queue,
        None if update.tags is None else encode_tags(update.tags) or "{}",
        update.limit_key,
    )


def created(declare: DeclareSchedule) -> CreateSchedule:
    """Returns the schedule to make where nothing has the declared name."""
    declared = declare.declaration
    return CreateSchedule(
        namespace=declare.namespace,
        schedule_id=declare.schedule_id,
        name=declared.name,
        workflow_type=declared.workflow_type,
        task_queue=declared.task_queue,
        cron_expr=declared.cron_expr,
        timezone=declared.timezone,
        input=declared.input,
        max_catchup=declared.max_catchup,
        overlap=declared.overlap,
        jitter=declared.jitter,
        priority=declared.priority,
        timeout=declared.timeout,
        retry_policy=declared.retry_policy,
        on_failure=declared.on_failure,
        on_failure_queue=declared.on_failure_queue,
        limit_key=declared.limit_key,
    )


def too_many(namespace: str) -> LimitExceeded:
    return LimitExceeded.lasting(
        f"there are {MOST_SCHEDULES:,} schedules in namespace {namespace}, and no more are allowed; delete some, or "
        "let one schedule start a workflow that does the work of many"
    )


def taken(create: CreateSchedule, by_id: bool) -> Conflict:
    if by_id:
        return Conflict(f"schedule id {create.schedule_id} belongs to another schedule")
    return Conflict(f"there is a schedule named {create.name!r} already in namespace {create.namespace}")
