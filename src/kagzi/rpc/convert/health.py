"""The health of an installation: whether to send calls, in one sentence, and part by part."""

from __future__ import annotations

from typing import Final

from kagzi._proto.v1 import admin_pb2 as pb
from kagzi.core.health import ComponentHealth, Health, HealthStatus
from kagzi.core.instant import Instant
from kagzi.ports.documents.system import health_document
from kagzi.rpc.convert.common import timestamp

_STATUSES: Final[dict[HealthStatus, pb.HealthStatus]] = {
    HealthStatus.HEALTHY: pb.HEALTH_STATUS_HEALTHY,
    HealthStatus.DEGRADED: pb.HEALTH_STATUS_DEGRADED,
    HealthStatus.UNHEALTHY: pb.HEALTH_STATUS_UNHEALTHY,
}
_STATUS_OF: Final[dict[int, HealthStatus]] = {wire: status for status, wire in _STATUSES.items()}


def health_to_wire(health: Health, now: Instant, *, serving: bool, details: bool = True) -> pb.HealthCheckResponse:
    """Converts health. Details tell of all namespaces, and are for those who may see them all."""
    document = health_document(health, outside=True, details=details)
    troubles = [
        f"{part.name}: {part.message or part.status}"
        for part in document.components
        if part.status is not HealthStatus.HEALTHY
    ]
    return pb.HealthCheckResponse(
        status=pb.SERVING_STATUS_SERVING if serving else pb.SERVING_STATUS_NOT_SERVING,
        message="; ".join([document.status.value, *troubles])[:2000],
        timestamp=timestamp(now if health.checked_at is None else health.checked_at),
        components=[
            pb.ComponentHealth(name=part.name, status=_STATUSES[part.status], message=part.message)
            for part in document.components
        ],
    )


def health_from_wire(response: pb.HealthCheckResponse) -> Health:
    if not response.components:
        return _in_one(response)
    found = Health(
        tuple(
            [
                # A newer server may know of more than three levels: then somebody should look at it.
                ComponentHealth(part.name, _STATUS_OF.get(part.status, HealthStatus.DEGRADED), part.message)
                for part in response.components
            ]
        ),
        checked_at=response.timestamp.ToMicroseconds(),
    )
    database = found.component("database")
    if database is not None and database.status is HealthStatus.UNHEALTHY:
        return Health(found.components)  # the time is not its
    return found


def _in_one(response: pb.HealthCheckResponse) -> Health:
    """Reads the health of an older server, which has one word and one sentence for it."""
    word, _, message = response.message.partition("; ")
    serving = response.status == pb.SERVING_STATUS_SERVING
    try:
        status = HealthStatus(word)
    except ValueError:
        status = HealthStatus.HEALTHY if serving else HealthStatus.UNHEALTHY
    part = ComponentHealth("server", status, message or "answers, and says that all is well")
    return Health((part,), checked_at=response.timestamp.ToMicroseconds())
