"""Rates as people write them."""

from __future__ import annotations

import pytest

from kagzi.core.instant import SECOND
from kagzi.core.rate import RateLimit, read_rate
from kagzi.errors import InvalidRequest


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("100/1m", RateLimit(100, 60 * SECOND, 1)),
        ("100/m", RateLimit(100, 60 * SECOND, 1)),
        (" 5 / s ", RateLimit(5, SECOND, 1)),
        ("5/1.5s", RateLimit(5, 3 * SECOND // 2, 1)),
    ],
)
def test_a_rate_is_read(text: str, rate: RateLimit) -> None:
    assert read_rate(text) == rate


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("100", "--rate: say how many, a slash and a time"),
        ("many/1m", "--rate: say how many, a slash and a time"),
        ("1/soon", "--rate: period 'soon' is not a length of time"),
        ("0/1s", "--rate: the count must be from 1"),
        ("1/0s", "--rate: the period must be from 1 ms"),
        ("1/367d", "--rate: the period must be from 1 ms to 366 days, not 367d"),
    ],
)
def test_what_is_none_is_told(text: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        read_rate(text, field="--rate")
