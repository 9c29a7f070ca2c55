"""Signals: what has arrived for a run, and which of its waits get what.

A wait takes the oldest signal of its name; several waits for one name are served in the order of their calls. Taking is
an event: it is recorded, and comes back on replay like the result of a step. A wait that is cancelled takes nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

from kagzi.core.instant import Instant, Span
from kagzi.core.signal import Signal, awaits_signal
from kagzi.sdk.replay.waits import SignalWait

_CLOSE: Final[Span] = 10  # a timer is set in seconds, and a moment is a whole number of microseconds
_MOST_NAMES: Final = 20  # of which a parked run is woken by each; beyond this by any signal


class SignalInbox:
    """Waits by name in the order of their calls, and signals that have arrived and were not taken."""

    def __init__(self) -> None:
        self._waits: dict[str, deque[SignalWait]] = {}
        self.arrived: dict[str, deque[Signal]] = {}
        self._known: set[int] = set()  # numbers of those that have arrived here, taken ones among them

    def add_wait(self, wait: SignalWait) -> None:
        self._waits.setdefault(wait.name, deque()).append(wait)

    def remove_wait(self, wait: SignalWait) -> None:
        waits = self._waits.get(wait.name)
        if waits is not None and wait in waits:
            waits.remove(wait)
            if not waits:
                del self._waits[wait.name]

    def receive(self, signals: Iterable[Signal]) -> None:
        """Takes in signals in the order of arrival. Those that came before are passed over."""
        for signal in signals:
            if signal.seq not in self._known:
                self._known.add(signal.seq)
                self.arrived.setdefault(signal.name, deque()).append(signal)

    def next(self) -> tuple[SignalWait, Signal] | None:
        """Returns the oldest signal that somebody waits for, and the wait it is for. Nothing is taken yet."""
        found: tuple[SignalWait, Signal] | None = None
        for name, signals in self.arrived.items():
            waits = self._waits.get(name)
            if waits and signals and (found is None or signals[0].seq < found[1].seq):
                found = (waits[0], signals[0])
        return found

    def take(self, signal: Signal) -> None:
        self.arrived[signal.name].remove(signal)
        if not self.arrived[signal.name]:
            del self.arrived[signal.name]

    def unserved_names(self) -> tuple[str, ...]:
        """Returns the names that more calls wait for than signals have arrived here."""
        return tuple(
            sorted(name for name, waits in self._waits.items() if len(waits) > len(self.arrived.get(name, ())))
        )

    def gives_default(self, at: Instant) -> bool:
        """Returns whether a wait ends with a default at this moment."""
        return any(
            wait.default_at is not None and abs(wait.default_at - at) <= _CLOSE
            for waits in self._waits.values()
            for wait in waits
        )

    def waiting_for(self) -> tuple[str, ...]:
        """Returns what may wake the run, as `ParkRun` says it."""
        if len(self._waits) > _MOST_NAMES:
            return (awaits_signal("*"),)
        return tuple(sorted(awaits_signal(name) for name in self._waits))
