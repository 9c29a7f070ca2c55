"""The frame around every page, and how templates are filled."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from jinja2.ext import Extension
from msgspec import Struct

from kagzi.access import ACTIONS
from kagzi.core.health import HealthStatus
from kagzi.core.instant import Instant
from kagzi.core.namespace import DEFAULT_NAMESPACE
from kagzi.core.run import RunStatus
from kagzi.dashboard import text
from kagzi.dashboard.assets import asset_url
from kagzi.errors import KagziError, PayloadTooLarge, PermissionDenied
from kagzi.http.call import Call, Html
from kagzi.http.pages import FORM_TOKEN, Trouble
from kagzi.version import __version__

_NAMESPACES: Final = 100
PAGE_CHARACTERS: Final = 8 * 1024 * 1024
_PIECES: Final = 200  # of a template that are filled in one go
_BETWEEN: Final = 256 * 1024  # characters of a page, likewise
# As words and signs: colour alone tells nothing to many.
_SIGNS: Final = {
    RunStatus.PENDING: "◌",
    RunStatus.RUNNING: "▶",
    RunStatus.SLEEPING: "☾",
    RunStatus.COMPLETED: "✓",
    RunStatus.FAILED: "✗",
    RunStatus.TIMED_OUT: "◔",
    RunStatus.CANCELLED: "⊘",
    RunStatus.SCHEDULED: "◷",
    RunStatus.PAUSED: "‖",
}
# What a page says after a form was sent, by `done` in its address.
_DONE: Final = {
    "cancel": "The run was asked to end.",
    "terminate": "The run was ended.",
    "retry": "This run goes on where the other one failed.",
    "rerun": "This is the new run, from the beginning.",
    "wake": "The run goes on as if its time had come.",
    "awake": "The run does not wait for a moment; nothing was changed.",
    "signal": "The signal was sent.",
    "start": "The run was started.",
    "found": "There was a run with this id already; this is it.",
    "over": "The run had finished before; nothing was changed.",
    "pause-schedule": "The schedule is paused: it fires nothing.",
    "resume-schedule": "The schedule fires again, from now on.",
    "pause-queue": "The queue is paused: none of its runs is handed out.",
    "resume-queue": "The queue is open: its runs are handed out again.",
    "set-limit": "The limit counts from now on.",
    "clear-limit": "What was set by hand was taken back.",
    "pause-limit": "None of its runs is handed out.",
    "resume-limit": "Its runs are handed out again.",
    "new-schedule": "The schedule was made.",
    "edit-schedule": "The schedule was changed.",
    "delete-schedule": "The schedule is gone; the runs it has started stay.",
    "default-version": "Starts that name no version get the chosen one within a second.",
    "move": "{many:,} runs go on in the other version.",
    "move-part": "{many:,} runs go on in the other version; there are more, so move them again.",
    "fork": "This is the new run; the other one stays as it is.",
    "job": "The job is under way.",
    "cancel-job": "The job has ended.",
    "drain": "The worker was told to take nothing new.",
}


class Tab(Struct, frozen=True):
    path: str
    name: str
    key: str


TABS: Final = (
    Tab("/", "Overview", "o"),
    Tab("/runs", "Runs", "r"),
    Tab("/jobs", "Jobs", "j"),
    Tab("/workflows", "Workflows", "f"),
    Tab("/versions", "Versions", "v"),
    Tab("/schedules", "Schedules", "c"),
    Tab("/queues", "Queues", "q"),
    Tab("/limits", "Limits", "l"),
    Tab("/workers", "Workers", "w"),
    Tab("/system", "System", "s"),
)


class _TableRoles(Extension):
    """Says of everything in a table what it is: where there is no room for columns the style makes lines of its rows,
    and then browsers do not tell any more."""

    _ROLES: Final = {"table": "table", "thead": "rowgroup", "tbody": "rowgroup", "tr": "row", "td": "cell"}
    _TAG: Final = re.compile(r'<(table|thead|tbody|tr|td|th(?= scope="(row|col)"))(?=[ >])')

    def preprocess(self, source: str, name: str | None, filename: str | None = None) -> str:  # noqa: ARG002
        def with_role(tag: re.Match[str]) -> str:
            role = self._ROLES.get(tag[1]) or f"{'row' if tag[2] == 'row' else 'column'}header"
            return f'{tag[0]} role="{role}"'

        return self._TAG.sub(with_role, source)


def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("kagzi.dashboard"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
        extensions=[_TableRoles],
    )
    made.filters.update(
        exact=text.exact,
        machine=text.machine,
        span=text.length,
        soft=text.soft,
        payload=text.payload,
        error_line=text.error_line,
        error_report=text.error_report,
        sign=lambda status: _SIGNS.get(status, "•"),
        word=lambda status: str(status).lower().replace("_", " "),
        segment=lambda value: quote(str(value), safe=""),
    )
    made.globals.update(asset=asset_url, tabs=TABS, version=__version__, form_token_name=FORM_TOKEN)
    return made


_TEMPLATES: Final = _environment()


class Links:
    """Addresses of pages, which keep to the base path and to the namespace that is looked at."""

    def __init__(self, base: str, namespace: str) -> None:
        self.base = base
        self._namespace = namespace

    def __call__(self, path: str, query: Mapping[str, Any] | None = None, **more: Any) -> str:
        fields = {
            "namespace": self._namespace if self._namespace != DEFAULT_NAMESPACE else None,
            **(query or {}),
            **more,
        }
        given = {name: value for name, value in fields.items() if value not in (None, "")}
        return f"{self.base}{path}{f'?{urlencode(given)}' if given else ''}"


def may(call: Call[Any, Any], action: str) -> bool:
    """Returns whether the caller may do this here: what would be refused is not offered."""
    caller = call.caller
    if call.read_only and not action.startswith("GET "):
        return False
    if caller is None or caller.key_id is None:
        return True
    rule = ACTIONS[action]
    return caller.role in rule.roles and not (rule.everywhere and caller.namespace is not None)


def links_of(call: Call[Any, Any]) -> Links:
    return Links(call.base, call.namespace)


def path_to(call: Call[Any, Any], path: str, **query: Any) -> str:
    """Returns an address for a Redirect, which knows the base path itself."""
    return Links("", call.namespace)(path, **query)


async def page(
    call: Call[Any, Any], template: str, *, title: str, tab: str = "", status: int = 200, **more: Any
) -> Html:
    """Fills a template. `title` names the page in its heading and in the browser."""
    now = call.host.clock.now()
    try:
        health = (await call.host.checkups.health()).status
    except KagziError:
        health = HealthStatus.UNHEALTHY
    context = {
        "title": title,
        "tab": tab,
        "now": now,
        "link": links_of(call),
        "namespace": call.namespace,
        "namespaces": await _namespaces(call),
        "confined": call.confined,
        "health": health,
        "role": None if call.caller is None or call.caller.key_id is None else call.caller.role,
        "read_only": call.read_only,
        "may": lambda action: may(call, action),
        "form_token": call.host.sessions.form_token(call.session),
        "relative": lambda instant: text.relative(instant, now),
        "done": _done(call.query),
        "live": None,
        "every": False,
        **more,
    }
    return Html(await _filled(template, context), status)


async def _filled(template: str, context: Mapping[str, Any]) -> bytes:
    """Fills a template piece by piece, and lets others run between them: a long page takes its time. Refuses one that
    would be too long for a browser."""
    pieces: list[str] = []
    size = before = 0
    for piece in _TEMPLATES.get_template(template).generate(context):
        pieces.append(piece)
        size += len(piece)
        if len(pieces) % _PIECES == 0 or size - before > _BETWEEN:
            before = size
            await asyncio.sleep(0)
        if size > PAGE_CHARACTERS:
            raise PayloadTooLarge(f"this page would be longer than {PAGE_CHARACTERS:,} characters")
    return "".join(pieces).encode()


def _done(query: Any) -> str | None:
    said = _DONE.get(getattr(query, "done", None) or "")
    return None if said is None else said.format(many=getattr(query, "many", None) or 0)


def plain_page(template: str, **context: Any) -> bytes:
    """Fills a template without anything around it that the engine would have to be asked for."""
    return _TEMPLATES.get_template(template).render(context).encode()


def trouble(about: Trouble) -> bytes:
    return plain_page(
        "trouble.html",
        title=HTTPStatus(about.status).phrase,
        trouble=about,
        link=Links(about.base, DEFAULT_NAMESPACE),
    )


async def _namespaces(call: Call[Any, Any]) -> tuple[str, ...]:
    """Returns the namespaces that can be chosen; a key for one of them has no choice."""
    if call.confined:
        return ()
    try:
        found = await call.engine.namespaces.list(page_size=_NAMESPACES)
    except PermissionDenied:  # a server behind gRPC: the app's own key is for one of them
        return ()
    names = [each.namespace for each in found.items]
    return tuple(sorted({*names, call.namespace, DEFAULT_NAMESPACE}))


def since(instant: Instant | None, now: Instant) -> str:
    return "" if instant is None else text.relative(instant, now)
