"""What holds runs back: pauses of queues, workflows and namespaces."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from kagzi.core.flow import Scope
from kagzi.core.limits import REASON_CHARACTERS
from kagzi.http.call import Call, Namespaced, NoQuery
from kagzi.http.fields import TEXT
from kagzi.http.problems import naming
from kagzi.ports.documents import LimitDocument, limit_document

_Reason = Annotated[str, Meta(max_length=REASON_CHARACTERS, extra_json_schema=TEXT, description="Why, for people.")]


class LimitList(Struct, frozen=True, kw_only=True):
    """All that holds runs back, by scope and name."""

    limits: tuple[LimitDocument, ...]


async def list_limits(call: Call[Namespaced, None]) -> LimitList:
    found = await call.engine.limits.list(call.namespace)
    return LimitList(limits=tuple([limit_document(each) for each in found]))


class PauseClaimsBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    reason: _Reason = ""


class ResumeClaimsBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Nothing to say."""


async def pause_queue(call: Call[Namespaced, PauseClaimsBody]) -> LimitDocument:
    return await pause(call, call.namespace, Scope.QUEUE, call.path["queue"])


async def resume_queue(call: Call[Namespaced, ResumeClaimsBody]) -> LimitDocument:
    return await resume(call, call.namespace, Scope.QUEUE, call.path["queue"])


async def pause_workflow(call: Call[Namespaced, PauseClaimsBody]) -> LimitDocument:
    return await pause(call, call.namespace, Scope.WORKFLOW, call.path["workflow"])


async def resume_workflow(call: Call[Namespaced, ResumeClaimsBody]) -> LimitDocument:
    return await resume(call, call.namespace, Scope.WORKFLOW, call.path["workflow"])


async def pause_namespace(call: Call[NoQuery, PauseClaimsBody]) -> LimitDocument:
    return await pause(call, call.path["namespace"], Scope.NAMESPACE, "")


async def resume_namespace(call: Call[NoQuery, ResumeClaimsBody]) -> LimitDocument:
    return await resume(call, call.path["namespace"], Scope.NAMESPACE, "")


async def pause(call: Call[Any, Any], namespace: str, scope: Scope, name: str) -> LimitDocument:
    by = "anyone" if call.caller is None else call.caller.actor
    with naming("reason"):
        limit = await call.engine.limits.pause(namespace, scope, name, by=by, reason=call.body.reason)
    return limit_document(limit)


async def resume(call: Call[Any, Any], namespace: str, scope: Scope, name: str) -> LimitDocument:
    return limit_document(await call.engine.limits.resume(namespace, scope, name))
