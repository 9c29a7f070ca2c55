"""What a port may tell its callers about an error."""

from __future__ import annotations

from typing import Final

from kagzi.errors import KagziError, LimitExceeded, Locked, Unavailable

_OUT_OF_REACH: Final = "the server cannot reach its database at the moment; trying again is safe"


def message_to_caller(error: KagziError) -> str:
    """Returns the message of an error, but not of one that a database reports about itself: that names hosts and files,
    and is for the log."""
    outage = isinstance(error, Unavailable) and not isinstance(error, LimitExceeded | Locked)
    return _OUT_OF_REACH if outage else str(error)
