"""Limits and rates as people read them."""

from __future__ import annotations

from msgspec import Struct

from kagzi.core.duration import format_span
from kagzi.core.flow import FlowLimit, Scope
from kagzi.core.rate import RateLimit
from kagzi.ports.documents.common import Moment, moment


class RateDocument(Struct, frozen=True, kw_only=True):
    """How often runs may begin: so many in a period, `burst` of them at once."""

    count: int
    period: str
    burst: int


def _rate(rate: RateLimit | None) -> RateDocument | None:
    if rate is None:
        return None
    return RateDocument(count=rate.count, period=format_span(rate.period), burst=rate.burst)


class LimitDocument(Struct, frozen=True, kw_only=True):
    """A limit on the runs of a queue, of a workflow, or of a whole namespace: then it has no name."""

    namespace: str
    scope: Scope
    name: str
    paused_at: Moment | None
    paused_by: str | None
    pause_reason: str | None
    concurrency: int | None  # runs at once, as it was set by hand
    declared: int | None  # the same: the smallest that a live worker declares
    key_concurrency: int | None  # runs of each key at once
    key_declared: int | None
    shares: str | None  # whose limits count for the runs of this workflow
    rate: RateDocument | None  # how often runs may begin, as it was set by hand
    rate_declared: RateDocument | None
    key_rate: RateDocument | None  # the same of each key
    key_rate_declared: RateDocument | None
    fair: bool  # its keys take turns


def limit_document(limit: FlowLimit) -> LimitDocument:
    return LimitDocument(
        namespace=limit.namespace,
        scope=limit.scope,
        name=limit.name,
        paused_at=moment(limit.paused_at),
        paused_by=limit.paused_by or None,
        pause_reason=limit.pause_reason or None,
        concurrency=limit.concurrency,
        declared=limit.declared,
        key_concurrency=limit.key_concurrency,
        key_declared=limit.key_declared,
        shares=limit.shares,
        rate=_rate(limit.rate),
        rate_declared=_rate(limit.rate_declared),
        key_rate=_rate(limit.key_rate),
        key_rate_declared=_rate(limit.key_rate_declared),
        fair=limit.fair,
    )
