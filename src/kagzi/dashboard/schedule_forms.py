"""Making and changing schedules: a form whose times are tried before they are kept."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from kagzi.api.schedules import CreateSchedule, UpdateSchedule
from kagzi.core.cron import EXPRESSION_CHARACTERS
from kagzi.core.duration import format_span
from kagzi.core.instant import Span
from kagzi.core.limits import DEFAULT_QUEUE, PAYLOAD_BYTES
from kagzi.core.lineage import schedule_input
from kagzi.core.schedule import DEFAULT_CATCHUP, MOST_CATCHUP, Overlap, Schedule, check_jitter
from kagzi.dashboard.actions import read_json_field
from kagzi.dashboard.asking import EmptyForm, Field, Question, Subject
from kagzi.dashboard.decoding import schedule_arguments, written_payload
from kagzi.dashboard.schedules import NextFiring, preview, schedule_of
from kagzi.dashboard.shell import page, path_to
from kagzi.dashboard.system import PlainQuery
from kagzi.dashboard.text import editable, uneditable
from kagzi.errors import Conflict, InvalidRequest
from kagzi.http.apart import apart
from kagzi.http.call import Call, Html, Redirect
from kagzi.http.fields import Name
from kagzi.http.lengths import length_of, timeout_of
from kagzi.http.problems import BadField, naming
from kagzi.http.schedules import check_times

_Length = Annotated[str, Meta(max_length=100)]


class ScheduleForm(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fields of a schedule. Those that are left empty are absent."""

    workflow: Name
    cron: Annotated[str, Meta(max_length=EXPRESSION_CHARACTERS)]
    tz: Name = "UTC"
    name: Name | None = None
    input: Annotated[str, Meta(max_length=PAYLOAD_BYTES)] = "[]"
    queue: Name | None = None
    version: Name | None = None
    overlap: Overlap = Overlap.ALLOW
    catchup: Annotated[int, Meta(ge=0, le=MOST_CATCHUP)] = DEFAULT_CATCHUP
    jitter: _Length | None = None
    timeout: _Length | None = None
    schedule_id: Name | None = None


class ScheduleFormQuery(PlainQuery, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The form whose times are tried: it is sent here before it is sent for good."""

    workflow: Name | None = None
    cron: Annotated[str, Meta(max_length=EXPRESSION_CHARACTERS)] | None = None
    tz: Name | None = None
    name: Name | None = None
    input: Annotated[str, Meta(max_length=PAYLOAD_BYTES)] | None = None
    queue: Name | None = None
    version: Name | None = None
    overlap: Overlap | None = None
    catchup: Annotated[str, Meta(max_length=10)] | None = None
    jitter: _Length | None = None
    timeout: _Length | None = None
    schedule_id: Name | None = None


async def ask_new_schedule(call: Call[ScheduleFormQuery, None]) -> Html:
    values = {
        "tz": "UTC",
        "input": "[]",
        "catchup": str(DEFAULT_CATCHUP),
        "overlap": Overlap.ALLOW.value,
    }
    values["schedule_id"] = call.host.ids.run_id()  # so that a form that is sent twice makes one
    return await _form(call, None, values | _given(call.query))


async def ask_edit_schedule(call: Call[ScheduleFormQuery, None]) -> Html:
    schedule = await schedule_of(call)
    return await _form(call, schedule, await _values(schedule) | _given(call.query))


def _given(record: Struct) -> dict[str, str]:
    """Returns what has been written into the form."""
    names = [name for name in ScheduleForm.__struct_fields__ if getattr(record, name) is not None]
    return {name: str(getattr(record, name)) for name in names}


async def _values(schedule: Schedule) -> dict[str, str]:
    def length(span: Span | None) -> str:
        return format_span(span) if span else ""

    return {
        "workflow": schedule.workflow_type,
        "cron": schedule.cron_expr,
        "tz": schedule.timezone,
        "input": await editable(schedule.input) or "",
        "queue": schedule.task_queue,
        "version": schedule.version or "",
        "overlap": schedule.overlap.value,
        "catchup": str(schedule.max_catchup),
        "jitter": length(schedule.jitter),
        "timeout": length(schedule.timeout),
    }


async def _fields(values: dict[str, str], wrong: dict[str, str], schedule: Schedule | None) -> list[Field]:
    hint = "JSON: an array is arguments by position, an object by name"
    if schedule is not None and await editable(schedule.input) is None:
        hint = f"{uneditable(schedule.input)}; left empty it stays as it is, else JSON"

    def field(name: str, label: str, hint: str = "", **more: Any) -> Field:
        return Field(name=name, label=label, hint=hint, value=values.get(name, ""), error=wrong.get(name, ""), **more)

    named = [field("name", "Name", "what people call it; unique in its namespace")] if schedule is None else []
    return [
        *named,
        field("workflow", "Workflow", required=True),
        field("cron", "When", "5 cron fields, 6 with seconds, @daily, or every 15m", required=True),
        field("tz", "Time zone", "such as Europe/Berlin", required=True),
        field("input", "Input", hint, long=True),
        field(
            "queue",
            "Queue",
            "without one: that of the workflow" if schedule is None else "",
            required=schedule is not None,
        ),
        field("version", "Version", "without one: the default when it fires"),
        field("overlap", "While a run of it is live", choices=tuple(each.value for each in Overlap)),
        field("catchup", "Missed firings that are made up for, at most"),
        field("jitter", "Begin later by up to", "such as 30s; spreads many schedules of one minute"),
        field("timeout", "A run of it may take", "such as 2h; without it as long as it likes"),
        *([field("schedule_id", "", hidden=True)] if schedule is None else []),
    ]


async def _form(
    call: Call[Any, Any], schedule: Schedule | None, values: dict[str, str], error: Exception | None = None
) -> Html:
    where = getattr(error, "field", "") if error is not None else ""
    wrong = {where: str(error)} if where else {}
    zone = values.get("tz") or "UTC"
    firings: list[NextFiring] = []
    if values.get("cron"):
        try:
            check_times(values["cron"], zone)
            with naming("cron"):
                firings = await preview(values["cron"], zone, call.host.clock.now())
        except BadField as bad:
            wrong.setdefault(bad.field, str(bad))
    return await page(
        call,
        "schedule_form.html",
        title="New schedule" if schedule is None else f"Change {schedule.name or schedule.schedule_id}",
        tab="/schedules",
        status=200 if error is None else 409 if isinstance(error, Conflict) else 400,
        schedule=schedule,
        path="/new-schedule" if schedule is None else f"/schedules/{schedule.schedule_id}/edit",
        fields=await _fields(values, wrong, schedule),
        trouble=str(error) if error is not None and not where else "",
        firings=firings,
        wrong_times=wrong.get("cron") or wrong.get("tz"),
        zone=zone,
    )


def _jitter(text: str | None) -> Span:
    if text is None:
        return 0
    with naming("jitter"):
        return check_jitter(length_of(text, "jitter"))


async def create_schedule(call: Call[PlainQuery, ScheduleForm]) -> Html | Redirect:
    body = call.body
    schedule_id = body.schedule_id or call.host.ids.run_id()
    call.targets = (f"schedule {schedule_id}",)
    try:
        check_times(body.cron, body.tz)
        context = schedule_input(call.namespace, body.name or schedule_id)
        asked = CreateSchedule(
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
            input=written_payload(call, await read_json_field(body.input, "input"), context),
            max_catchup=body.catchup,
            overlap=body.overlap,
            jitter=_jitter(body.jitter),
            timeout=timeout_of(body.timeout),
        )
        made = await call.engine.schedules.create(asked)
    except (InvalidRequest, Conflict) as error:
        if isinstance(error, Conflict) and body.name is not None:
            error = _Taken("name", str(error))
        return await _form(call, None, _given(body), error)
    return Redirect(path_to(call, f"/schedules/{made.schedule_id}", done="new-schedule"))


async def _written_input(call: Call[Any, ScheduleForm], schedule: Schedule, body: ScheduleForm) -> bytes:
    return written_payload(call, await read_json_field(body.input, "input"), schedule_arguments(schedule))


class _Taken(Conflict):
    """A Conflict, and the field that it is about."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


async def edit_schedule(call: Call[PlainQuery, ScheduleForm]) -> Html | Redirect:
    body, schedule = call.body, await schedule_of(call)
    before = await _values(schedule)
    after = dict.fromkeys(before, "") | _given(body)
    changed = {name for name, value in before.items() if after.get(name, "") != value}
    if "input" in changed and await apart(len(body.input or ""), _same_json, before["input"], body.input):
        changed.remove("input")  # browsers end lines in a way of their own
    try:
        check_times(body.cron, body.tz)
        if "timeout" in changed and body.timeout is None:
            raise BadField("timeout", "a timeout can be changed and not taken away; make another schedule without one")
        # What is as it was is left out: what code declares stays the code's.
        update = UpdateSchedule(
            namespace=call.namespace,
            schedule_id=schedule.schedule_id,
            workflow_type=body.workflow if "workflow" in changed else None,
            task_queue=body.queue if "queue" in changed else None,
            version=body.version or "" if "version" in changed else None,
            cron_expr=body.cron if "cron" in changed else None,
            timezone=body.tz if "tz" in changed else None,
            input=await _written_input(call, schedule, body) if "input" in changed else None,
            max_catchup=body.catchup if "catchup" in changed else None,
            overlap=body.overlap if "overlap" in changed else None,
            jitter=_jitter(body.jitter) if "jitter" in changed else None,
            timeout=timeout_of(body.timeout) if "timeout" in changed else None,
        )
        if changed:
            await call.engine.schedules.update(update)
    except InvalidRequest as error:
        return await _form(call, schedule, after, error)
    return Redirect(path_to(call, f"/schedules/{schedule.schedule_id}", done="edit-schedule"))


def _same_json(one: str, other: str) -> bool:
    try:
        return msgspec.json.format(one, indent=-1) == msgspec.json.format(other, indent=-1)
    except (msgspec.DecodeError, RecursionError):
        return False


class _Delete(Question, frozen=True, kw_only=True):
    async def subject(self, call: Call[Any, Any]) -> Subject:
        schedule = await schedule_of(call)
        about = f"schedule {schedule.name or schedule.schedule_id} of {schedule.workflow_type}"
        return Subject(about=about, path=f"/schedules/{schedule.schedule_id}", tab="/schedules")

    async def act(self, call: Call[Any, EmptyForm]) -> Redirect:
        await call.engine.schedules.delete(call.namespace, call.path["schedule_id"])
        return Redirect(path_to(call, "/schedules", done="delete-schedule"))


DELETE: Final = _Delete(
    verb="delete",
    button="Delete schedule",
    consequence="It fires nothing any more. The runs that it has started stay. One that code declares comes back with "
    "the next worker that starts.",
    form=EmptyForm,
    grave=True,
)
