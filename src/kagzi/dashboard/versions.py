"""Versions of workflows: what depends on each, which one starts get, and moving runs to another."""

from __future__ import annotations

from typing import Any, Final

from msgspec import Struct

from kagzi.core.instant import SECOND
from kagzi.core.versions import WorkflowVersion
from kagzi.dashboard.asking import Field, Question, Subject
from kagzi.dashboard.shell import may, page, path_to
from kagzi.dashboard.system import OURS, PlainQuery
from kagzi.errors import NotFound
from kagzi.http.call import Call, Html, Redirect
from kagzi.http.fields import Name
from kagzi.http.problems import naming

_LONGEST_MOVE: Final = 20 * SECOND  # what is left after that is moved when the form is sent again


class VersionsQuery(PlainQuery, frozen=True, kw_only=True, forbid_unknown_fields=True):
    workflow: Name | None = None


async def show_versions(call: Call[VersionsQuery, None]) -> Html:
    found = await call.engine.versions.list(call.namespace, call.query.workflow)
    workflows: dict[str, list[WorkflowVersion]] = {}
    for each in found.items:
        if each.workflow_type.startswith(OURS) and call.query.workflow is None:
            continue
        workflows.setdefault(each.workflow_type, []).append(each)
    return await page(
        call,
        "versions.html",
        title="Versions",
        tab="/versions",
        live="",
        workflows=workflows,
        more=found.more,
        workflow=call.query.workflow,
        manages=may(call, "POST /versions/move"),
    )


class VersionQuery(PlainQuery, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Chooses a version of a workflow; without one the newest that workers offer."""

    workflow: Name
    version: Name | None = None


async def _version(call: Call[VersionQuery, None]) -> WorkflowVersion:
    found = await call.engine.versions.list(call.namespace, call.query.workflow)
    for each in found.items:
        if each.version == call.query.version:
            return each
    raise NotFound(f"there is no version {call.query.version} of workflow {call.query.workflow}")


class DefaultForm(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    workflow: Name
    version: Name | None = None


class _Default(Question, frozen=True, kw_only=True):
    async def subject(self, call: Call[Any, Any]) -> Subject:
        named = f"version {call.query.version}" if call.query.version else "the newest that workers offer"
        about = f"{call.query.workflow}: {named}"
        return Subject(about=about, path="/versions", tab="/versions", target="/versions/default")

    async def fields_for(self, call: Call[Any, Any]) -> tuple[Field, ...]:
        return (
            Field(name="workflow", label="", value=call.query.workflow, hidden=True),
            Field(name="version", label="", value=call.query.version or "", hidden=True),
        )

    async def act(self, call: Call[Any, DefaultForm]) -> Redirect:
        body = call.body
        call.targets = (f"workflow {body.workflow}",)
        with naming("version"):
            await call.engine.versions.set_default(call.namespace, body.workflow, body.version)
        return Redirect(path_to(call, "/versions", done="default-version"))


class MoveForm(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    workflow: Name
    from_version: Name
    to_version: Name


class _Move(Question, frozen=True, kw_only=True):
    async def subject(self, call: Call[Any, Any]) -> Subject:
        version = await _version(call)
        waiting = f"{version.pending + version.sleeping:,}{'+' if version.at_least else ''}"
        about = f"{version.workflow_type}, version {version.version}: {waiting} runs wait or sleep"
        return Subject(about=about, path="/versions", tab="/versions", target="/versions/move")

    async def fields_for(self, call: Call[Any, Any]) -> tuple[Field, ...]:
        found = await call.engine.versions.list(call.namespace, call.query.workflow)
        others = [each.version for each in found.items if each.version not in (None, call.query.version)]
        return (
            Field(name="workflow", label="", value=call.query.workflow, hidden=True),
            Field(name="from_version", label="", value=call.query.version or "", hidden=True),
            Field(
                name="to_version",
                label="To version",
                value=next((str(each) for each in others), ""),
                hint=f"known are {', '.join(map(str, others))}" if others else "no other version is known",
                required=True,
            ),
        )

    async def act(self, call: Call[Any, MoveForm]) -> Redirect:
        body, clock = call.body, call.host.clock
        call.targets = (f"workflow {body.workflow}",)
        moved, after, until = 0, "", clock.now() + _LONGEST_MOVE
        while True:
            with naming("to_version"):
                part = await call.engine.versions.move(
                    call.namespace, body.workflow, body.from_version, body.to_version, after=after
                )
            moved += part.moved
            if part.after is None:
                return Redirect(path_to(call, "/versions", workflow=body.workflow, done="move", many=moved))
            if clock.now() >= until:
                return Redirect(path_to(call, "/versions", workflow=body.workflow, done="move-part", many=moved))
            after = part.after


DEFAULT: Final = _Default(
    verb="default",
    button="Set default version",
    consequence="Starts that name no version get this one, everywhere within a second. Runs that are there keep the "
    "version they have.",
    form=DefaultForm,
)
MOVE: Final = _Move(
    verb="move",
    button="Move runs",
    consequence="Runs that wait or sleep go on in the other version: its code is replayed over what they have "
    "recorded, and a run whose recorded steps it does not make fails. Runs that a worker holds are left alone. In a "
    "terminal `kagzi versions move WORKFLOW --from OLD --to NEW --check APP` tries that before it moves anything.",
    form=MoveForm,
    grave=True,
)
