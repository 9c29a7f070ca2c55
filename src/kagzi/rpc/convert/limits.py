"""What holds runs back."""

from __future__ import annotations

from typing import Final

from kagzi._proto.v1 import admin_pb2 as pb
from kagzi.core.flow import FlowLimit, Scope, SlotWait
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
    )


def wait_to_wire(wait: SlotWait) -> pb.SlotWait:
    return pb.SlotWait(slots=wait.slots, running=wait.running, most=wait.most, before=wait.before)


def wait_from_wire(wait: pb.SlotWait) -> SlotWait:
    return SlotWait(slots=wait.slots, running=wait.running, most=wait.most, before=wait.before)
