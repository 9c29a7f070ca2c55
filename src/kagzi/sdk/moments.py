"""Moments, as people give them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from kagzi.core.instant import Instant, from_datetime, to_datetime
from kagzi.errors import InvalidRequest


def instant_of(moment: Any, field: str) -> Instant:
    """Returns the instant of a datetime with a time zone."""
    if not isinstance(moment, datetime):
        raise InvalidRequest(
            f"{field} must be a datetime with a time zone, for example datetime.now(UTC), not {moment!r:.100}"
        )
    try:
        instant = from_datetime(moment)
        to_datetime(instant)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidRequest(f"{field} must be a datetime with a time zone: {error}") from None
    if instant < 0:
        raise InvalidRequest(f"{field} must not lie before 1970, as {moment} does")
    return instant
