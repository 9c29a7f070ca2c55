"""Limits, pauses and rates: messages into core and api, and back."""

from __future__ import annotations

from typing import Final

from google.protobuf.message import Message

from kagzi._proto.v1 import admin_pb2 as pb
from kagzi._proto.v1 import common_pb2
from kagzi.core.flow import FlowLimit, Scope, SlotWait
from kagzi.core.rate import RateLimit
from kagzi.errors import InvalidRequest
from kagzi.rpc.convert.common import optional_instant, timestamp

SCOPES: Final = {
    Scope.NAMESPACE: pb.LIMIT_SCOPE_NAMESPACE,
    Scope.QUEUE: pb.LIMIT_SCOPE_QUEUE,
    Scope.WORKFLOW: pb.LIMIT_SCOPE_WORKFLOW,
}
SCOPE_NAMES: Final[dict[int, Scope]] = {number: scope for scope, number in SCOPES.items()}


def scope_of(number: int) -> Scope:
    scope = SCOPE_NAMES.get(number)
    if scope is None:
        raise InvalidRequest(f"scope must be namespace, queue or workflow (1, 2 or 3), not {number}")
    return scope


def limit_to_wire(limit: FlowLimit) -> pb.FlowLimit:
    return pb.FlowLimit(
        namespace=limit.namespace,
        scope=SCOPES[limit.scope],
        name=limit.name,
        paused_at=timestamp(limit.paused_at),
        paused_by=limit.paused_by,
        pause_reason=limit.pause_reason,
        concurrency=limit.concurrency,
        declared=limit.declared,
        key_concurrency=limit.key_concurrency,
        key_declared=limit.key_declared,
        shares=limit.shares,
        rate=rate_to_wire(limit.rate),
        rate_declared=rate_to_wire(limit.rate_declared),
        key_rate=rate_to_wire(limit.key_rate),
        key_rate_declared=rate_to_wire(limit.key_rate_declared),
        fair=limit.fair,
    )


def limit_from_wire(limit: pb.FlowLimit) -> FlowLimit:
    return FlowLimit(
        namespace=limit.namespace,
        scope=scope_of(limit.scope),
        name=limit.name,
        paused_at=optional_instant(limit, "paused_at"),
        paused_by=limit.paused_by,
        pause_reason=limit.pause_reason,
        concurrency=limit.concurrency if limit.HasField("concurrency") else None,
        declared=limit.declared if limit.HasField("declared") else None,
        key_concurrency=limit.key_concurrency if limit.HasField("key_concurrency") else None,
        key_declared=limit.key_declared if limit.HasField("key_declared") else None,
        shares=limit.shares if limit.HasField("shares") else None,
        rate=rate_from_wire(limit, "rate"),
        rate_declared=rate_from_wire(limit, "rate_declared"),
        key_rate=rate_from_wire(limit, "key_rate"),
        key_rate_declared=rate_from_wire(limit, "key_rate_declared"),
        fair=limit.fair,
    )


def wait_to_wire(wait: SlotWait) -> pb.SlotWait:
    return pb.SlotWait(
        slots=wait.slots,
        running=wait.running,
        most=wait.most,
        before=wait.before,
        rate=wait.rate,
        next_at_us=wait.next_at,
    )


def wait_from_wire(wait: pb.SlotWait) -> SlotWait:
    return SlotWait(
        slots=wait.slots,
        running=wait.running,
        most=wait.most,
        before=wait.before,
        rate=wait.rate if wait.HasField("rate") else None,
        next_at=wait.next_at_us if wait.HasField("next_at_us") else None,
    )


def rate_to_wire(rate: RateLimit | None) -> common_pb2.RateLimit | None:
    if rate is None:
        return None
    return common_pb2.RateLimit(count=rate.count, period_us=rate.period, burst=rate.burst)


def rate_from_wire(message: Message, field: str) -> RateLimit | None:
    """Returns the rate that a field has, or none. A burst that is not said is 1."""
    if not message.HasField(field):
        return None
    rate: common_pb2.RateLimit = getattr(message, field)
    return RateLimit(rate.count, rate.period_us, rate.burst or 1)
