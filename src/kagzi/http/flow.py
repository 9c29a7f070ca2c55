"""Limits and pauses of queues, workflows and namespaces."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from kagzi.core.flow import MOST_CONCURRENCY, Scope
from kagzi.core.limits import REASON_CHARACTERS
from kagzi.core.rate import MOST_COUNT, RateLimit, check_rate
from kagzi.http.call import Call, Namespaced, NoQuery, NothingBody
from kagzi.http.fields import TEXT, Length, Name
from kagzi.http.lengths import length_of
from kagzi.http.problems import BadField, naming
from kagzi.ports.documents.limits import LimitDocument, limit_document

_Reason = Annotated[str, Meta(max_length=REASON_CHARACTERS, extra_json_schema=TEXT, description="Why, for people.")]


class LimitList(Struct, frozen=True, kw_only=True):
    """All that holds runs back, by scope and name."""

    limits: tuple[LimitDocument, ...]


async def list_limits(call: Call[Namespaced, None]) -> LimitList:
    found = await call.engine.limits.list(call.namespace)
    return LimitList(limits=tuple([limit_document(each) for each in found]))


_Most = Annotated[int, Meta(ge=1, le=MOST_CONCURRENCY)]


class RateBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A rate: so many runs in a period, at the same distance; `burst` of them at once after a lull."""

    count: Annotated[int, Meta(ge=1, le=MOST_COUNT)]
    period: Length
    burst: Annotated[int, Meta(ge=1, le=MOST_COUNT)] = 1


def _rate_of(body: RateBody | None, field: str) -> RateLimit | None:
    if body is None:
        return None
    with naming(field):
        return check_rate(RateLimit(int(body.count), length_of(body.period, f"{field}.period"), int(body.burst)), field)


class LimitBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A queue or a workflow, and how many of its runs may run at once over all workers, or begin. With none of these,
    what was set is taken back, and what workers declare counts again."""

    queue: Name | None = None
    workflow: Name | None = None
    concurrency: _Most | None = None
    key_concurrency: Annotated[_Most | None, Meta(description="Runs of each key at once.")] = None
    rate: Annotated[RateBody | None, Meta(description="How often runs may begin.")] = None
    key_rate: Annotated[RateBody | None, Meta(description="How often runs of each key may begin.")] = None


async def set_limit(call: Call[Namespaced, LimitBody]) -> LimitDocument:
    body = call.body
    if (body.queue is None) == (body.workflow is None):
        raise BadField("queue or workflow", "say one of them")
    scope = Scope.QUEUE if body.workflow is None else Scope.WORKFLOW
    name = body.queue or body.workflow or ""
    call.targets = (f"{scope.value} {name}",)
    rate, key_rate = _rate_of(body.rate, "rate"), _rate_of(body.key_rate, "key_rate")
    if body.concurrency is None and body.key_concurrency is None and rate is None and key_rate is None:
        return limit_document(await call.engine.limits.clear(call.namespace, scope, name))
    with naming("key_concurrency" if body.key_concurrency is not None else "key_rate"):
        limit = await call.engine.limits.set(
            call.namespace,
            scope,
            name,
            concurrency=body.concurrency,
            key_concurrency=body.key_concurrency,
            rate=rate,
            key_rate=key_rate,
        )
    return limit_document(limit)


class PauseClaimsBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    reason: _Reason = ""


async def pause_queue(call: Call[Namespaced, PauseClaimsBody]) -> LimitDocument:
    return await pause(call, call.namespace, Scope.QUEUE, call.path["queue"])


async def resume_queue(call: Call[Namespaced, NothingBody]) -> LimitDocument:
    return await resume(call, call.namespace, Scope.QUEUE, call.path["queue"])


async def pause_workflow(call: Call[Namespaced, PauseClaimsBody]) -> LimitDocument:
    return await pause(call, call.namespace, Scope.WORKFLOW, call.path["workflow"])


async def resume_workflow(call: Call[Namespaced, NothingBody]) -> LimitDocument:
    return await resume(call, call.namespace, Scope.WORKFLOW, call.path["workflow"])


async def pause_namespace(call: Call[NoQuery, PauseClaimsBody]) -> LimitDocument:
    return await pause(call, call.path["namespace"], Scope.NAMESPACE, "")


async def resume_namespace(call: Call[NoQuery, NothingBody]) -> LimitDocument:
    return await resume(call, call.path["namespace"], Scope.NAMESPACE, "")


async def pause(call: Call[Any, Any], namespace: str, scope: Scope, name: str) -> LimitDocument:
    by = "anyone" if call.caller is None else call.caller.actor
    with naming("reason"):
        limit = await call.engine.limits.pause(namespace, scope, name, by=by, reason=call.body.reason)
    return limit_document(limit)


async def resume(call: Call[Any, Any], namespace: str, scope: Scope, name: str) -> LimitDocument:
    return limit_document(await call.engine.limits.resume(namespace, scope, name))
