"""What time it is for the engine, by the worker's own clock: not a number but two bounds.

Leases, sleeps and retries are counted in the database's time, and an answer that tells it may be long on its way:
behind a slow network, or because a body blocks the worker's loop. A worker that took the time for that of the answer's
arrival would be behind by as much, trust leases that somebody else holds by now, and end sleeps early.

What is certain is this. A request is sent before the database answers it, and arrives after: so at the sending the
database's time was at most the one in the answer, and at the arrival at least that. If the engine let the request wait,
it says for how long. Whatever is stamped gets the latest time it can be, and whatever falls due is compared with the
earliest: so an answer that was held up makes sleeps longer, never shorter. The tightest bounds of earlier answers go on
to hold but for what two clocks drift apart.
"""

from __future__ import annotations

from msgspec import Struct

from kagzi.core.instant import Instant, Span

# Two clocks drift apart by a microsecond in so many, at most: 200 ppm are several times what quartz does.
_DRIFT = 5_000


class Bounds(Struct, frozen=True):
    """Bounds on how far the database's time is ahead of a worker's monotonic clock."""

    low: Span
    high: Span


class EngineClock:
    def __init__(self) -> None:
        self._known: tuple[Span, Bounds] | None = None  # one value: heartbeats have a thread of their own

    def heard(self, sent: Span, now: Instant, received: Span, waited: Span = 0) -> Bounds:
        """Takes note of an answer with the database's time: the request was sent at `sent` of our clock, and the answer
        has arrived by `received`. The engine had it for `waited` before it asked the database (less than 0 if it had
        asked before).

        Returns the bounds that hold from then on.
        """
        low, high = now - received, now - waited - sent
        known = self._known
        if known is not None:
            at, before = known
            drift = (received - at) // _DRIFT if received > at else 0
            least, most = before.low - drift, before.high + drift
            if least <= high and low <= most:
                low = least if least > low else low
                high = most if most < high else high
            # Else the database's clock was set, and only the new answer is true.
        bounds = Bounds(low, high)
        self._known = (received, bounds)
        return bounds
