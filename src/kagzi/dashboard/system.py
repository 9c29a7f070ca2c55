"""The installation itself."""

from __future__ import annotations

from typing import Annotated, Any, Final

from msgspec import Meta

from kagzi.core.health import HealthStatus
from kagzi.dashboard.shell import page
from kagzi.http.call import Call, Html, Namespaced
from kagzi.http.system import get_health

OURS: Final = "kagzi."  # workflows of Kagzi's own begin like this


class PlainQuery(Namespaced, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What every page may be asked. `done` names what a form has just done, `many` says to how many."""

    done: Annotated[str, Meta(max_length=20)] | None = None
    many: Annotated[int, Meta(ge=0)] | None = None


async def show_system(call: Call[Any, None]) -> Html:
    health = await get_health(call)
    return await page(
        call,
        "system.html",
        title="System",
        tab="/system",
        report=health,
        well=health.status is HealthStatus.HEALTHY,
    )
