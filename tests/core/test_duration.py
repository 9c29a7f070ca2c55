from datetime import timedelta

import pytest

from kagzi.core.duration import format_span, parse_duration
from kagzi.errors import InvalidRequest

SECOND = 1_000_000
DAY = 86_400 * SECOND


@pytest.mark.parametrize(
    ("written", "span"),
    [
        (0, 0),
        (30, 30 * SECOND),
        (0.25, 250_000),
        (0.001, 1000),
        ("30s", 30 * SECOND),
        ("0.001s", 1000),
        ("250ms", 250_000),
        ("10m", 600 * SECOND),
        ("1.5h", 5400 * SECOND),
        (".5h", 1800 * SECOND),
        ("3d", 3 * DAY),
        ("1 day", DAY),
        ("2 weeks", 14 * DAY),
        ("1h30m", 5400 * SECOND),
        ("1h 30 min", 5400 * SECOND),
        ("1 day, 2 hours", DAY + 7200 * SECOND),
        ("  5S ", 5 * SECOND),
        ("1000w", 7000 * DAY),
        (timedelta(days=1, milliseconds=1), DAY + 1000),
    ],
)
def test_a_length_of_time_is_read_exactly(written: object, span: int) -> None:
    assert parse_duration(written) == span  # type: ignore[arg-type]


@pytest.mark.parametrize("thousandths", range(0, 100_000, 997))
def test_every_millisecond_is_exact(thousandths: int) -> None:
    assert parse_duration(thousandths / 1000) == thousandths * 1000
    assert parse_duration(f"{thousandths}ms") == thousandths * 1000
    assert parse_duration(f"{thousandths / 1000:.3f}s") == thousandths * 1000


@pytest.mark.parametrize(
    "written",
    [
        -1,
        -0.5,
        timedelta(seconds=-1),
        "-5s",
        float("nan"),
        float("inf"),
        float("-inf"),
        1e300,
        1.7e308,
        10**30,
        timedelta.max,
        True,
        False,
        None,
        [],
        b"5s",
        "",
        "   ",
        "30",
        "s",
        "5 parsecs",
        "5M",
        "1 month",
        "1 year",
        "5s!",
        "5s and 3m",
        "1e3s",
        "٣s",
        "5\0s",
        "1h-30m",
        "9" * 99 + "s",
        "1s" * 1000,
        "400000d",
    ],
)
def test_anything_else_is_refused_with_the_field_and_the_accepted_forms(written: object) -> None:
    with pytest.raises(InvalidRequest, match=r"(?s)^timeout .*accepted: .*timedelta"):
        parse_duration(written, "timeout")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("span", "text"),
    [
        (0, "0ms"),
        (1500, "1.5ms"),
        (250_000, "250ms"),
        (1_500_000, "1.5s"),
        (60 * SECOND, "1m"),
        (90 * SECOND, "1m 30s"),
        (5400 * SECOND, "1h 30m"),
        (3600 * SECOND - 300_000, "1h"),
        (3 * DAY, "3d"),
        (3 * DAY + 3600 * SECOND, "3d 1h"),
        (-90 * SECOND, "-1m 30s"),
    ],
)
def test_people_read_lengths_in_two_units(span: int, text: str) -> None:
    assert format_span(span) == text
