"""Namespaces, for administrators."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from kagzi.core.limits import DEFAULT_PAGE_SIZE
from kagzi.core.namespace import DESCRIPTION_CHARACTERS
from kagzi.http.call import Call, NoQuery, NothingBody, Reply
from kagzi.http.fields import TEXT, Name
from kagzi.http.problems import check_handler_queue, naming
from kagzi.http.runs import PageSize, Token
from kagzi.ports.documents.system import NamespaceDocument, namespace_document

_Text = Annotated[str, Meta(max_length=255, extra_json_schema=TEXT)]
_Description = Annotated[str, Meta(max_length=DESCRIPTION_CHARACTERS, extra_json_schema=TEXT)]


class NamespacesQuery(NoQuery, frozen=True, kw_only=True, forbid_unknown_fields=True):
    limit: PageSize = DEFAULT_PAGE_SIZE
    page: Token | None = None


class NamespacePage(Struct, frozen=True, kw_only=True):
    """Namespaces by name."""

    namespaces: tuple[NamespaceDocument, ...]
    next: str | None
    prev: str | None


async def list_namespaces(call: Call[NamespacesQuery, None]) -> NamespacePage:
    with naming("page"):
        page = await call.engine.namespaces.list(page_size=call.query.limit, page_token=call.query.page)
    return NamespacePage(
        namespaces=tuple([namespace_document(each) for each in page.items]), next=page.next, prev=page.prev
    )


async def get_namespace(call: Call[NoQuery, None]) -> NamespaceDocument:
    return namespace_document(await call.engine.namespaces.get(call.path["namespace"]))


class CreateNamespaceBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    namespace: Name
    display_name: _Text = ""
    description: _Description = ""


async def create_namespace(call: Call[NoQuery, CreateNamespaceBody]) -> Reply:
    body = call.body
    call.targets = (f"namespace {body.namespace}",)
    made = await call.engine.namespaces.create(
        body.namespace, display_name=body.display_name, description=body.description
    )
    return Reply(document=namespace_document(made), status=201)


class UpdateNamespaceBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Changes of a namespace. Fields that are left out stay as they are."""

    display_name: _Text | None = None
    description: _Description | None = None
    on_failure: Annotated[
        _Text | None, Meta(description="The workflow that is started when a run of it fails; empty is none.")
    ] = None
    on_failure_queue: Annotated[
        Name | None, Meta(description="With `on_failure`: where that one waits. Else in the queue of the failed run.")
    ] = None


async def update_namespace(call: Call[NoQuery, UpdateNamespaceBody]) -> NamespaceDocument:
    check_handler_queue(call.body.on_failure, call.body.on_failure_queue)
    changed = await call.engine.namespaces.update(
        call.path["namespace"],
        display_name=call.body.display_name,
        description=call.body.description,
        on_failure=call.body.on_failure,
        on_failure_queue=call.body.on_failure_queue,
    )
    return namespace_document(changed)


async def enable_namespace(call: Call[NoQuery, NothingBody]) -> NamespaceDocument:
    return namespace_document(await call.engine.namespaces.enable(call.path["namespace"], True))


async def disable_namespace(call: Call[NoQuery, NothingBody]) -> NamespaceDocument:
    return namespace_document(await call.engine.namespaces.enable(call.path["namespace"], False))
