"""Bounds on everything that comes from outside, checked before it reaches SQL."""

from __future__ import annotations

import re
from typing import Final

from kagzi.core.instant import SECOND, Span
from kagzi.errors import InvalidRequest, PayloadTooLarge

DEFAULT_QUEUE = "default"
SHORTEST_LEASE: Final[Span] = SECOND // 10
LONGEST_LEASE: Final[Span] = 24 * 3600 * SECOND
NAME_CHARACTERS = 255
REASON_CHARACTERS = 2000
# A key of PostgreSQL's takes 2,704 bytes, and a step's begins with its namespace, of 255 characters of 4 bytes at most.
STEP_ID_BYTES = 1600
PAYLOAD_BYTES = 2 * 1024 * 1024
PAYLOAD_WARNING_BYTES = 1024 * 1024
PAGE_SIZE = 100
CLAIMS = 1000  # that one poll brings
SUSPECT_CRASHES = 2  # in a row, after which a run is driven alone: a first one is nearly always the worker's own
DEFAULT_PAGE_SIZE = 20
ID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
UUID7: Final = "[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
_UUID7: Final = re.compile(UUID7)


def check_name(value: object, field: str, most: int = NAME_CHARACTERS) -> str:
    """Checks a name: 1 to 255 characters (or another number) of text that every database can store."""
    if not isinstance(value, str):
        raise InvalidRequest(f"{field} must be text, not {type(value).__name__}")
    if not value:
        raise InvalidRequest(f"{field} must not be empty")
    if len(value) > most:
        raise InvalidRequest(f"{field} has {len(value):,} characters; at most {most} are allowed")
    check_text(value, field)
    return value


def check_id(value: object, field: str) -> str:
    """Checks an id, and returns it in the one form that both databases compare alike."""
    if isinstance(value, str):
        if ID.fullmatch(value):
            return value
        if ID.fullmatch(lower := value.lower()):
            return lower
    raise InvalidRequest(f"{field} must be a UUID such as 0190a5f2-7c3e-7d31-9a51-0c8e6b1f2a44, not {value!r:.60}")


def check_new_run_id(value: object, field: str) -> str:
    """Refuses ids that callers made for new runs unless they are of version 7: runs are listed and kept in the order of
    their ids, which is that of their creation only if it is in them."""
    if isinstance(value, str) and _UUID7.fullmatch(value):
        return value
    if _UUID7.fullmatch(lower := check_id(value, field)):
        return lower
    raise InvalidRequest(
        f"{field} must be a UUID of version 7, which tells when it was made, such as "
        f"0190a5f2-7c3e-7d31-9a51-0c8e6b1f2a44, not {value!r:.60}; or leave it out and the run gets one"
    )


def check_step_id(step_id: str) -> str:
    """Checks a step id: a path of names of up to 1,600 bytes in all, in text that every database can store."""
    if not step_id:
        raise InvalidRequest("step id must not be empty")
    check_text(step_id, "step id")
    if (size := len(step_id.encode())) > STEP_ID_BYTES:
        raise InvalidRequest(
            f"the step id {step_id[:40]}… has {size:,} bytes; at most {STEP_ID_BYTES:,} are allowed. It is the path of "
            "the workflows and tasks that the step is called in, and its name: shorten them"
        )
    return step_id


def is_run_id(value: str) -> bool:
    """Returns whether this has the form of a run's id."""
    return _UUID7.fullmatch(value.lower()) is not None


def check_text(value: str, field: str) -> None:
    if "\0" in value:
        raise InvalidRequest(f"{field} contains a NUL byte, which databases cannot store in text; remove it")
    check_unicode(value, field)


def check_unicode(value: str, field: str) -> None:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(f"{field} contains half a surrogate pair, which is not valid text") from None


def check_payload(data: bytes, field: str, limit: int = PAYLOAD_BYTES) -> bytes:
    if len(data) > limit:
        raise PayloadTooLarge(
            f"{field} is {len(data):,} bytes; at most {limit:,} are stored. "
            f"Keep large data elsewhere and pass a reference"
        )
    return data


def check_page_size(size: object) -> int:
    if isinstance(size, bool) or not isinstance(size, int):
        raise InvalidRequest(f"page size must be a whole number, not {size!r:.60}")
    if not 1 <= size <= PAGE_SIZE:
        raise InvalidRequest(f"page size must be between 1 and {PAGE_SIZE}, not {size!r:.60}")
    return size
