"""Versions of workflows."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Annotated

from msgspec import Meta, Struct

from kagzi.core.versions import Versions
from kagzi.http.call import Call, Namespaced
from kagzi.http.fields import Name
from kagzi.http.problems import naming
from kagzi.ports.documents import VersionDocument, version_document


class VersionsQuery(Namespaced, frozen=True, kw_only=True, forbid_unknown_fields=True):
    workflow: Annotated[Name | None, Meta(description="Only versions of this workflow.")] = None


class VersionList(Struct, frozen=True, kw_only=True):
    """Versions by workflow, the newest first; `more`: there are others, so name a workflow."""

    versions: tuple[VersionDocument, ...]
    more: bool


async def list_versions(call: Call[VersionsQuery, None]) -> VersionList:
    return await _listed(call.engine.versions.list(call.namespace, call.query.workflow))


class DefaultVersionBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Without a version starts get the one that workers offered last. `force` is for one that no worker has offered
    yet."""

    workflow: Name
    version: Name | None = None
    force: bool = False


async def set_default_version(call: Call[Namespaced, DefaultVersionBody]) -> VersionList:
    body = call.body
    with naming("version"):
        await call.engine.versions.set_default(call.namespace, body.workflow, body.version, force=body.force)
    return await _listed(call.engine.versions.list(call.namespace, body.workflow))


async def _listed(found: Awaitable[Versions]) -> VersionList:
    versions = await found
    return VersionList(versions=tuple([version_document(each) for each in versions.items]), more=versions.more)
