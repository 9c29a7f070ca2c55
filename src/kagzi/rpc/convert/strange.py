"""What the other side said, and this version cannot know."""

from __future__ import annotations

from kagzi.errors import VersionMismatch
from kagzi.version import __version__


def strange(what: str) -> VersionMismatch:
    """An answer that only another version understands; a request of that sort is refused as InvalidRequest instead."""
    return VersionMismatch(
        f"the server answered with {what}, which this client, version {__version__}, does not know; "
        "upgrade the older of them"
    )
