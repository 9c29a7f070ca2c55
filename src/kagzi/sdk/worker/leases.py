"""How old a lease is, by the worker's own clock.

A lease begins when the database gives it, and its answer may be long on its way: behind a slow network, or because the
worker's process stood still. Counting from its arrival, a worker would trust a lease that somebody else holds by now.
What comes with it is the database's time, so the question is how far the two clocks are apart. Every heartbeat tells:
the time in its answer lies after its sending, so "answered time less sending" is never less than the true distance, and
the smallest seen is the closest to it.
"""

from __future__ import annotations

from collections import deque

from kagzi.core.instant import Instant, Span

_SAMPLES = 8


class LeaseClock:
    def __init__(self) -> None:
        self._ahead: deque[int] = deque(maxlen=_SAMPLES)  # the database's clock before ours, at most

    def heard(self, sent: Span, now: Instant) -> None:
        """Something sent at this moment of our clock was answered with this time of the database."""
        if now:
            self._ahead.append(now - sent)

    def given_at(self, sent: Span, now: Instant, received: Span) -> Span:
        """The earliest moment of our clock at which a lease, given at `now` of the database, can have begun.

        It was asked for at `sent` and has arrived by `received`.
        """
        samples = tuple(self._ahead)  # heartbeats have a thread of their own
        return min(received, max(sent, now - min(samples))) if samples else sent
