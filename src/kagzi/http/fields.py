"""What fields of requests hold, as the OpenAPI document describes them: whatever fits a description is accepted."""

from __future__ import annotations

from typing import Annotated, Any, Final

from msgspec import Meta

from kagzi.core.duration import LONGEST
from kagzi.core.instant import SECOND
from kagzi.core.limits import NAME_CHARACTERS, UUID7
from kagzi.core.tags import MOST_TAGS, TAG_CHARACTERS

# No database stores a NUL in text. The engine refuses it in its own words.
TEXT: Final = {"pattern": r"^[^\x00]*$"}
NEW_RUN_ID: Final = {"format": "uuid", "pattern": f"^{UUID7}$"}

Name = Annotated[str, Meta(min_length=1, max_length=NAME_CHARACTERS, extra_json_schema=TEXT)]

# Of a signal. Those that begin with ~ are made for senders who give none.
Key = Annotated[
    str, Meta(min_length=1, max_length=NAME_CHARACTERS, extra_json_schema={"pattern": r"^[^\x00~][^\x00]*$"})
]

# The largest unit first, each once, and no more digits than a thousand years have. Other forms are accepted, too.
_SHORT: Final = "".join(
    rf"([0-9]{{1,{digits}}}(\.[0-9]{{1,{decimals}}})?{unit})?"
    for unit, digits, decimals in (("w", 4, 6), ("d", 5, 6), ("h", 6, 6), ("m", 8, 6), ("s", 9, 6), ("ms", 12, 3))
)
_LENGTH: Final = "A length of time: seconds, or text such as `250ms`, `30s`, `1h30m`."


def _length(least: float, pattern: str) -> tuple[Meta, Meta, dict[str, Any]]:
    text = {"minLength": 2, "maxLength": 100, "pattern": pattern}
    number = Meta(extra_json_schema={"minimum": least, "maximum": LONGEST // SECOND})
    return number, Meta(extra_json_schema=text), text


_NUMBER, _TEXT, WAIT = _length(0, f"^{_SHORT}$")
_MORE_THAN_0, _TEXT_MORE_THAN_0, _ = _length(0.000_001, f"^(?=.*[1-9]){_SHORT}$")

Length = Annotated[Annotated[float, _NUMBER] | Annotated[str, _TEXT], Meta(description=_LENGTH, examples=["30s", 90])]
Timeout = Annotated[
    Annotated[float, _MORE_THAN_0] | Annotated[str, _TEXT_MORE_THAN_0],
    Meta(description="The run is over this long after it was started. " + _LENGTH, examples=["30s", 90]),
]
When = Annotated[
    str,
    Meta(
        description="RFC 3339 with a time zone, not before 1970.",
        extra_json_schema={"format": "date-time", "pattern": "^(19[7-9][0-9]|[2-9][0-9]{3})-"},
    ),
]


_TAG_NAME: Final = {"pattern": r"^[^\x00=]+$"}
Tags = Annotated[
    dict[
        Annotated[str, Meta(min_length=1, max_length=TAG_CHARACTERS, extra_json_schema=_TAG_NAME)],
        Annotated[str, Meta(min_length=1, max_length=TAG_CHARACTERS, extra_json_schema=TEXT)],
    ],
    Meta(max_length=MOST_TAGS, description="Words of your own to find runs by.", examples=[{"batch": "7"}]),
]


def whole(description: str, least: int, most: int, **schema: Any) -> Meta:
    """Describes a number that is whole, however it is written: in JSON 3.0 is the same as 3."""
    return Meta(ge=least, le=most, multiple_of=1, description=description, extra_json_schema=schema or None)
