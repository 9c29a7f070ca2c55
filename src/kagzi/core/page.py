"""Pages by keyset, in both directions.

Run ids are UUIDv7, so their order is the order of creation and one key is enough. A page token says where a page
starts and which way it goes; it is signed together with the filter it belongs to, by a secret of the database, so a
token that was made up or is used with another filter is refused.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Sequence
from typing import Final, Generic, TypeVar
from uuid import UUID

from msgspec import Struct

from kagzi.core.instant import Instant
from kagzi.errors import InvalidRequest

T = TypeVar("T")

_MALFORMED = "page token is malformed; use the token of the page before"
# Positions in listings: ids, what was numbered, what has a name, and ids behind the instant something came.
_UUID = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
BY_ID: Final = re.compile(_UUID)
BY_NUMBER: Final = re.compile("[0-9]{1,18}")
BY_NAME: Final = re.compile(r"[^\0]{1,255}", re.DOTALL)
BY_TIME: Final = re.compile(f"[0-9]{{1,18}}:(?:{_UUID}|[0-9a-f]{{16}})")


class Page(Struct, Generic[T], frozen=True):
    """Some items of a listing, and the tokens of its neighbours.

    A page may have fewer items than were asked for, or none, and a neighbour all the same: a filter looks at so many
    runs at a time, and `searched_until` says when the last of those was made. The neighbour goes on there.
    """

    items: tuple[T, ...]
    next: str | None
    prev: str | None
    searched_until: Instant | None = None


class Cursor(Struct, frozen=True):
    """Rows beyond `key`: older ones, or newer ones when going `backward`."""

    key: str
    backward: bool = False


def made_at(run_id: str) -> Instant:
    """Returns when a run id was made, which is what ids of version 7 begin with, in milliseconds."""
    return int(run_id[:8] + run_id[9:13], 16) * 1000


def neighbour(run_id: str, step: int) -> str:
    """Returns the id that comes so many after this one in the order of ids, whether a run has it or not."""
    return str(UUID(int=min(max(UUID(run_id).int + step, 0), 2**128 - 1)))


def check_token(value: object) -> str:
    """Checks that a text could be a token: short, and of letters that every wire can hold."""
    if not isinstance(value, str) or len(value) > 1000 or not value.isascii():
        raise InvalidRequest(_MALFORMED)
    return value


class PageTokens:
    """Makes tokens and reads them. All processes on a database have its secret, so each reads those of the others."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def sign(self, cursor: Cursor, filter_text: str) -> str:
        body = ("b" if cursor.backward else "f") + cursor.key
        return _write(self._mac(body, filter_text) + body.encode())

    def read(self, token: str, filter_text: str, key: re.Pattern[str]) -> Cursor:
        """Returns where a page begins. `key` checks the form that positions have in this listing: a token may be signed
        and still be nonsense, since everybody who can read the database can sign."""
        try:
            raw = base64.urlsafe_b64decode(token.encode("ascii") + b"=" * (-len(token) % 4))
            mac, body = raw[:16], raw[16:].decode()
            if _write(raw) != token:
                raise ValueError  # base64 has several ways to write the same, and passes over what it does not know
        except ValueError:
            raise InvalidRequest(_MALFORMED) from None
        if len(mac) < 16 or not hmac.compare_digest(mac, self._mac(body, filter_text)) or body[:1] not in ("b", "f"):
            raise InvalidRequest("page token does not belong to this listing; start again without a token")
        if key.fullmatch(body[1:]) is None:
            raise InvalidRequest(_MALFORMED)
        return Cursor(body[1:], body[0] == "b")

    def _mac(self, body: str, filter_text: str) -> bytes:
        return hmac.new(self._secret, f"{filter_text}\n{body}".encode(), hashlib.sha256).digest()[:16]


def _write(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def page_of(items: Sequence[T], size: int, token: str | None, about: str, tokens: PageTokens) -> Page[T]:
    """Cuts a page from items that are all at hand; `about` names the listing that the token must belong to."""
    begin = int(tokens.read(token, about, BY_NUMBER).key) if token else 0

    def token_of(position: int) -> str:
        return tokens.sign(Cursor(str(position)), about)

    end = begin + size
    return Page(
        tuple(items[begin:end]),
        token_of(end) if end < len(items) else None,
        token_of(max(0, begin - size)) if begin else None,
    )
