"""Decides whether a worker that is refused goes on.

A server that is out of reach comes back, so a worker waits for it. One that answers and refuses, because the worker's
key was revoked or is for something else, hardly changes its mind; but another key may be on its way, into the file it
is read from. So a worker is patient for the length of its lease. By then its runs are lost to others anyway, and it
cannot hand them back.
"""

from __future__ import annotations

from collections.abc import Callable

from kagzi.core.instant import Span
from kagzi.errors import KagziError, PermissionDenied, Unauthenticated


class Refusals:
    """Counts refusals. It is told of every answer to a poll and to a heartbeat, from the threads of both."""

    def __init__(self, monotonic: Callable[[], Span]) -> None:
        self._monotonic = monotonic
        self._since: Span | None = None

    def answered(self) -> None:
        self._since = None

    def final(self, error: Exception, patience: Span) -> KagziError | None:
        """Returns the error, if it is a refusal and there was nothing but refusals for this long."""
        if not isinstance(error, Unauthenticated | PermissionDenied):
            return None
        now, since = self._monotonic(), self._since
        if since is None:
            self._since = now
            return None
        return error if now - since >= patience else None
