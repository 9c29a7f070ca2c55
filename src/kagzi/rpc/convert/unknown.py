"""Values that only another version knows."""

from __future__ import annotations

from kagzi.errors import VersionMismatch
from kagzi.version import __version__


def unknown_value(what: str) -> VersionMismatch:
    """Makes the error for an answer with a value that this version does not know. A request with one is refused as
    InvalidRequest instead."""
    return VersionMismatch(
        f"the server answered with {what}, which this client, version {__version__}, does not know; "
        "upgrade the older of them"
    )
