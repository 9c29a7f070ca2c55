"""What documents of every noun need: moments, payloads and failures as people read them."""

from __future__ import annotations

import base64
from typing import Annotated

import msgspec
from msgspec import Meta, Raw, Struct

from kagzi.core.failure import Failure
from kagzi.core.instant import Instant, to_datetime
from kagzi.core.laid_out import check_json

Moment = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]
Count = Annotated[int, Meta(ge=0)]
NOTHING = Raw(b"null")


class FailureDocument(Struct, frozen=True, kw_only=True):
    """Why a run or an attempt of a step failed."""

    type: str
    message: str
    kind: str
    traceback: str


def moment(instant: Instant | None) -> str | None:
    return None if instant is None else _moment(instant)


def _moment(instant: Instant) -> str:
    return to_datetime(instant).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def payload(data: bytes | None) -> Raw:
    """Returns a payload as JSON if it is that, else (a codec has written it) as base64."""
    if data is None:
        return NOTHING
    try:
        check_json(data)  # to the end: what is copied into an answer must not spoil it
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return Raw(msgspec.json.encode({"base64": base64.b64encode(data).decode()}))
    return Raw(data)


def failure_document(data: bytes | None) -> FailureDocument | None:
    if not data:
        return None
    found = Failure.decode(data)
    return FailureDocument(type=found.type, message=found.message, kind=found.kind.value, traceback=found.traceback)
