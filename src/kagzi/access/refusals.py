"""Which refused calls the audit log hears of: a sample, because anybody can be refused as often as they like.

Each key has a sample of its own, and so have those who show none that is good: a flood of guesses must not take the
place of what a known key was refused. Of the guesses one host gets a part only.
"""

from __future__ import annotations

import logging
from collections import Counter
from math import inf
from typing import Final

log = logging.getLogger("kagzi.access")

STRANGER: Final = "nobody"
_SECONDS: Final = 60.0
_EACH: Final = 20  # of one key, or of all strangers together, in that time
_HOST: Final = 5  # of the strangers of one host


class Refusals:
    def __init__(self) -> None:
        self._since = -inf
        self._noted: Counter[str] = Counter()  # by actor, and by host of strangers
        self._told: set[str] = set()

    def notes(self, actor: str, peer: str, now: float) -> bool:
        """Says whether this refusal is written down, and counts it. The first that is not is told to the log."""
        if now - self._since > _SECONDS:
            self._since = now
            self._noted.clear()
            self._told.clear()
        host = f"host {_host(peer)}" if actor == STRANGER else ""
        if self._noted[actor] >= _EACH or (host and self._noted[host] >= _HOST):
            self._tell(actor, host)
            return False
        self._noted[actor] += 1
        if host:
            self._noted[host] += 1
        return True

    def _tell(self, actor: str, host: str) -> None:
        # Strangers are bounded together: more hosts than are noted cannot be told of either.
        who = host if host and self._noted[host] >= _HOST else actor
        if who not in self._told:
            self._told.add(who)
            log.warning("calls of %s are refused faster than the audit log notes them: some are left out", who)


def _host(peer: str) -> str:
    """The peer without its port, which differs from connection to connection: `ipv4:10.0.0.1:50312`, or an address."""
    kind, colon, rest = peer.partition(":")
    return rest.rpartition(":")[0] if colon and kind in ("ipv4", "ipv6") else peer
