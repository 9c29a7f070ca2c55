"""Whether client and server understand each other: asked once, when the client connects.

Within `v1` fields are only ever added, and either side passes over what it does not know. What this client cannot do
without are calls of our own; a server says in `supported_features` whether it has them.
"""

from __future__ import annotations

from typing import Final

from kagzi._proto.v1 import admin_pb2
from kagzi.errors import PermissionDenied, Unauthenticated, Unavailable, VersionMismatch
from kagzi.rpc.client.line import READ_SECONDS, Line
from kagzi.version import __version__, numbers_of

API: Final = "v1"
NEEDED: Final = ("batches", "packed-chunks", "history-pages", "wait")


async def check_server(line: Line, target: str) -> None:
    """Raises VersionMismatch, with both versions and what to do, if the two do not understand each other. A server that
    cannot or must not tell its version passes."""
    request = admin_pb2.GetServerInfoRequest()
    try:
        info = await line.call(
            "AdminService",
            "GetServerInfo",
            request,
            admin_pb2.GetServerInfoResponse,
            seconds=READ_SECONDS,
            patience=0.0,
        )
    except (Unavailable, Unauthenticated, PermissionDenied):
        return  # the first call that matters says so
    except VersionMismatch:
        raise VersionMismatch(
            f"the server at {target} does not say what it is; this client is version {__version__}. "
            "Check that it is a Kagzi server, and upgrade it"
        ) from None
    missing = [feature for feature in NEEDED if feature not in info.supported_features]
    if info.api_version != API:
        raise _mismatch(
            target, info, f"speaks {info.api_version[:20]!r}; this client speaks {API!r}. Upgrade the older"
        )
    if missing:
        raise _mismatch(target, info, f"lacks {', '.join(missing)}, which this client needs. Upgrade the server")
    if numbers_of(__version__) < numbers_of(info.min_sdk_version):
        raise _mismatch(target, info, f"needs clients of {info.min_sdk_version[:50]} or later. Upgrade the client")


def _mismatch(target: str, info: admin_pb2.GetServerInfoResponse, why: str) -> VersionMismatch:
    version = info.version[:50] or "unknown"
    return VersionMismatch(f"the server at {target} is version {version}, this client {__version__}: it {why}")
