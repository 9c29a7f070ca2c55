"""`app.schedules`: when expressions fire."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from kagzi.core.cron import check_zone, parse_times, upcoming
from kagzi.core.instant import Instant, from_datetime, to_datetime
from kagzi.core.options import names_its_options
from kagzi.core.schedule import check_count
from kagzi.errors import InvalidRequest


class Schedules:
    """The schedules of an app, as `app.schedules`."""

    def __init__(self, now: Callable[[], Instant]) -> None:
        self._now = now

    @names_its_options
    def preview(self, cron: str, *, tz: str = "UTC", count: int = 10, after: datetime | None = None) -> list[datetime]:
        """Returns when an expression fires next, in its zone. Needs no engine: the app may be closed.

        `for at in app.schedules.preview("30 2 * * *", tz="America/New_York", count=5): ...`
        """
        times = parse_times(cron, check_zone(tz), "cron")
        start = self._now() if after is None else instant_of(after, "after")
        return [to_datetime(at).astimezone(ZoneInfo(tz)) for at in upcoming(times, start, check_count(count))]


def instant_of(moment: Any, field: str) -> Instant:
    """Returns the instant of a datetime with a time zone."""
    try:
        instant = from_datetime(moment)
        to_datetime(instant)
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        raise InvalidRequest(f"{field} must be a datetime with a time zone: {error}") from None
    if instant < 0:
        raise InvalidRequest(f"{field} must not lie before 1970, as {moment} does")
    return instant
