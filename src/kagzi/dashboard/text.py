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
from kagzi.core.laid_out import beginning, check_json
from kagzi.core.laid_out import whole as in_lines
from kagzi.core.report import report_lines
from kagzi.http.apart import apart

SHOWN_CHARACTERS: Final = 4_000  # of one payload
REPORT_CHARACTERS: Final = 64_000  # of an error with its causes
_LINE_CHARACTERS: Final = 8_000  # of the message of one
EDITABLE_BYTES: Final = 256 * 1024  # of JSON that is put into a field of a form
_ENCODED: Final = "encoded by a codec of the app: {:,} bytes, here in base64"
_PARTS: Final = re.compile(r"[^_./:-]+[_./:-]*|[_./:-]+")


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


def payload(data: bytes | None, most: int = SHOWN_CHARACTERS) -> str:
    """Returns the beginning of a payload: JSON in lines, as it is written; what is not JSON, because a codec has
    written it, as base64. What stands behind the cut is not read."""
    if data is None:
        return ""
    try:
        text, whole = beginning(data, most)
    except (msgspec.DecodeError, UnicodeDecodeError):
        encoded = base64.b64encode(data[: 3 * (most // 4)]).decode()
        text, whole = f"{_ENCODED.format(len(data))}\n{encoded}", len(data) <= 3 * (most // 4)
    return text if whole else f"{text}\n… cut off; {len(data):,} bytes in all"


async def editable(data: bytes) -> str | None:
    """Returns all of a payload, for a field that is sent back; None if it is not JSON, or too much for a field."""
    return None if len(data) > EDITABLE_BYTES else await apart(len(data), editable_text, data)


def editable_text(data: bytes) -> str | None:
    try:
        check_json(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return in_lines(data.decode())


def uneditable(data: bytes) -> str:
    """Returns why a payload does not stand in its field."""
    if len(data) > EDITABLE_BYTES:
        return f"too large to be changed here: {len(data):,} bytes"
    return "encoded by a codec of the app, which this page cannot read"


def error_line(data: bytes | None) -> str:
    return "" if not data else " ".join(str(Failure.decode(data))[:_LINE_CHARACTERS].split())


def error_report(data: bytes | None) -> str:
    """Returns an error with the lines of the user's own code and every cause, as far as it is shown."""
    if not data:
        return ""
    lines, room = [], REPORT_CHARACTERS
    for line in report_lines(Failure.decode(data)):
        lines.append(line[:room])
        if (room := room - len(line) - 1) <= 0:
            lines.append("… cut off")
            break
    return "\n".join(lines)
