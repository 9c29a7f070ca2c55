"""Bounds on everything that comes from outside, checked before it reaches SQL."""

from __future__ import annotations

from kagzi.errors import InvalidRequest, PayloadTooLarge

NAME_CHARACTERS = 255
PAYLOAD_BYTES = 2 * 1024 * 1024
PAYLOAD_WARNING_BYTES = 1024 * 1024
PAGE_SIZE = 100
DEFAULT_PAGE_SIZE = 20


def check_name(value: object, field: str) -> str:
    """A name is 1 to 255 characters of text that every database can store."""
    if not isinstance(value, str):
        raise InvalidRequest(f"{field} must be text, not {type(value).__name__}")
    if not value:
        raise InvalidRequest(f"{field} must not be empty")
    if len(value) > NAME_CHARACTERS:
        raise InvalidRequest(f"{field} has {len(value)} characters; at most {NAME_CHARACTERS} are allowed")
    check_text(value, field)
    return value


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
