"""What a worker knows of the engine's time: two bounds, between which the truth lies."""

from __future__ import annotations

from kagzi.core.instant import SECOND
from kagzi.sdk.worker.engine_clock import Bounds, EngineClock

AHEAD = 1_000 * SECOND  # of the database's clock before the worker's


def test_the_time_lies_between_the_sending_and_the_arrival() -> None:
    # Sent at 10, answered by the database at 12 of our clock, arrived at 15.
    assert EngineClock().heard(10, AHEAD + 12, 15) == Bounds(AHEAD - 3, AHEAD + 2)


def test_what_the_engine_let_it_wait_is_no_doubt() -> None:
    sent, asked, arrived = 0, 60 * SECOND, 60 * SECOND + 5
    assert EngineClock().heard(sent, AHEAD + asked, arrived, waited=asked - 3) == Bounds(AHEAD - 5, AHEAD + 3)


def test_runs_that_were_there_before_the_poll_came_do_not_make_it_earlier() -> None:
    born, sent, came, arrived = 100, 1_000, 1_010, 1_020
    bounds = EngineClock().heard(sent, AHEAD + born, arrived, waited=born - came)
    assert bounds.low <= AHEAD <= bounds.high
    assert bounds.high == AHEAD + 10


def test_an_answer_that_was_held_up_does_not_widen_what_is_known() -> None:
    clock = EngineClock()
    clock.heard(0, AHEAD + 10, 20)
    held_up = clock.heard(100, AHEAD + 110, 2 * SECOND)
    drift = (2 * SECOND - 20) // 5_000
    assert held_up == Bounds(AHEAD - 10 - drift, AHEAD + 10)


def test_a_request_that_was_held_up_does_not_either() -> None:
    clock = EngineClock()
    clock.heard(0, AHEAD + 10, 20)
    held_up = clock.heard(100, AHEAD + 2 * SECOND, 2 * SECOND + 5)
    assert held_up.low == AHEAD - 5
    assert AHEAD + 10 <= held_up.high <= AHEAD + 10 + SECOND // 1_000


def test_clocks_that_drift_apart_are_followed() -> None:
    clock = EngineClock()
    fast = 0
    for second in range(0, 3_600, 10):
        at = second * SECOND
        fast = at // 10_000  # 100 ppm
        bounds = clock.heard(at, AHEAD + at + fast + 500, at + 1_000)
        assert bounds.low <= AHEAD + fast + 500 - 500
        assert bounds.high >= AHEAD + fast


def test_a_clock_that_was_set_is_believed_at_once() -> None:
    clock = EngineClock()
    clock.heard(0, AHEAD + 10, 20)
    hour = 3_600 * SECOND
    assert clock.heard(100, AHEAD + hour + 110, 120) == Bounds(AHEAD + hour - 10, AHEAD + hour + 10)
    assert clock.heard(200, AHEAD + 210, 220) == Bounds(AHEAD - 10, AHEAD + 10)
