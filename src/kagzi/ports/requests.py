"""The id of a call, under which its caller, the log and the audit log all find it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextvars import ContextVar
from typing import Any, Final

from kagzi.ids import IdSource

HEADER: Final = "x-request-id"

# What may be shown in a log as it is.
_WELL_FORMED = re.compile(r"[A-Za-z0-9._:/+=@-]{1,100}")
_current: ContextVar[str | None] = ContextVar("kagzi_request", default=None)


def current_request() -> str | None:
    """Returns the id of the call that this code answers, if it was given one."""
    return _current.get()


def request_id(metadata: Iterable[tuple[str, Any]] | None, ids: IdSource) -> str:
    """Returns the caller's name for its call, else one of ours: the same however often it is asked for."""
    named = _current.get()
    if named is None:
        given = next((value for key, value in metadata or () if key == HEADER), None)
        named = given if isinstance(given, str) and _WELL_FORMED.fullmatch(given) else ids.token()
        _current.set(named)
    return named
