"""The health of an installation: three levels, for each part and for the whole."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from msgspec import Struct

from kagzi.core.instant import Instant


class HealthStatus(StrEnum):
    HEALTHY = "healthy"
    DEGRADED = "degraded"  # it works, and somebody should look at it
    UNHEALTHY = "unhealthy"  # it does not work


# Without these no call can be answered. What else is amiss is not mended by sending calls elsewhere.
_NEEDED = ("database", "migrations")
SEVERITY = (HealthStatus.HEALTHY, HealthStatus.DEGRADED, HealthStatus.UNHEALTHY)


class ComponentHealth(Struct, frozen=True):
    name: str
    status: HealthStatus
    message: str


class Health(Struct, frozen=True):
    """`components` are database, migrations, coordinator and workers; those that cannot be seen are left out. Where the
    database can be read and not written there is a disk, too; where other transactions hold it up, there are locks."""

    components: tuple[ComponentHealth, ...]
    checked_at: Instant | None = None  # by the database's clock; None if it did not answer

    @property
    def status(self) -> HealthStatus:
        return worst(component.status for component in self.components)

    @property
    def can_serve(self) -> bool:
        return all(part.status is not HealthStatus.UNHEALTHY for part in self.components if part.name in _NEEDED)

    def component(self, name: str) -> ComponentHealth | None:
        return next((component for component in self.components if component.name == name), None)


def worst(statuses: Iterable[HealthStatus]) -> HealthStatus:
    return max(statuses, key=SEVERITY.index, default=HealthStatus.HEALTHY)
