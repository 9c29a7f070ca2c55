"""Instants and lengths as the engine counts them: whole microseconds.

An `Instant` is microseconds since 1970-01-01 UTC, a `Span` is a length in microseconds. Both stores keep them as
64-bit integers, so that SQLite, PostgreSQL and the wire agree to the last digit, and replay sees exactly the number
that was recorded (a float or a time zone in between would round somewhere). People see `datetime`s: they are made at
the edge, here.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

Instant = int
Span = int

SECOND: Span = 1_000_000
NEVER: Instant = 253_402_300_799_000_000  # 9999-12-31T23:59:59Z, the last second a datetime can show
_FIRST: Instant = -62_135_596_800_000_000  # 0001-01-01T00:00:00Z
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def to_datetime(instant: Instant) -> datetime:
    return _EPOCH + timedelta(microseconds=showable(instant))


def showable(instant: Instant) -> Instant:
    """Returns the instant, or the nearest one that a calendar shows: rows written by hand can be looked at, too."""
    return instant if _FIRST <= instant <= NEVER else _FIRST if instant < 0 else NEVER


def from_datetime(moment: datetime) -> Instant:
    if moment.tzinfo is None:
        raise ValueError(f"{moment!r} has no time zone; pass an aware datetime, for example datetime.now(UTC)")
    return (moment - _EPOCH) // _MICROSECOND


def to_span(length: timedelta) -> Span:
    return length // _MICROSECOND
