"""Pages by keyset, in both directions.

Run ids are UUIDv7, so their order is the order of creation and one key is enough. A page token says where a page
starts and which way it goes; it is signed together with the filter it belongs to, so a token that was made up or is
used with another filter is refused.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Sequence
from typing import Generic, TypeVar

from msgspec import Struct

from kagzi.errors import InvalidRequest

T = TypeVar("T")


class Page(Struct, Generic[T], frozen=True):
    items: tuple[T, ...]
    next: str | None
    prev: str | None


class Cursor(Struct, frozen=True):
    """Rows beyond `key`: older ones, or newer ones when going `backward`."""

    key: str
    backward: bool = False


def sign(cursor: Cursor, *, filter_text: str, secret: bytes) -> str:
    body = ("b" if cursor.backward else "f") + cursor.key
    mac = _mac(body, filter_text, secret)
    return base64.urlsafe_b64encode(mac + body.encode()).decode().rstrip("=")


def verify(token: str, *, filter_text: str, secret: bytes) -> Cursor:
    try:
        raw = base64.urlsafe_b64decode(token.encode("ascii") + b"=" * (-len(token) % 4))
        mac, body = raw[:16], raw[16:].decode()
    except ValueError:
        raise InvalidRequest("page token is malformed; use the token of the page before") from None
    if len(mac) < 16 or not hmac.compare_digest(mac, _mac(body, filter_text, secret)) or body[:1] not in ("b", "f"):
        raise InvalidRequest("page token does not belong to this listing; start again without a token")
    return Cursor(body[1:], body[0] == "b")


def _mac(body: str, filter_text: str, secret: bytes) -> bytes:
    return hmac.new(secret, f"{filter_text}\n{body}".encode(), hashlib.sha256).digest()[:16]


# A token is a position and bound to its listing, no secret: see `EngineSettings.page_secret`.
_POSITIONS = b"kagzi page tokens"
_MOST = 2**31


def page_of(items: Sequence[T], size: int, token: str | None, about: str) -> Page[T]:
    """A page of what is at hand as a whole; `about` names the listing that the token must belong to."""
    begin = 0
    if token:
        key = verify(token, filter_text=about, secret=_POSITIONS).key
        if not (key.isascii() and key.isdigit() and len(key) < 12 and int(key) < _MOST):
            raise InvalidRequest("page token is malformed; use the token of the page before")
        begin = int(key)

    def token_of(position: int) -> str:
        return sign(Cursor(str(position)), filter_text=about, secret=_POSITIONS)

    end = begin + size
    return Page(
        tuple(items[begin:end]),
        token_of(end) if end < len(items) else None,
        token_of(max(0, begin - size)) if begin else None,
    )
