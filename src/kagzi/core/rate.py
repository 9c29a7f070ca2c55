"""How often runs may begin: a number in a period, with a burst. The arithmetic of a leaky bucket (GCRA), pure.

A rate is kept by one instant, the *turn*: when the bucket will have leaked empty. Each run that begins moves it on by
one interval. So nothing is counted, nothing has to be reset, and in any period at most `count + burst` runs begin.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from kagzi.core.duration import format_span, parse_duration
from kagzi.core.instant import Instant, Span
from kagzi.errors import InvalidRequest

MOST_COUNT: Final = 1_000_000
SHORTEST_PERIOD: Final[Span] = 1000
LONGEST_PERIOD: Final[Span] = 366 * 86_400 * 1_000_000


class RateLimit(Struct, frozen=True, order=True):
    """A rate: so many runs in a period, one after the other at the same distance; `burst` of them at once after a
    lull."""

    count: int
    period: Span
    burst: int = 1

    @property
    def interval(self) -> Span:
        """The time between two runs; rounded up, so that it is never a run too many."""
        return -(-self.period // self.count)

    @property
    def text(self) -> str:
        """The rate as people read it: `100 in 1m`."""
        return f"{self.count:,} in {format_span(self.period)}"

    def next_at(self, turn: Instant, now: Instant) -> Instant:
        """Returns when the next run may begin: now, or later."""
        # A clock that was set back must not stop everything for as long.
        if turn > now + self.period + self.burst * self.interval:
            turn = now + self.period
        return max(now, turn - (self.burst - 1) * self.interval)

    def taken(self, turn: Instant, now: Instant) -> Instant:
        """Returns the turn after a run that begins now, or at the next moment at which it may."""
        if turn > now + self.period + self.burst * self.interval:
            turn = now + self.period
        return max(turn, now) + self.interval

    def encode(self) -> str:
        return f"{self.count}/{self.period}/{self.burst}"


def decode_rate(text: str | None) -> RateLimit | None:
    return None if not text else RateLimit(*map(int, text.split("/")))


def check_rate(rate: RateLimit, field: str = "rate") -> RateLimit:
    if not 1 <= rate.count <= MOST_COUNT:
        raise InvalidRequest(f"{field}: the count must be from 1 to {MOST_COUNT:,}, not {rate.count}")
    if not SHORTEST_PERIOD <= rate.period <= LONGEST_PERIOD:
        raise InvalidRequest(f"{field}: the period must be from 1 ms to 366 days, not {format_span(rate.period)}")
    if not 1 <= rate.burst <= MOST_COUNT:
        raise InvalidRequest(f"{field}: the burst must be from 1 to {MOST_COUNT:,}, not {rate.burst}")
    return rate


_UNITS: Final = ("s", "m", "h", "d")  # 100/s is 100/1s


def read_rate(text: str, burst: int = 1, field: str = "rate") -> RateLimit:
    """Reads a rate as people write it: `100/1m`."""
    count, slash, period = text.partition("/")
    if not slash or not count.strip().isdecimal():
        raise InvalidRequest(f"{field}: say how many, a slash and a time, such as 100/1m, not {text[:60]!r}")
    period = period.strip()
    if period in _UNITS:
        period = f"1{period}"
    return check_rate(RateLimit(int(count), parse_duration(period, f"{field}: period"), burst), field)


def slower(one: RateLimit | None, other: RateLimit | None) -> RateLimit | None:
    """Returns the rate by which fewer runs begin."""
    if one is None or other is None:
        return other if one is None else one
    return min(one, other, key=lambda rate: (rate.count / rate.period, rate.burst))
