"""When a schedule fires: cron expressions, `@daily` and its friends, `every 15m`, in any time zone.

An expression of 5 fields is minute, hour, day of month, month, day of week; one of 6 has seconds before them. cronsim
says which times of a calendar match. It only sees naive local time, and what becomes of the two hours a year that do
not exist or exist twice is decided here:

* An hour field that names hours (`30 2 * * *`) follows the clock on the wall. A time that does not exist fires when the
  gap ends, one that comes twice fires the first time: once a day, every day.
* An hour field that begins with `*` follows elapsed time: each instant fires at which a clock on the wall shows a
  matching time, so `0 * * * *` fires 23 or 25 times on those days.

`every 15m` is all multiples of its length since 1970 UTC, so that every process has the same ones.
"""

from __future__ import annotations

import difflib
import re
from calendar import monthrange
from collections.abc import Iterator
from datetime import date, datetime, timedelta
from functools import lru_cache
from typing import Final, Protocol
from zoneinfo import ZoneInfo, available_timezones

from cronsim import CronSim, CronSimError

from kagzi.core.duration import parse_duration
from kagzi.core.instant import NEVER, SECOND, Instant, Span, from_datetime, to_datetime
from kagzi.errors import InvalidRequest

EXPRESSION_CHARACTERS: Final = 255
ZONE_CHARACTERS: Final = 255
_LONGEST_ZONE: Final = 64  # characters of a name that is compared with those of zones
SHORTEST_INTERVAL: Final[Span] = SECOND

_NAMED: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
# What each field takes, by the name that cronsim has for it.
_FIELDS: Final = {
    "second": ("0 to 59", "*/10 * * * * *"),
    "minute": ("0 to 59", "*/15 * * * *"),
    "hour": ("0 to 23", "30 9-17 * * *"),
    "day-of-month": (
        "1 to 31, L for the last day or LW for the last weekday, and a month must have it",
        "0 9 1,15 * *",
    ),
    "month": ("1 to 12 or JAN to DEC", "0 9 1 JAN,JUL *"),
    "day-of-week": ("0 to 7 (both are Sunday) or SUN to SAT, from an earlier to a later one", "0 9 * * MON-FRI"),
}
_FORMS: Final = (
    'accepted: 5 fields (minute hour day month weekday) such as "0 9 * * MON-FRI", 6 with seconds before them, '
    f'{", ".join(_NAMED)}, or "every 15m"'
)
_NTH: Final = re.compile(r"#\d+")  # of MON#2, where the digit is no weekday


class Times(Protocol):
    """The instants of one expression, without end in both directions."""

    def after(self, instant: Instant) -> Instant | None:
        """Returns the first one later than this; None if there is none in 50 years."""
        ...

    def until(self, instant: Instant) -> Instant | None:
        """Returns the last one not later than this."""
        ...


def parse_times(expression: object, zone: object = "UTC", field: str = "cron_expr") -> Times:
    """Returns the times of an expression in a zone; InvalidRequest says what is wrong with which of its fields."""
    if not isinstance(expression, str):
        raise InvalidRequest(f"{field} must be text, not {type(expression).__name__}; {_FORMS}")
    if len(expression) > EXPRESSION_CHARACTERS:
        raise InvalidRequest(f"{field} has {len(expression)} characters; at most {EXPRESSION_CHARACTERS} are allowed")
    return _parse(expression, check_zone(zone), field)


def check_zone(zone: object) -> str:
    """Returns the name of a time zone that this machine knows."""
    if not isinstance(zone, str):
        raise InvalidRequest(f'the time zone must be a name such as "Europe/Berlin", not {type(zone).__name__}')
    if len(zone) > ZONE_CHARACTERS:
        raise InvalidRequest(f"the time zone has {len(zone):,} characters; at most {ZONE_CHARACTERS} are allowed")
    _zone(zone)
    return zone


def upcoming(times: Times, after: Instant, count: int) -> Iterator[Instant]:
    """Yields the next instants, at most so many."""
    for _ in range(count):
        following = times.after(after)
        if following is None:
            return
        yield following
        after = following


def moved(times: Times, instant: Instant) -> str | None:
    """Returns what daylight saving has done to this instant, in words for people; None if nothing."""
    return times.moved(instant) if isinstance(times, _Calendar) else None


# A process that fires many schedules asks for the same few expressions again and again.
@lru_cache(maxsize=4096)
def _parse(expression: str, zone: str, field: str) -> Times:
    text = expression.strip()
    if not text:
        raise InvalidRequest(f"{field} is empty; {_FORMS}")
    if text.lower().startswith("every"):
        return _interval(text, field)
    if text.startswith("@"):
        if (named := _NAMED.get(text.lower())) is None:
            raise InvalidRequest(f"{field}: {text!r} is not known; there are {', '.join(_NAMED)}")
        text = named
    return _Calendar(text, _zone(zone), field)


@lru_cache(maxsize=1024)
def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, KeyError):  # not there, a folder of zones, a path out of the database
        close = _close_zone(name)
        meant = f"; did you mean {close!r}?" if close else '; names are like "Europe/Berlin" or "UTC"'
        raise InvalidRequest(f"the time zone {name!r:.80} is not known on this machine{meant}") from None


@lru_cache(maxsize=1024)
def _close_zone(name: str) -> str | None:
    """Returns the zone that was meant: one that begins like the name, or whose city does."""
    if len(name) > _LONGEST_ZONE:
        return None
    written = name.casefold()
    close = difflib.get_close_matches(written, _zones_by_letter().get(written[:1], ()), n=1, cutoff=0.6)
    return _zones_by_letter()[written[:1]][close[0]] if close else None


@lru_cache(maxsize=1)
def _zones_by_letter() -> dict[str, dict[str, str]]:
    """Returns the zones of this machine by what may be written for them, and that by its first letter."""
    found: dict[str, dict[str, str]] = {}
    for zone in sorted(available_timezones()):
        for written in (zone.casefold(), zone.rpartition("/")[2].casefold()):
            found.setdefault(written[0], {}).setdefault(written, zone)
    return found


class _Interval:
    """Multiples of a length since 1970."""

    def __init__(self, length: Span) -> None:
        self._length = length

    def after(self, instant: Instant) -> Instant | None:
        following = (instant // self._length + 1) * self._length
        return following if following <= NEVER else None

    def until(self, instant: Instant) -> Instant | None:
        return instant // self._length * self._length


def _interval(text: str, field: str) -> _Interval:
    words = text.split(maxsplit=1)
    if len(words) != 2 or words[0].lower() != "every":
        raise InvalidRequest(f'{field}: {text!r} says no length of time; write for example "every 15m"')
    length = parse_duration(words[1], field)
    if length < SHORTEST_INTERVAL:
        raise InvalidRequest(f'{field}: {text!r} is too often; at least "every 1s", for example "every 90s"')
    return _Interval(length)


class _Calendar:
    """Times of a calendar, as clocks on the wall of a zone show them."""

    def __init__(self, text: str, zone: ZoneInfo, field: str) -> None:
        fields = text.upper().split()
        if len(fields) not in (5, 6):
            raise InvalidRequest(f"{field}: {text!r} has {len(fields)} fields; {_FORMS}")
        day, weekday = fields[-3], fields[-1]
        # What other programs write for "any" in one of the two day fields.
        fields[-3], fields[-1] = day.replace("?", "*"), weekday.replace("?", "*")
        if len(fields) == 6:
            _refuse_ambiguous_days(text, fields[-3], fields[-1], field)
        try:
            # The start is replaced before each question.
            self._matches = CronSim(" ".join(fields), datetime(2000, 1, 1))
        except CronSimError as error:
            raise _refused(str(error), text, fields, field) from None
        self._wall = not fields[-4].startswith("*")
        self._zone = zone
        if not self._has_days():
            raise InvalidRequest(f"{field}: {text!r} matches no day within 50 years")

    def _has_days(self) -> bool:
        """Returns whether any day is meant. Where the day of the month and that of the week must both match, each day
        of the month is looked at on every weekday, which 28 years have; looking for the first match would take long
        where there is none."""
        matches = self._matches
        if not matches.day_and:
            return True
        ends = range(26, 32) if min(matches.days) < 0 else ()
        days = sorted({*(day for day in matches.days if day > 0), *ends})
        return any(
            matches.match_day(date(year, month, day))
            for month in matches.months
            for day in days
            for year in range(2000, 2028)
            if day <= monthrange(year, month)[1]
        )

    def after(self, instant: Instant) -> Instant | None:
        here = self._local(instant)
        change = self._repeated(here)
        starts = [here]
        if change is not None:
            if here.fold and self._wall:
                starts = [change.late - _TICK]  # all of these hours have fired the first time
            elif not here.fold and not self._wall:
                starts.append(change.early - _TICK)  # and will come a second time
        found = [at for start in starts if (at := self._forward(start, instant)) is not None]
        return min(found, default=None)

    def until(self, instant: Instant) -> Instant | None:
        here = self._local(instant)
        change = self._repeated(here)
        starts = [here + _TICK]
        if change is not None and here.fold:
            # Later ones on the wall have been, the first time that the clock showed them.
            starts = [change.late] if self._wall else [*starts, change.late]
        found = [at for start in starts if (at := self._backward(start, instant)) is not None]
        return max(found, default=None)

    def moved(self, instant: Instant) -> str | None:
        here = self._local(instant)
        if self._wall:
            before = self._local(instant - SECOND)
            if here.utcoffset() != before.utcoffset() and not self._shows(here):
                return "moved: the time it names does not exist on this day"
            return None if self._repeated(here) is None else "the first of two such times on this day"
        return None if self._repeated(here) is None else f"the {'second' if here.fold else 'first'} of two such times"

    def _shows(self, here: datetime) -> bool:
        """Whether a clock that shows this is asked for, without any gap in between."""
        naive = here.replace(tzinfo=None, fold=0)
        return self._next_match(naive - _TICK) == naive

    def _forward(self, start: datetime, instant: Instant) -> Instant | None:
        naive = start.replace(tzinfo=None, fold=0)
        while (match := self._next_match(naive)) is not None:
            naive = match
            for at in self._instants(match):
                if at > instant:
                    return at
            if (gap := self._gap(match)) is not None:
                naive = gap.late - _TICK
        return None

    def _backward(self, start: datetime, instant: Instant) -> Instant | None:
        naive = start.replace(tzinfo=None, fold=0)
        while (match := self._next_match(naive, reverse=True)) is not None:
            naive = match
            for at in reversed(self._instants(match)):
                if at <= instant:
                    return at
            if (gap := self._gap(match)) is not None:
                naive = gap.early
        return None

    def _next_match(self, naive: datetime, *, reverse: bool = False) -> datetime | None:
        matches = CronSim.__new__(CronSim)
        vars(matches).update(vars(self._matches))  # several threads ask at once; a third of what copy() costs
        matches.dt, matches.tick_direction = naive, -1 if reverse else 1
        try:
            return next(matches)
        except (StopIteration, OverflowError, ValueError):  # none in 50 years, or beyond the calendar
            return None

    def _instants(self, naive: datetime) -> list[Instant]:
        """Returns when this local time fires: at most once by the wall, else as often as it exists."""
        first, second = (naive.replace(tzinfo=self._zone, fold=fold) for fold in (0, 1))
        if first.utcoffset() == second.utcoffset():
            return [_instant(first)]
        if (gap := self._gap(naive)) is not None:
            return [gap.at] if self._wall else []
        return [_instant(first)] if self._wall else [_instant(first), _instant(second)]

    def _gap(self, naive: datetime) -> _Change | None:
        """Returns the gap that swallows this local time."""
        first, second = (naive.replace(tzinfo=self._zone, fold=fold) for fold in (0, 1))
        if _offset(second) <= _offset(first):
            return None
        return self._change(_instant(second), _instant(first))

    def _repeated(self, here: datetime) -> _Change | None:
        """Returns the change that makes this time of the wall come twice."""
        first, second = here.replace(fold=0), here.replace(fold=1)
        if _offset(second) >= _offset(first):
            return None
        return self._change(_instant(first), _instant(second))

    def _change(self, before: Instant, behind: Instant) -> _Change:
        """Returns the one change of clocks between two instants, by halving."""
        offset = self._offset_at(before)
        while behind - before > SECOND:
            middle = (before + behind) // (2 * SECOND) * SECOND
            if self._offset_at(middle) == offset:
                before = middle
            else:
                behind = middle
        at = -(-behind // SECOND) * SECOND
        shown = [to_datetime(at).replace(tzinfo=None) + by for by in (offset, self._offset_at(at))]
        return _Change(at, min(shown), max(shown))

    def _offset_at(self, instant: Instant) -> timedelta:
        return _offset(self._local(instant))

    def _local(self, instant: Instant) -> datetime:
        return to_datetime(instant // SECOND * SECOND).astimezone(self._zone)


class _Change:
    """A change of clocks: when, and what they show before and after it, the earlier one first."""

    def __init__(self, at: Instant, early: datetime, late: datetime) -> None:
        self.at = at
        self.early = early
        self.late = late


_TICK: Final = timedelta(seconds=1)


def _instant(aware: datetime) -> Instant:
    return from_datetime(aware)


def _offset(aware: datetime) -> timedelta:
    return aware.utcoffset() or timedelta()


def _refuse_ambiguous_days(text: str, day: str, weekday: str, field: str) -> None:
    """Six fields come from programs that number weekdays from 1, or ask for both days where cron asks for either. The
    same text would silently move by a day."""
    if any(character.isdigit() for character in _NTH.sub("", weekday)):
        raise InvalidRequest(
            f"{field}: {text!r} has a number for a day of the week after leading seconds, and numbers mean other days "
            'in other programs; write names such as MON-FRI, for example "0 30 9 * * MON-FRI"'
        )
    if not day.startswith("*") and not weekday.startswith("*"):
        raise InvalidRequest(
            f"{field}: {text!r} restricts both the day of the month and the day of the week after leading seconds, "
            'which means either to some programs and both to others; write * for one, for example "0 30 9 1 * *"'
        )


def _refused(reason: str, text: str, fields: list[str], field: str) -> InvalidRequest:
    name = reason.removeprefix("Bad ")
    if name not in _FIELDS:
        return InvalidRequest(f"{field}: {reason} in {text!r}; {_FORMS}")
    accepted, example = _FIELDS[name]
    value = fields[list(_FIELDS).index(name) - 6]
    return InvalidRequest(f"{field}: Bad {name} {value!r} in {text!r}; it takes {accepted}, for example {example!r}")
