"""How moments, lengths of time and payloads read on a page."""

from __future__ import annotations

import base64
import re
from typing import Final

import msgspec
from markupsafe import Markup

from kagzi.core.duration import format_span
from kagzi.core.failure import Failure
from kagzi.core.instant import SECOND, Instant, Span, to_datetime
from kagzi.core.report import report

SHOWN_CHARACTERS: Final = 4_000  # of one payload
_ENCODED: Final = "encoded by a codec of the app: {:,} bytes, here in base64"
_PARTS: Final = re.compile(r"[^_./:-]+[_./:-]*|[_./:-]+")
_DEEP: Final = "nested too deeply to be shown in lines"


def exact(instant: Instant) -> str:
    """Returns a moment for people: to the second, in UTC."""
    return to_datetime(instant).strftime("%Y-%m-%d %H:%M:%S")


def machine(instant: Instant) -> str:
    """Returns a moment for the `datetime` of a `<time>`."""
    return to_datetime(instant).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def relative(instant: Instant, now: Instant) -> str:
    """`3m 20s ago`, `in 2h`."""
    span = abs(now - instant)
    if span < SECOND:
        return "now"
    text = format_span(round(span / SECOND) * SECOND)
    return f"{text} ago" if instant <= now else f"in {text}"


def length(span: Span) -> str:
    """Returns a length of time; above ten seconds without fractions. Its unit stays beside its number."""
    if span < SECOND:
        return f"{max(0, span) // 1000}\N{NO-BREAK SPACE}ms"
    if span < 10 * SECOND:
        return f"{span / SECOND:.1f}\N{NO-BREAK SPACE}s"
    return format_span(round(span / SECOND) * SECOND)


def soft(name: str) -> Markup:
    """Returns a name that may be broken where its parts meet, if there is no room for it."""
    return Markup("<wbr>").join(_PARTS.findall(name))


def payload(data: bytes | None) -> str:
    """Returns JSON in lines, as it is written; what is not JSON, because a codec has written it, as base64. Cut off
    where it is long."""
    if data is None:
        return ""
    try:
        msgspec.json.decode(data)
        text = msgspec.json.format(data, indent=2).decode()
    except (msgspec.DecodeError, UnicodeDecodeError):
        text = f"{_ENCODED.format(len(data))}\n{base64.b64encode(data).decode()}"
    except RecursionError:
        text = _DEEP
    return _cut(text)


def whole_payload(data: bytes) -> str:
    """Returns all of a payload, for a field that is sent back; empty if it is not JSON."""
    try:
        msgspec.json.decode(data)
        return msgspec.json.format(data, indent=2).decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""


def error_line(data: bytes | None) -> str:
    return "" if not data else " ".join(str(Failure.decode(data)).split())


def error_report(data: bytes | None) -> str:
    """Returns an error with the lines of the user's own code and every cause."""
    return "" if not data else report(Failure.decode(data))


def _cut(text: str) -> str:
    if len(text) <= SHOWN_CHARACTERS:
        return text
    return f"{text[:SHOWN_CHARACTERS]}\n… {len(text) - SHOWN_CHARACTERS:,} more characters"
