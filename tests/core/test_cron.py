"""Times of expressions, compared with a calendar that is read minute by minute."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim
from hypothesis import given, settings
from hypothesis import strategies as st

from kagzi.core.cron import Times, check_zone, moved, parse_times, upcoming
from kagzi.core.instant import SECOND, Instant, from_datetime, to_datetime
from kagzi.errors import InvalidRequest
from tests.campaigns import length

MINUTE = 60 * SECOND
# Of every kind: an hour at 1, 2 and 3 o'clock, half an hour, two hours, at midnight, backwards in winter, without any.
ZONES = (
    "America/New_York",
    "Europe/Berlin",
    "Europe/Dublin",
    "Australia/Lord_Howe",
    "Antarctica/Troll",
    "America/Santiago",
    "Africa/Cairo",
    "Asia/Beirut",
    "Africa/Casablanca",
    "America/St_Johns",
    "Pacific/Chatham",
    "Asia/Kolkata",
)
YEARS = range(2024, length(2027, 2031))

Shown = Callable[[datetime], bool]
# Each with its meaning, said once more without cronsim; the first ones name hours, the others do not.
WALL: dict[str, Shown] = {
    "30 2 * * *": lambda at: (at.hour, at.minute) == (2, 30),
    "*/30 2 * * *": lambda at: at.hour == 2 and at.minute in (0, 30),
    "0 0 * * *": lambda at: (at.hour, at.minute) == (0, 0),
    "15,45 0,1,3 * * MON-SAT": lambda at: at.hour in (0, 1, 3) and at.minute in (15, 45) and at.weekday() < 6,
    "59 0-23 * * *": lambda at: at.minute == 59,
    "0 30 1 * * *": lambda at: (at.hour, at.minute) == (1, 30),
}
ELAPSED: dict[str, Shown] = {
    "0 * * * *": lambda at: at.minute == 0,
    "*/20 */2 * * *": lambda at: at.hour % 2 == 0 and at.minute % 20 == 0,
    "7 * * * SUN": lambda at: at.minute == 7 and at.weekday() == 6,
    "0 */15 * * * *": lambda at: at.minute % 15 == 0,
}


@cache
def changes(zone: str) -> list[Instant]:
    """The changes of clocks of these years, to the hour; for a zone without any, a few dates."""
    info = ZoneInfo(zone)
    hours = [datetime(YEARS[0], 1, 1, tzinfo=UTC) + timedelta(hours=n) for n in range(len(YEARS) * 366 * 24)]
    found = [
        from_datetime(later)
        for earlier, later in pairwise(hours)
        if earlier.astimezone(info).utcoffset() != later.astimezone(info).utcoffset()
    ]
    return found or [from_datetime(datetime(year, 3, 29, 1, tzinfo=UTC)) for year in YEARS]


@cache
def minutes(zone: str, around: Instant) -> list[tuple[Instant, datetime]]:
    """Every minute of 40 hours around an instant, with what clocks on the wall show."""
    info = ZoneInfo(zone)
    first = around - 20 * 60 * MINUTE
    instants = [first + n * MINUTE for n in range(40 * 60)]
    return [(at, to_datetime(at).astimezone(info).replace(tzinfo=None, fold=0)) for at in instants]


def by_elapsed_time(zone: str, around: Instant, shown: Shown) -> list[Instant]:
    return [at for at, wall in minutes(zone, around) if shown(wall)]


def by_the_wall(zone: str, around: Instant, shown: Shown) -> list[Instant]:
    first_at: dict[datetime, Instant] = {}
    for at, wall in minutes(zone, around):
        first_at.setdefault(wall, at)
    first, last = min(first_at), max(first_at)
    calendar = (first + timedelta(minutes=n) for n in range((last - first) // timedelta(minutes=1) + 1))
    # A time that no clock shows fires at the first instant at which clocks show a later one.
    return sorted(
        {
            first_at.get(wall) or next(at for at, later in minutes(zone, around) if later > wall)
            for wall in calendar
            if shown(wall)
        }
    )


CASES = [(expr, by_the_wall, shown) for expr, shown in WALL.items()] + [
    (expr, by_elapsed_time, shown) for expr, shown in ELAPSED.items()
]


@pytest.mark.parametrize(("expression", "brute", "shown"), CASES, ids=[case[0] for case in CASES])
@pytest.mark.parametrize("zone", ZONES)
def test_times_are_those_of_a_calendar_read_minute_by_minute(
    zone: str, expression: str, brute: Callable[[str, Instant, Shown], list[Instant]], shown: Shown
) -> None:
    times = parse_times(expression, zone)
    # Each sees half of the changes, and its neighbour the other half.
    for around in changes(zone)[list({**WALL, **ELAPSED}).index(expression) % 2 :: 2]:
        expected = brute(zone, around, shown)
        begin, end = minutes(zone, around)[0][0], minutes(zone, around)[-1][0]
        # What fires at the very edge may belong to a day that is not in sight.
        begin, end = begin + 4 * 60 * MINUTE, end - 4 * 60 * MINUTE
        at: Instant | None = begin
        forward = []
        while (at := times.after(at)) is not None and at <= end:
            forward.append(at)
        assert forward == [at for at in expected if begin < at <= end], to_datetime(around)
        at, backward = end, []
        while (at := times.until(at)) is not None and at > begin:
            backward.append(at)
            at -= 1
        assert backward[::-1] == forward, to_datetime(around)
        check_from_anywhere(times, forward, begin, end)


def check_from_anywhere(times: Times, expected: list[Instant], begin: Instant, end: Instant) -> None:
    """Asked at any moment, also within an hour that repeats, the answers are the neighbours of that moment."""
    for moment in range(begin, end, 187 * MINUTE + 13 * SECOND + 1):
        following = [at for at in expected if at > moment]
        if following:
            assert times.after(moment) == following[0], to_datetime(moment)
        before = [at for at in expected if at <= moment]
        if before:
            assert times.until(moment) == before[-1], to_datetime(moment)


@pytest.mark.parametrize("zone", ZONES)
def test_a_named_time_fires_once_a_day_for_years(zone: str) -> None:
    times = parse_times("30 2 * * *", zone)
    info = ZoneInfo(zone)
    start = from_datetime(datetime(YEARS[0], 1, 1, 12, tzinfo=info))
    days = [to_datetime(at).astimezone(info).date() for at in upcoming(times, start, 365 * len(YEARS))]
    assert all(later - earlier == timedelta(days=1) for earlier, later in pairwise(days))


EXPRESSIONS = (*WALL, *ELAPSED, "@hourly", "every 90s", "*/7 * * * * *", "0 0 L * *", "0 12 * 2 MON#1", "0 0 29 2 *")


@settings(deadline=None, max_examples=150)
@given(
    expression=st.sampled_from(EXPRESSIONS),
    zone=st.sampled_from(ZONES),
    start=st.integers(1_600_000_000 * SECOND, 1_900_000_000 * SECOND),
    pause=st.integers(0, 5 * 3600 * SECOND),
)
def test_one_at_a_time_is_all_at_once(expression: str, zone: str, start: Instant, pause: int) -> None:
    """Whoever asks between two firings, at whatever moment, hears of the same ones."""
    times = parse_times(expression, zone)
    together = list(upcoming(times, start, 6))
    assert together == sorted(set(together))
    for earlier, later in pairwise([start, *together]):
        asked = min(earlier + pause, later - 1)
        assert times.after(asked) == later
        if asked >= earlier and earlier != start:
            assert times.until(asked) == earlier


def local(expression: str, zone: str, after: str, count: int) -> list[str]:
    start = from_datetime(datetime.fromisoformat(after).replace(tzinfo=ZoneInfo(zone)))
    found = upcoming(parse_times(expression, zone), start, count)
    return [to_datetime(at).astimezone(ZoneInfo(zone)).isoformat(" ") for at in found]


def test_a_time_in_the_gap_fires_at_its_end_and_a_repeated_one_the_first_time() -> None:
    assert local("30 2 * * *", "America/New_York", "2026-03-07 12:00", 2) == [
        "2026-03-08 03:00:00-04:00",
        "2026-03-09 02:30:00-04:00",
    ]
    assert local("30 1 * * *", "America/New_York", "2026-10-31 12:00", 2) == [
        "2026-11-01 01:30:00-04:00",
        "2026-11-02 01:30:00-05:00",
    ]
    # With leading seconds, too.
    assert local("0 30 2 * * *", "America/New_York", "2026-03-07 12:00", 1) == ["2026-03-08 03:00:00-04:00"]
    assert local("0 30 1 * * *", "America/New_York", "2026-10-31 12:00", 2)[1] == "2026-11-02 01:30:00-05:00"


def test_every_hour_is_every_hour_that_passes() -> None:
    assert local("0 * * * *", "Europe/Berlin", "2026-10-25 01:30", 4) == [
        "2026-10-25 02:00:00+02:00",
        "2026-10-25 02:00:00+01:00",
        "2026-10-25 03:00:00+01:00",
        "2026-10-25 04:00:00+01:00",
    ]


@pytest.mark.parametrize(
    ("expression", "zone", "after", "told"),
    [
        ("30 2 * * *", "Europe/Berlin", "2026-03-28 12:00", "moved: the time it names does not exist on this day"),
        ("0 3 * * *", "Europe/Berlin", "2026-03-28 12:00", None),
        ("30 2 * * *", "Europe/Berlin", "2026-10-24 12:00", "the first of two such times on this day"),
        ("30 4 * * *", "Europe/Berlin", "2026-10-24 12:00", None),
        ("0 * * * *", "Europe/Berlin", "2026-10-25 01:30", "the first of two such times"),
        ("every 15m", "Europe/Berlin", "2026-10-25 01:50", None),
    ],
)
def test_people_are_told_of_what_daylight_saving_moves(
    expression: str, zone: str, after: str, told: str | None
) -> None:
    times = parse_times(expression, zone)
    at = times.after(from_datetime(datetime.fromisoformat(after).replace(tzinfo=ZoneInfo(zone))))
    assert at is not None
    assert moved(times, at) == told


def test_every_counts_from_1970_so_that_all_processes_agree() -> None:
    times = parse_times("every 90s")
    assert list(upcoming(times, 0, 3)) == [90 * SECOND, 180 * SECOND, 270 * SECOND]
    assert times.until(179 * SECOND) == 90 * SECOND
    assert parse_times("EVERY 1h30m").after(0) == 5400 * SECOND


def test_names_of_hours_days_and_years() -> None:
    midnight = from_datetime(datetime(2026, 11, 18, tzinfo=UTC))
    start = from_datetime(datetime(2026, 11, 17, 22, 30, tzinfo=UTC))
    assert parse_times("@daily").after(start) == parse_times("@midnight").after(start) == midnight
    assert parse_times("@hourly").after(start) == midnight - 3600 * SECOND
    assert to_datetime(parse_times("@weekly").after(start) or 0) == datetime(2026, 11, 22, tzinfo=UTC)
    assert to_datetime(parse_times("@monthly").after(start) or 0) == datetime(2026, 12, 1, tzinfo=UTC)
    assert parse_times("@yearly").after(start) == parse_times("@annually").after(start)


def test_a_question_mark_is_any_day() -> None:
    assert parse_times("0 0 12 ? * MON-FRI").after(0) == parse_times("0 12 * * 1-5").after(0)


@pytest.mark.parametrize(
    ("expression", "told"),
    [
        ("61 * * * *", "Bad minute '61' in '61 * * * *'; it takes 0 to 59"),
        ("0 24 * * *", "Bad hour '24'"),
        ("0 0 32 * *", "Bad day-of-month '32'"),
        ("0 0 30 2 *", "Bad day-of-month '30'"),
        ("0 0 * 13 *", "Bad month '13'"),
        ("0 0 * * 8", "Bad day-of-week '8'"),
        ("0 9 * * SAT-SUN", "Bad day-of-week 'SAT-SUN'"),
        ("99 0 0 * * *", "Bad second '99'"),
        ("*/0 * * * *", "Bad minute '*/0'"),
        ("* * * *", "has 4 fields"),
        ("0 0 0 1 1 * 2027", "has 7 fields"),
        ("", "is empty"),
        ("   ", "is empty"),
        ("@reboot", "'@reboot' is not known; there are @hourly"),
        ("every", 'write for example "every 15m"'),
        ("every 0s", 'at least "every 1s"'),
        ("every 999ms", 'at least "every 1s"'),
        ("every -1s", "is negative"),
        ("every blue moon", "is not a length of time"),
        ("0 0 9 * * 1", "numbers mean other days in other programs; write names such as MON-FRI"),
        ("0 0 9 * * MON,3", "numbers mean other days"),
        ("0 0 9 1 * MON", "restricts both the day of the month and the day of the week"),
        ("* " * 200, "at most 255 are allowed"),
        (15, "must be text, not int"),
    ],
)
def test_what_is_wrong_is_told_with_the_field_and_an_example(expression: object, told: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_times(expression)
    assert told in str(refused.value)
    assert str(refused.value).startswith("cron_expr")


def test_what_never_comes_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"Bad day-of-month '31'|matches no day within 50 years"):
        parse_times("0 0 31 6 *")
    assert parse_times("0 0 * 2 MON#5").after(0) is not None


@pytest.mark.parametrize("zone", ["Europe/Berlim", "Europe", "../../etc/passwd", "", "MARS/Olympus", "a" * 5000, 7])
def test_a_zone_that_is_not_known_is_refused(zone: object) -> None:
    with pytest.raises(InvalidRequest, match="time zone"):
        check_zone(zone)


@pytest.mark.parametrize("written", ["europe/berlin", "Europe/Berln", "Berlin", "berlni"])
def test_a_zone_that_was_perhaps_meant_is_named(written: str) -> None:
    with pytest.raises(InvalidRequest, match="did you mean 'Europe/Berlin'"):
        check_zone(written)


@pytest.mark.parametrize("written", ["X" * 65, "X" * 400_000])
def test_a_long_name_is_compared_with_no_zone(written: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kagzi.core.cron.difflib", None)
    with pytest.raises(InvalidRequest, match="time zone"):
        check_zone(written)


@given(
    days=st.sampled_from(["L", "LW", "*/31,L", "*/30,LW"]) | st.integers(1, 31).map("*/{}".format),
    months=st.integers(1, 12).map(str) | st.just("*"),
    weekdays=st.sampled_from(["1#5", "3#4", "5L", "*/7", "1#1,2#5", "0", "*/3"]),
)
@settings(max_examples=length(60, 2_000), deadline=None)
def test_days_that_never_come_are_known_without_looking_for_them(days: str, months: str, weekdays: str) -> None:
    expression = f"0 0 {days} {months} {weekdays}"
    try:
        parse_times(expression)
    except InvalidRequest as error:
        if "matches no day" not in str(error):
            return
        with pytest.raises(StopIteration):
            next(CronSim(expression, datetime(2000, 1, 1)))
    else:
        assert next(CronSim(expression, datetime(2000, 1, 1)))
