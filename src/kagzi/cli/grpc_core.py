"""How gRPC's core behaves in a process of ours. It reads its environment when it is imported, so this comes before.

In programs of others it behaves as they say: nothing but commands does this.
"""

from __future__ import annotations

import os
from importlib import metadata
from typing import Final

# The event engine wakes one thread more for every message than the poller before it: a message to and fro on a stream
# takes 0.39 ms with it and 0.25 ms without, and a third less CPU at both ends (benchmarks/README.md).
_WITHOUT_EVENT_ENGINE: Final = "-event_engine_client,-event_engine_listener"
_KNOWN_UP_TO: Final = (1, 85)  # a version that does not know these names would complain on standard error


def prepare_grpc(*, verbose: bool) -> None:
    if not verbose:
        # It writes to standard error past our format, for every attempt again. What matters of it we say.
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    if _known():
        os.environ.setdefault("GRPC_EXPERIMENTS", _WITHOUT_EVENT_ENGINE)


def _known() -> bool:
    try:
        major, minor = metadata.version("grpcio").split(".")[:2]
        return (int(major), int(minor)) <= _KNOWN_UP_TO
    except (metadata.PackageNotFoundError, ValueError):
        return False
