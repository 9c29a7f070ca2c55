"""Bounds how fast runs are started in one namespace, so that none of them starves the others."""

from __future__ import annotations

from typing import Final

from kagzi.errors import LimitExceeded

_REMEMBERED: Final = 10_000


class StartRate:
    """Lets so many runs be started in a second. What was not used for a second may be used at once.

    A call may start many runs. It is let in as a whole while anything is left, and whoever comes next waits until what
    it took too much has passed: otherwise a call of more than a second's starts would never be let in.
    """

    def __init__(self, per_second: int) -> None:
        self._per_second = per_second
        self._namespaces: dict[str, tuple[float, float]] = {}  # what was left, and when

    def take(self, namespace: str, starts: int, now: float) -> None:
        """Takes one start; LimitExceeded if none is left at this moment of the loop's clock."""
        left, seen = self._namespaces.get(namespace, (float(self._per_second), now))
        left = min(self._per_second, left + (now - seen) * self._per_second)
        if left < 1:
            raise LimitExceeded(
                f"more than {self._per_second:,} runs a second are being started in namespace {namespace}; trying "
                "again later is safe"
            )
        if namespace not in self._namespaces and len(self._namespaces) >= _REMEMBERED:
            self._forget(now)
        self._namespaces[namespace] = (left - starts, now)

    def _forget(self, now: float) -> None:
        """Forgets namespaces that have used nothing for so long that they have their whole share again."""
        self._namespaces = {
            namespace: (left, seen)
            for namespace, (left, seen) in self._namespaces.items()
            if left + (now - seen) * self._per_second < self._per_second
        }
