from __future__ import annotations

import copy
import math
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kagzi.core.error_kind import ErrorKind
from kagzi.core.exceptions import failure_of
from kagzi.core.instant import SECOND
from kagzi.core.retry import UNLIMITED, Retry, next_attempt
from kagzi.errors import InvalidRequest, NonRetryable, NotSerializable, RetryAfter, StepTimeout


class Declined(Exception):
    pass


class VeryDeclined(Declined):
    pass


# The policy is asked with the exception on the worker, and with the stored failure elsewhere.
both = pytest.mark.parametrize("as_seen", [lambda e: e, failure_of], ids=["exception", "failure"])
Seen = Callable[[BaseException], Any]


def test_the_default_delays() -> None:
    retry = Retry()
    assert [retry.delay(n) // SECOND for n in range(1, 9)] == [1, 2, 4, 8, 16, 32, 60, 60]
    assert next_attempt(retry, ValueError(), 4, 0.5) == 8 * SECOND
    assert next_attempt(retry, ValueError(), 5, 0.5) is None


@given(
    first=st.floats(0, 1e6),
    factor=st.floats(1e-3, 1e6),
    extra=st.floats(0, 1e6),
    jitter=st.floats(0, 1),
    chance=st.floats(0, 1, exclude_max=True),
    attempt=st.integers(1, 10**15),
)
def test_delays_stay_in_their_bounds(
    first: float, factor: float, extra: float, jitter: float, chance: float, attempt: int
) -> None:
    retry = Retry(UNLIMITED, first, factor, first + extra, jitter)
    delay = next_attempt(retry, ValueError(), attempt, chance)
    assert delay is not None
    assert 0 <= delay <= retry.cap_span * (1 + jitter) + 1
    plain = retry.delay(attempt)
    assert abs(delay - plain) <= plain * jitter + 1


@both
def test_who_is_tried_again(as_seen: Seen) -> None:
    def goes_on(policy: Retry, error: BaseException) -> bool:
        return next_attempt(policy, as_seen(error), 1, 0.5) is not None

    assert goes_on(Retry(), ValueError())
    assert goes_on(Retry(), StepTimeout("t"))
    assert goes_on(Retry(), FileNotFoundError())
    assert not goes_on(Retry(), NonRetryable("x"))
    assert not goes_on(Retry(), NotSerializable("x"))
    assert not goes_on(Retry.none, ValueError())
    assert not goes_on(Retry(give_up_on=(Declined,)), VeryDeclined())
    assert goes_on(Retry(give_up_on=(VeryDeclined,)), Declined())
    assert not goes_on(Retry(give_up_on=(f"{__name__}.Declined",)), VeryDeclined())
    assert not goes_on(Retry(give_up_on=("ValueError",)), UnicodeError())
    assert goes_on(Retry(retry_on=(OSError,)), ConnectionError())
    assert not goes_on(Retry(retry_on=(OSError,)), ValueError())
    assert goes_on(Retry(retry_on=("builtins.OSError",)), ConnectionError())
    assert not goes_on(Retry(retry_on=(Exception,), give_up_on=(Declined,)), Declined())
    assert not goes_on(Retry(when=lambda error: "again" in str(error)), ValueError("no"))
    assert goes_on(Retry(when=lambda error: "again" in str(error)), ValueError("again"))
    assert goes_on(Retry(when=lambda error: error.status == 500), ValueError())  # type: ignore[attr-defined]


@both
@pytest.mark.parametrize("kind", list(ErrorKind))
def test_kinds_count_when_the_error_says_so(kind: ErrorKind, as_seen: Seen) -> None:
    error = ValueError("x")
    error.kind = kind  # type: ignore[attr-defined]
    hopeless = {ErrorKind.NOT_FOUND, ErrorKind.UNAUTHORIZED, ErrorKind.BAD_REQUEST, ErrorKind.VALIDATION}
    assert (next_attempt(Retry(), as_seen(error), 1, 0.5) is None) == (kind in hopeless)


@both
def test_retry_after_sets_the_delay(as_seen: Seen) -> None:
    policy = Retry(retry_on=(OSError,), when=lambda _: False)
    for delay in ("30s", 30, timedelta(seconds=30)):
        assert next_attempt(policy, as_seen(RetryAfter("x", delay)), 1, 0.9) == 30 * SECOND
    assert next_attempt(policy, as_seen(RetryAfter("x", "30s")), 5, 0.5) is None
    assert next_attempt(Retry(give_up_on=(RetryAfter,)), as_seen(RetryAfter("x")), 1, 0.5) is None
    # A delay nobody can read is the policy's.
    assert next_attempt(Retry(), as_seen(RetryAfter("x", "soon")), 1, 0.5) == SECOND


def test_shapes() -> None:
    fixed = Retry.fixed("5s", attempts=10)
    assert [next_attempt(fixed, ValueError(), n, 0.9) for n in (1, 5, 9, 10)] == [5 * SECOND] * 3 + [None]
    growing = Retry.exponential("10ms", 3.0, "1s")
    assert [growing.delay(n) for n in (1, 2, 3)] == [10_000, 30_000, 90_000]
    endless = Retry(UNLIMITED)
    assert next_attempt(endless, ValueError(), 10**9, 0.5) == 60 * SECOND
    assert Retry.none.attempts == 1


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"attempts": 0}, "attempts"),
        ({"attempts": -2}, "attempts"),
        ({"attempts": True}, "attempts"),
        ({"attempts": 1.5}, "attempts"),
        ({"first": -1}, "first"),
        ({"first": "soon"}, "first"),
        ({"first": math.nan}, "first"),
        ({"first": math.inf}, "first"),
        ({"cap": "0.5s"}, "cap"),
        ({"cap": None}, "cap"),
        ({"factor": 0}, "factor"),
        ({"factor": -1}, "factor"),
        ({"factor": math.nan}, "factor"),
        ({"factor": math.inf}, "factor"),
        ({"factor": "2"}, "factor"),
        ({"jitter": -0.1}, "jitter"),
        ({"jitter": 1.1}, "jitter"),
        ({"jitter": math.nan}, "jitter"),
        ({"retry_on": (3,)}, "retry_on"),
        ({"retry_on": (int,)}, "retry_on"),
        ({"give_up_on": ("",)}, "give_up_on"),
        ({"give_up_on": ("a\0b",)}, "give_up_on"),
        ({"when": 3}, "when"),
    ],
)
def test_bad_policies_are_refused_by_name(arguments: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidRequest, match=named):
        Retry(**arguments)


def test_policies_are_values() -> None:
    assert Retry(first="60s", cap="60s") == Retry(first=60, cap="1m")
    assert hash(Retry()) == hash(copy.deepcopy(Retry()))
    assert Retry(attempts=3) != Retry()
    with pytest.raises(AttributeError):
        Retry().attempts = 3  # type: ignore[misc]


@given(
    attempts=st.integers(1, 1000) | st.just(UNLIMITED),
    first=st.integers(0, 10**15),
    extra=st.integers(0, 10**15),
    factor=st.floats(1e-3, 1e6),
    jitter=st.floats(0, 1),
)
def test_policies_survive_storage(attempts: int, first: int, extra: int, factor: float, jitter: float) -> None:
    policy = Retry(
        attempts,
        timedelta(microseconds=first),
        factor,
        timedelta(microseconds=first + extra),
        jitter,
        retry_on=(OSError, "shop.Error"),
        give_up_on=(Declined,),
        when=lambda _: False,
    )
    again = Retry.decode(policy.encode())
    assert again.encode() == policy.encode()
    assert (again.first_span, again.cap_span) == (first, first + extra)
    assert again.retry_on == ("builtins.OSError", "shop.Error")
    assert again.when is None
    assert next_attempt(again, VeryDeclined(), 1, 0.5) is None


@pytest.mark.parametrize(
    "data",
    [b"", b"3", b"\xff", b'{"attempts":0}', b'{"first":-1}', b'{"first":99999999999999999999}', b'{"factor":"x"}'],
)
def test_bad_stored_policies_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidRequest):
        Retry.decode(data)


def test_what_is_not_stored_is_the_default() -> None:
    assert Retry.decode(b"{}") == Retry()


@pytest.mark.parametrize("attempts", [1, 2, 5])
def test_a_policy_gives_exactly_that_many_attempts_not_one_more(attempts: int) -> None:
    """The planted bug this is for: a run tried once too often, because `attempt` was compared the wrong way round."""
    policy = Retry(attempts=attempts)
    for attempt in range(1, attempts):
        assert next_attempt(policy, ValueError(), attempt, 0.5) is not None
    assert next_attempt(policy, ValueError(), attempts, 0.5) is None


def test_what_is_shown_is_what_was_said() -> None:
    assert repr(Retry()) == "Retry()"
    assert repr(Retry(attempts=3, cap="2m")) == "Retry(attempts=3, cap='2m')"
