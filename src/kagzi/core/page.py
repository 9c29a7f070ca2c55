"""Pages by keyset, in both directions.

Run ids are UUIDv7, so their order is the order of creation and one key is enough. A page token says where a page
starts and which way it goes; it is signed together with the filter it belongs to, so a token that was made up or is
used with another filter is refused.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
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
