"""Versions of workflows."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Annotated

from msgspec import Meta, Struct

from kagzi.core.versions import Versions
from kagzi.http.call import Call, Namespaced
from kagzi.http.fields import TEXT, Name
from kagzi.http.problems import naming
from kagzi.ports.documents.reports import ReportDocument, report_document
from kagzi.ports.documents.versions import InterfaceDocument, VersionDocument, interface_document, version_document


class VersionsQuery(Namespaced, frozen=True, kw_only=True, forbid_unknown_fields=True):
    workflow: Annotated[Name | None, Meta(description="Only versions of this workflow.")] = None


class VersionList(Struct, frozen=True, kw_only=True):
    """Versions by workflow, the newest first; `more`: there are others, so name a workflow."""

    versions: tuple[VersionDocument, ...]
    more: bool


async def list_versions(call: Call[VersionsQuery, None]) -> VersionList:
    return await _listed(call.engine.versions.list(call.namespace, call.query.workflow))


class InterfaceQuery(Namespaced, frozen=True, kw_only=True, forbid_unknown_fields=True):
    version: Annotated[Name | None, Meta(description="Without one: what a start gets that names none.")] = None


async def get_interface(call: Call[InterfaceQuery, None]) -> InterfaceDocument:
    found = await call.engine.versions.describe(call.namespace, call.path["workflow"], call.query.version)
    return interface_document(found)


async def get_report(call: Call[Namespaced, None]) -> ReportDocument:
    return report_document(await call.engine.versions.report(call.namespace, call.path["workflow"]))


class DefaultVersionBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Chooses a default version. Without one, starts get the newest version that workers have offered. `force` is for
    one that no worker has offered yet."""

    workflow: Name
    version: Name | None = None
    force: bool = False


async def set_default_version(call: Call[Namespaced, DefaultVersionBody]) -> VersionList:
    body = call.body
    call.targets = (f"workflow {body.workflow}",)
    with naming("version"):
        await call.engine.versions.set_default(call.namespace, body.workflow, body.version, force=body.force)
    return await _listed(call.engine.versions.list(call.namespace, body.workflow))


class MoveBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A call looks at a bounded part of what waits; `after` is what the call before has answered. `force` is for a
    version that no worker has offered yet."""

    workflow: Name
    from_version: Name
    to_version: Name
    dry_run: Annotated[bool, Meta(description="Count them, and change nothing.")] = False
    force: bool = False
    after: Annotated[str, Meta(max_length=1000, extra_json_schema=TEXT)] = ""


class Moved(Struct, frozen=True, kw_only=True):
    """How many runs have the other version now, or would have. `after` is for the next call; null at the end."""

    moved: int
    after: str | None


async def move_runs(call: Call[Namespaced, MoveBody]) -> Moved:
    body = call.body
    call.targets = (f"workflow {body.workflow}",)
    with naming("after" if body.after and body.from_version != body.to_version else "to_version"):
        page = await call.engine.versions.move(
            call.namespace,
            body.workflow,
            body.from_version,
            body.to_version,
            dry_run=body.dry_run,
            force=body.force,
            after=body.after,
        )
    return Moved(moved=page.moved, after=page.after)


async def _listed(found: Awaitable[Versions]) -> VersionList:
    versions = await found
    return VersionList(versions=tuple([version_document(each) for each in versions.items]), more=versions.more)
