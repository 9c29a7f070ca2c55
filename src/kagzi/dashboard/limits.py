"""What holds runs back: limits and pauses of queues, workflows and the namespace, and how many wait."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any, Final

from msgspec import Meta, Struct

from kagzi.core.flow import MOST_CONCURRENCY, FlowLimit, Scope
from kagzi.core.limits import REASON_CHARACTERS, check_name
from kagzi.core.rate import MOST_COUNT, RateLimit, read_rate
from kagzi.core.run import RunStatus
from kagzi.dashboard.asking import Field, Question, Subject
from kagzi.dashboard.shell import may, page, path_to
from kagzi.dashboard.system import PlainQuery
from kagzi.http.call import Call, Html, Redirect
from kagzi.http.fields import Name
from kagzi.http.flow import pause, resume
from kagzi.http.problems import BadField, naming

_Most = Annotated[int, Meta(ge=1, le=MOST_CONCURRENCY)]
_Rate = Annotated[str, Meta(max_length=40)]


class Line(Struct, frozen=True):
    """A row of the page: something that holds runs back, in words; `running` and `pending` are runs of it, at least so
    many if there are more than were counted."""

    limit: FlowLimit
    at_once: str
    begin: str
    notes: tuple[str, ...]
    running: int
    pending: int
    at_least: bool


async def show_limits(call: Call[Any, None]) -> Html:
    found = await call.engine.limits.list(call.namespace)
    counts: Counter[tuple[Scope, str, RunStatus]] = Counter()
    uncertain: set[tuple[Scope, str]] = set()
    if found:
        for run in await call.engine.admin.count_runs(call.namespace, live=True):
            for scope, name in (
                (Scope.QUEUE, run.task_queue),
                (Scope.WORKFLOW, run.workflow_type),
                (Scope.NAMESPACE, ""),
            ):
                counts[scope, name, run.status] += run.count
                if run.at_least:
                    uncertain.add((scope, name))
    lines = [
        Line(
            limit,
            _numbers(limit.most, limit.key_most),
            _numbers(_text(limit.effective_rate), _text(limit.effective_key_rate)),
            _notes(limit),
            counts[limit.scope, limit.name, RunStatus.RUNNING],
            counts[limit.scope, limit.name, RunStatus.PENDING],
            (limit.scope, limit.name) in uncertain,
        )
        for limit in found
    ]
    return await page(
        call, "limits.html", title="Limits", tab="/limits", live="", lines=lines, manages=may(call, "POST /limits/set")
    )


def _text(rate: RateLimit | None) -> str | None:
    return None if rate is None else rate.text


def _numbers(most: object, of_each_key: object) -> str:
    said = [None if most is None else f"{most}", None if of_each_key is None else f"{of_each_key} of each key"]
    return ", ".join(filter(None, said)) or "–"


def _notes(limit: FlowLimit) -> tuple[str, ...]:
    """Returns notes on who has set a limit, where that is not plain."""
    notes = []
    if limit.is_set:
        notes.append("set by hand")
    if limit.is_declared:
        notes.append("declared by workers")
    if limit.fair:
        notes.append("keys take turns")
    if limit.shares is not None:
        notes.append(f"counts for {limit.shares}")
    return tuple(notes)


class LimitQuery(PlainQuery, frozen=True, kw_only=True, forbid_unknown_fields=True):
    scope: Scope = Scope.QUEUE
    name: Name | None = None


async def _known(call: Call[Any, Any]) -> FlowLimit | None:
    query = call.query
    found = await call.engine.limits.list(call.namespace)
    return next((each for each in found if (each.scope, each.name) == (query.scope, query.name or "")), None)


class _Change(Question, frozen=True, kw_only=True):
    """A question about one limit, which the address names; the form says it again."""

    async def subject(self, call: Call[Any, Any]) -> Subject:
        query = call.query
        if query.scope is not Scope.NAMESPACE:
            with naming("name"):
                check_name(query.name or "", "name")
        named = call.namespace if query.scope is Scope.NAMESPACE else query.name
        about = f"{query.scope.value} {named}"
        return Subject(about=about, path="/limits", tab="/limits", target=f"/limits/{self.verb}")

    async def fields_for(self, call: Call[Any, Any]) -> tuple[Field, ...]:
        return (
            Field(name="scope", label="", value=call.query.scope.value, hidden=True),
            Field(name="name", label="", value=call.query.name or "", hidden=True),
            *self.fields,
        )


class LimitForm(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    scope: Scope
    name: Name
    concurrency: _Most | None = None
    key_concurrency: _Most | None = None
    rate: _Rate | None = None
    key_rate: _Rate | None = None
    burst: Annotated[int, Meta(ge=1, le=MOST_COUNT)] = 1


class _Set(Question, frozen=True, kw_only=True):
    """Setting a limit, of something that the address names or the form."""

    async def subject(self, call: Call[Any, Any]) -> Subject:
        named = call.query.name
        about = "a queue or a workflow" if named is None else f"{call.query.scope.value} {named}"
        return Subject(about=about, path="/limits", tab="/limits", target="/limits/set")

    async def fields_for(self, call: Call[Any, Any]) -> tuple[Field, ...]:
        query, known = call.query, await _known(call)
        rate = None if known is None else known.rate or known.key_rate

        def value(name: str) -> str:
            found = None if known is None else getattr(known, name)
            return "" if found is None else str(found)

        def rate_value(name: str) -> str:
            found: RateLimit | None = None if known is None else getattr(known, name)
            return "" if found is None else found.text.replace(",", "").replace(" in ", "/")

        return (
            Field(name="scope", label="Of a", value=query.scope.value, choices=(Scope.QUEUE, Scope.WORKFLOW)),
            Field(name="name", label="Name", value=query.name or "", required=True),
            Field(name="concurrency", label="Runs at once", value=value("concurrency"), kind="number"),
            Field(
                name="key_concurrency",
                label="Runs of each key at once",
                value=value("key_concurrency"),
                kind="number",
                hint="of a workflow, whose runs have keys",
            ),
            Field(name="rate", label="Runs that begin", value=rate_value("rate"), hint="such as 100/1m"),
            Field(name="key_rate", label="Runs of each key that begin", value=rate_value("key_rate")),
            Field(
                name="burst",
                label="Burst",
                value=str(1 if rate is None else rate.burst),
                kind="number",
                hint="how many may begin at once after a lull",
            ),
        )

    async def act(self, call: Call[Any, LimitForm]) -> Redirect:
        body = call.body
        call.targets = (target_of(call),)
        rates = {}
        for field in ("rate", "key_rate"):
            with naming(field):
                given = getattr(body, field)
                rates[field] = None if given is None else read_rate(given, body.burst, field)
        if (body.concurrency, body.key_concurrency, *rates.values()) == (None, None, None, None):
            raise BadField("concurrency", "say how many run at once, or how many begin; to take a limit back, clear it")
        with naming("key_concurrency" if body.key_concurrency is not None else "key_rate"):
            await call.engine.limits.set(
                call.namespace,
                body.scope,
                body.name,
                concurrency=body.concurrency,
                key_concurrency=body.key_concurrency,
                **rates,
            )
        return Redirect(path_to(call, "/limits", done="set-limit"))


def target_of(call: Call[Any, Any]) -> str:
    """Returns what is changed, as the audit log says it."""
    return f"{call.body.scope.value} {call.body.name or call.namespace}"


class NamedForm(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    scope: Scope
    name: Name | None = None


class PauseForm(NamedForm, frozen=True, kw_only=True, forbid_unknown_fields=True):
    reason: Annotated[str, Meta(max_length=REASON_CHARACTERS)] = ""


class _Clear(_Change, frozen=True, kw_only=True):
    async def act(self, call: Call[Any, NamedForm]) -> Redirect:
        call.targets = (target_of(call),)
        with naming("name"):
            await call.engine.limits.clear(call.namespace, call.body.scope, call.body.name or "")
        return Redirect(path_to(call, "/limits", done="clear-limit"))


class _Switch(_Change, frozen=True, kw_only=True):
    async def act(self, call: Call[Any, Any]) -> Redirect:
        call.targets = (target_of(call),)
        switch = pause if self.verb == "pause" else resume
        await switch(call, call.namespace, call.body.scope, call.body.name or "")
        return Redirect(path_to(call, "/limits", done=f"{self.verb}-limit"))


SET: Final = _Set(
    verb="set",
    button="Set limit",
    consequence="At most so many of its runs run at once over all workers, or begin in a time. What runs already goes "
    "on; the others wait for their turn. It comes before what workers declare. A field that is left empty stays as "
    "it is.",
    form=LimitForm,
)
CLEAR: Final = _Clear(
    verb="clear",
    button="Clear limit",
    consequence="What was set by hand is taken back, and runs that have waited for it are handed out. What workers "
    "declare counts again.",
    form=NamedForm,
)
PAUSE: Final = _Switch(
    verb="pause",
    button="Pause",
    consequence="No run of it is handed to a worker from now on. What runs goes on until it ends or waits. Runs can be "
    "started all the same, and wait; deadlines and schedules go on.",
    form=PauseForm,
    fields=(Field(name="reason", label="Reason", hint="shown with every run that waits"),),
)
RESUME: Final = _Switch(
    verb="resume",
    button="Resume",
    consequence="Workers take its runs again, at once.",
    form=NamedForm,
)
