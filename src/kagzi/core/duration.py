"""Lengths of time as people write them: `30`, `"30s"`, `"1h30m"`, `"2 weeks"`, `timedelta(days=3)`.

Everything becomes a `Span`, whole microseconds, by exact arithmetic: `"0.001s"` is 1000 and not 999. There
are no months or years, because nobody can say how long they are without a calendar.
"""

from __future__ import annotations

import math
import re
from datetime import timedelta
from fractions import Fraction
from typing import Final, TypeAlias

from kagzi.core.instant import SECOND, Span, to_span
from kagzi.errors import InvalidRequest

Duration: TypeAlias = float | int | str | timedelta

LONGEST: Final[Span] = 1000 * 366 * 86_400 * SECOND
_TEXT_CHARACTERS = 100

_UNITS: Final[dict[str, Span]] = {
    name: length
    for names, length in (
        ("ms millis millisecond milliseconds", SECOND // 1000),
        ("s sec secs second seconds", SECOND),
        ("m min mins minute minutes", 60 * SECOND),
        ("h hr hrs hour hours", 3600 * SECOND),
        ("d day days", 86_400 * SECOND),
        ("w week weeks", 7 * 86_400 * SECOND),
    )
    for name in names.split()
}
_PART = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?|\.[0-9]+)\s*([A-Za-z]+)\s*,?")
_FORMS = 'a number of seconds, text such as "250ms", "30s", "10m", "1.5h", "1h30m" or "2 weeks", or a timedelta'


def parse_duration(value: Duration, field: str = "duration") -> Span:
    """Returns microseconds; InvalidRequest names the field. A plain number is seconds."""
    if isinstance(value, timedelta):
        span = to_span(value)
    elif isinstance(value, bool):
        raise _refused(field, value, "is not a length of time")
    elif isinstance(value, int):
        span = value * SECOND
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise _refused(field, value, "is not a length of time")
        # Far beyond the bound the product would be infinite.
        span = round(max(-1.0, min(value, 1e12)) * SECOND)
    elif isinstance(value, str):
        span = _parse_text(value, field)
    else:
        raise _refused(field, value, "is not a length of time")
    if span < 0:
        raise _refused(field, value, "is negative")
    if span > LONGEST:
        raise _refused(field, value, "is longer than 1000 years")
    return span


def format_span(span: Span) -> str:
    """Returns a length as people read it: `250ms`, `1.5s`, `1h 30m`, `3d`. Beyond a minute two units are enough."""
    if span < 0:
        return "-" + format_span(-span)
    if span < SECOND:
        return _plain(span, 1000) + "ms"
    if span < 60 * SECOND:
        return _plain(span, SECOND) + "s"
    # Rounded to the smaller of the two units first, so that 59m 59.7s reads 1h rather than 59m 60s.
    for large, small in (("m", "s"), ("h", "m"), ("d", "h")):
        count = (2 * span + _UNITS[small]) // (2 * _UNITS[small])
        whole, rest = divmod(count, _UNITS[large] // _UNITS[small])
        if large == "d" or whole < (60 if large == "m" else 24):
            return f"{whole}{large} {rest}{small}" if rest else f"{whole}{large}"
    raise AssertionError("days hold every length")


def _parse_text(text: str, field: str) -> Span:
    if not text.strip():
        raise _refused(field, text, "is empty")
    if len(text) > _TEXT_CHARACTERS:
        raise _refused(field, text, f"has {len(text)} characters, too many for a length of time")
    if text.strip().startswith("-"):
        raise _refused(field, text, "is negative")
    total, at = Fraction(0), 0
    while at < len(text):
        match = _PART.match(text, at)
        if match is None:
            raise _refused(field, text, "is not a length of time")
        number, unit = match.groups()
        # A lone capital M means months to some, so it is nobody's unit.
        length = _UNITS.get(unit if unit == "M" else unit.lower())
        if length is None:
            raise _refused(field, text, f"has the unknown unit {unit!r}")
        total += Fraction(number) * length
        at = match.end()
        if not text[at:].strip():
            break
    return round(total)


def _plain(span: Span, unit: Span) -> str:
    return f"{span / unit:.3f}".rstrip("0").rstrip(".")


def _refused(field: str, value: object, reason: str) -> InvalidRequest:
    return InvalidRequest(f"{field} {value!r:.120} {reason}; accepted: {_FORMS}")
