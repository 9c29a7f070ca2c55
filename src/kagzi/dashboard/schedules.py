"""Schedules: when they fire, what became of it, and the forms to pause, resume and fire them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from itertools import chain
from typing import Annotated, Any, Final
from zoneinfo import ZoneInfo

from msgspec import Meta, Struct

from kagzi.api.schedules import UpdateSchedule
from kagzi.core.cron import Times, moved, parse_times, upcoming
from kagzi.core.instant import Instant, to_datetime
from kagzi.core.limits import REASON_CHARACTERS
from kagzi.core.schedule import Schedule
from kagzi.dashboard.asking import EmptyForm, Field, Question, Subject
from kagzi.dashboard.decoding import read_schedule
from kagzi.dashboard.shell import may, page, path_to
from kagzi.dashboard.system import PlainQuery
from kagzi.errors import KagziError
from kagzi.http.call import Call, Html, Redirect
from kagzi.http.problems import naming
from kagzi.http.runs import Token
from kagzi.ports.gradually import gradually

_ROWS: Final = 25
_NEXT: Final = 5
_RUNS: Final = 20


class SchedulesQuery(PlainQuery, frozen=True, kw_only=True, forbid_unknown_fields=True):
    page: Token | None = None


class ScheduleQuery(PlainQuery, frozen=True, kw_only=True, forbid_unknown_fields=True):
    page: Token | None = None


class NextFiring(Struct, frozen=True):
    """A firing to come; `note` says what daylight saving has done to it."""

    at: Instant
    local: str
    note: str | None


async def show_schedules(call: Call[SchedulesQuery, None]) -> Html:
    with naming("page"):
        found = await call.engine.schedules.list(call.namespace, page_size=_ROWS, page_token=call.query.page)
    return await page(
        call,
        "schedules.html",
        title="Schedules",
        tab="/schedules",
        live="" if call.query.page is None else None,
        found=found,
    )


async def show_schedule(call: Call[ScheduleQuery, None]) -> Html:
    schedules = call.engine.schedules
    schedule = await schedule_of(call)
    with naming("page"):
        runs = await schedules.runs(call.namespace, schedule.schedule_id, page_size=_RUNS, page_token=call.query.page)
    verbs = ("trigger", "pause") if schedule.enabled else ("trigger", "resume")
    return await page(
        call,
        "schedule.html",
        title=schedule.name or schedule.workflow_type,
        tab="/schedules",
        live="" if call.query.page is None else None,
        schedule=schedule,
        changes=may(call, "POST /schedules/{schedule_id}/edit"),
        verbs=[ACTIONS[verb] for verb in verbs if may(call, f"POST /schedules/{{schedule_id}}/{verb}")],
        firings=await _next_firings(schedule),
        runs=runs,
        skips=await schedules.skips(call.namespace, schedule.schedule_id),
    )


async def _next_firings(schedule: Schedule) -> list[NextFiring]:
    """Returns the next firings by the times of a schedule; the first may be one that somebody has chosen."""
    if schedule.next_fire_at is None:
        return []
    try:
        times, zone = parse_times(schedule.cron_expr, schedule.timezone), ZoneInfo(schedule.timezone)
    except KagziError:  # a zone that is not known on this host
        return []
    return await _firings(
        times, zone, chain((schedule.next_fire_at,), upcoming(times, schedule.next_fire_at, _NEXT - 1))
    )


async def preview(cron: str, timezone: str, now: Instant) -> list[NextFiring]:
    """Shows when these times would fire next."""
    times = parse_times(cron, timezone, "cron")
    return await _firings(times, ZoneInfo(timezone), upcoming(times, now, _NEXT))


async def _firings(times: Times, zone: ZoneInfo, instants: Iterable[Instant]) -> list[NextFiring]:
    return [
        NextFiring(at, to_datetime(at).astimezone(zone).strftime("%a %Y-%m-%d %H:%M:%S %Z"), moved(times, at))
        async for at in gradually(instants)
    ]


async def schedule_of(call: Call[Any, Any]) -> Schedule:
    return read_schedule(call, await call.engine.schedules.get(call.namespace, call.path["schedule_id"]))


class PauseForm(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    reason: Annotated[str, Meta(max_length=REASON_CHARACTERS)] = ""


async def _pause(call: Call[Any, PauseForm], schedule: Schedule) -> Redirect:
    reason = call.body.reason or None
    await call.engine.schedules.update(
        UpdateSchedule(namespace=call.namespace, schedule_id=schedule.schedule_id, enabled=False, pause_reason=reason)
    )
    return _to(call, schedule, "pause-schedule")


async def _resume(call: Call[Any, EmptyForm], schedule: Schedule) -> Redirect:
    await call.engine.schedules.update(
        UpdateSchedule(namespace=call.namespace, schedule_id=schedule.schedule_id, enabled=True)
    )
    return _to(call, schedule, "resume-schedule")


async def _trigger(call: Call[Any, EmptyForm], schedule: Schedule) -> Redirect:
    run_id = await call.engine.schedules.trigger(call.namespace, schedule.schedule_id, call.host.ids.run_id())
    return Redirect(path_to(call, f"/runs/{run_id}", done="start"))


def _to(call: Call[Any, Any], schedule: Schedule, done: str) -> Redirect:
    return Redirect(path_to(call, f"/schedules/{schedule.schedule_id}", done=done))


class ScheduleAction(Question, frozen=True, kw_only=True):
    """A question about a schedule."""

    do: Callable[[Call[Any, Any], Schedule], Awaitable[Redirect]]

    async def subject(self, call: Call[Any, Any]) -> Subject:
        schedule = await schedule_of(call)
        about = f"schedule {schedule.name or schedule.schedule_id} of {schedule.workflow_type}"
        return Subject(about=about, path=f"/schedules/{schedule.schedule_id}", tab="/schedules")

    async def act(self, call: Call[Any, Any]) -> Redirect:
        return await self.do(call, await schedule_of(call))


PAUSE: Final = ScheduleAction(
    verb="pause",
    label="Pause",
    button="Pause schedule",
    consequence="Nothing is fired until it is resumed, and what falls into the pause is not made up for. Runs that it "
    "has started go on.",
    form=PauseForm,
    do=_pause,
    fields=(Field(name="reason", label="Reason", hint="shown to those who look at it"),),
)
RESUME: Final = ScheduleAction(
    verb="resume",
    label="Resume",
    button="Resume schedule",
    consequence="It fires again, from now on.",
    form=EmptyForm,
    do=_resume,
)
TRIGGER: Final = ScheduleAction(
    verb="trigger",
    label="Trigger now",
    button="Trigger schedule",
    consequence="A run is started now, beside the plan: also while the schedule is paused, and whatever its rule for "
    "overlapping runs says. Its next firing stays as it is.",
    form=EmptyForm,
    do=_trigger,
)
ACTIONS: Final = {action.verb: action for action in (PAUSE, RESUME, TRIGGER)}
