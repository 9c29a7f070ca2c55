"""Lengths and moments as callers write them."""

from __future__ import annotations

from datetime import datetime

import msgspec

from kagzi.core.duration import parse_duration
from kagzi.core.instant import Instant, Span, from_datetime
from kagzi.http.problems import BadField, naming

# Lengths and moments.


def timeout_of(value: float | str | None) -> Span | None:
    if value is None:
        return None
    length = length_of(value, "timeout")
    if not length:
        raise BadField("timeout", "timeout must be longer than 0")
    return length


def length_of(value: float | str, field: str) -> Span:
    with naming(field):
        return parse_duration(value, field)


def moment_of(text: str | None, field: str) -> Instant | None:
    if text is None:
        return None
    try:
        instant = from_datetime(msgspec.convert(text, datetime))
    except (msgspec.ValidationError, ValueError, OverflowError):
        raise BadField(field, f"{field} must be RFC 3339 with a time zone, such as 2026-01-31T12:00:00Z") from None
    if instant < 0:
        raise BadField(field, f"{field} must not lie before 1970")
    return instant
