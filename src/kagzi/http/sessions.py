"""Sessions: who is logged in, read from a cookie, and which forms are ours.

A session is a row of the database that names the key its owner has logged in with, and a cookie with the id of the row,
signed by the secret of the database, so that ids made up by strangers cost no look. The gate reads the row with every
request, on whichever server: logging out ends the session everywhere, and so does revoking the key.

A form carries a token that is bound to the session. A page of another site can send a form, but it cannot read one of
ours, so it has no token; and a browser says where a form comes from besides.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

from kagzi.clock import Clock
from kagzi.core.instant import SECOND, Span
from kagzi.core.page import Cursor, PageTokens
from kagzi.errors import InvalidRequest

_SESSION: Final = "session"
_ENTRY: Final = re.compile(r"[0-9]{1,18}:[\x21-\x7e]{1,64}")
_MOMENT: Final = re.compile(r"[0-9]{1,18}")
_FORM_SECONDS: Final = 12 * 3600
DEFAULT_SECONDS: Final = 12 * 3600.0


class Sessions:
    def __init__(self, tokens: PageTokens, clock: Clock, seconds: float = DEFAULT_SECONDS) -> None:
        self._tokens = tokens
        self._clock = clock
        self.seconds = seconds

    @property
    def lifetime(self) -> Span:
        return round(self.seconds * SECOND)

    def cookie_of(self, session: str) -> str:
        """Returns the cookie of a session that begins now."""
        return self._tokens.sign(Cursor(f"{self._clock.now() + self.lifetime}:{session}"), _SESSION)

    def read(self, cookie: str | None) -> str | None:
        """Returns the id of a session whose time is not over. Whether it was ended before, the gate knows."""
        if not cookie:
            return None
        try:
            entry = self._tokens.read(cookie, _SESSION, _ENTRY).key
        except InvalidRequest:
            return None
        ends_at, _, session = entry.partition(":")
        return session if int(ends_at) > self._clock.now() else None

    def form_token(self, cookie: str | None) -> str:
        ends_at = self._clock.now() + _FORM_SECONDS * SECOND
        return self._tokens.sign(Cursor(str(ends_at)), _about_form(cookie))

    def owns_form(self, token: str, cookie: str | None) -> bool:
        try:
            ends_at = self._tokens.read(token, _about_form(cookie), _MOMENT).key
        except (InvalidRequest, UnicodeEncodeError):
            return False
        return int(ends_at) > self._clock.now()


def cookie_name(host: str) -> str:
    """Browsers share cookies between the ports of a host, and each port may be another server."""
    port = host.rpartition(":")[2]
    return f"kagzi_session_{port}" if port.isascii() and port.isdigit() else "kagzi_session"


def _about_form(cookie: str | None) -> str:
    return f"form {hashlib.sha256((cookie or '').encode('utf-8', 'replace')).hexdigest()}"
