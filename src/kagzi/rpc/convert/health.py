"""How well an installation is, in the one word and the one sentence that the wire has for it."""

from __future__ import annotations

from kagzi._proto.v1 import admin_pb2 as pb
from kagzi.core.health import ComponentHealth, Health, HealthStatus
from kagzi.core.instant import Instant
from kagzi.rpc.convert.common import timestamp


def health_to_wire(health: Health, now: Instant, *, details: bool = True) -> pb.HealthCheckResponse:
    """Degraded still serves: taken out of rotation it would serve nobody. Details tell of all namespaces."""
    serving = health.status is not HealthStatus.UNHEALTHY
    troubles = [
        # What a database says about itself is for the log: it names hosts and files.
        f"{part.name} is unhealthy" if part.status is HealthStatus.UNHEALTHY else f"{part.name}: {part.message}"
        for part in health.components
        if part.status is not HealthStatus.HEALTHY and details
    ]
    return pb.HealthCheckResponse(
        status=pb.SERVING_STATUS_SERVING if serving else pb.SERVING_STATUS_NOT_SERVING,
        message="; ".join([health.status.value, *troubles])[:2000],
        timestamp=timestamp(now if health.checked_at is None else health.checked_at),
    )


def health_from_wire(response: pb.HealthCheckResponse) -> Health:
    word, _, message = response.message.partition("; ")
    serving = response.status == pb.SERVING_STATUS_SERVING
    try:
        status = HealthStatus(word)
    except ValueError:
        status = HealthStatus.HEALTHY if serving else HealthStatus.UNHEALTHY
    part = ComponentHealth("server", status, message or "answers, and says that all is well")
    return Health((part,), checked_at=response.timestamp.ToMicroseconds())
