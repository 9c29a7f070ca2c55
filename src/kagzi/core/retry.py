"""Retry policies, and the one function that says what follows a failed attempt."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import Annotated, Any, ClassVar, Final, TypeAlias

import msgspec
from msgspec import Meta, Struct

from kagzi.core.classes import dotted_name
from kagzi.core.duration import LONGEST, Duration, format_span, parse_duration
from kagzi.core.error_kind import classify
from kagzi.core.exceptions import exception_of
from kagzi.core.failure import ExceptionClass, Failure
from kagzi.core.instant import SECOND, Span
from kagzi.core.limits import check_name
from kagzi.core.options import names_its_options
from kagzi.errors import InvalidRequest, RetryAfter

UNLIMITED: Final = -1
MOST_ATTEMPTS: Final = 1_000_000_000
_MOST_CLASSES: Final = 100

ErrorClass: TypeAlias = type[BaseException] | str
Predicate: TypeAlias = Callable[[BaseException], bool]


@dataclass(frozen=True, slots=True)
class Retry:
    """How often and how patiently a step (or a run) is tried again.

    >>> Retry(attempts=5, first="1s", factor=2.0, cap="1m", jitter=0.25)

    The delay before retry n is first × factor^(n-1), at most `cap`, then moved by up to ± `jitter` of itself.
    `attempts` counts the first try too; -1 is without end. With `retry_on` only these classes, and those that
    derive from them, are tried again; with `give_up_on` these are not. A class may also be named as text,
    "package.module.Class". `when` is asked last, with the exception itself, and its refusal is final. It
    lives in this process only: a policy that is stored with a run or sent over a wire leaves it behind.
    """

    attempts: int = 5
    first: Duration = field(default="1s", compare=False)
    factor: float = 2.0
    cap: Duration = field(default="1m", compare=False)
    jitter: float = 0.25
    retry_on: tuple[ErrorClass, ...] = ()
    give_up_on: tuple[ErrorClass, ...] = ()
    when: Predicate | None = None
    # The two lengths once they are read; "60s" and "1m" make equal policies.
    first_span: Span = field(init=False, repr=False)
    cap_span: Span = field(init=False, repr=False)

    none: ClassVar[Retry]

    def __post_init__(self) -> None:
        attempts: object = self.attempts
        if isinstance(attempts, bool) or not isinstance(attempts, int):
            raise InvalidRequest(f"retry attempts must be a whole number, not {attempts!r:.100}")
        if attempts != UNLIMITED and not 1 <= attempts <= MOST_ATTEMPTS:
            raise InvalidRequest(
                f"retry attempts must be at least 1 (the first try counts) or -1 for no end, not {attempts!r:.100}"
            )
        if self.when is not None and not callable(self.when):
            raise InvalidRequest(f"retry when must be a function of the exception, not {self.when!r:.100}")
        first = parse_duration(self.first, "retry first")
        cap = parse_duration(self.cap, "retry cap")
        if first > cap:
            raise InvalidRequest(
                f"retry first ({format_span(first)}) is longer than cap ({format_span(cap)}); pass a longer cap too"
            )
        put = object.__setattr__
        put(self, "factor", _number(self.factor, "retry factor", 1e6))
        if self.factor == 0:
            raise InvalidRequest("retry factor must not be 0; for equal delays use 1, or Retry.fixed")
        put(self, "jitter", _number(self.jitter, "retry jitter", 1.0))
        put(self, "retry_on", _classes(self.retry_on, "retry_on"))
        put(self, "give_up_on", _classes(self.give_up_on, "give_up_on"))
        put(self, "first_span", first)
        put(self, "cap_span", cap)

    @classmethod
    @names_its_options
    def fixed(
        cls,
        delay: Duration,
        attempts: int = 5,
        *,
        jitter: float = 0.0,
        retry_on: tuple[ErrorClass, ...] = (),
        give_up_on: tuple[ErrorClass, ...] = (),
        when: Predicate | None = None,
    ) -> Retry:
        """Makes a policy with the same delay before every retry."""
        return cls(attempts, delay, 1.0, delay, jitter, retry_on, give_up_on, when)

    @classmethod
    @names_its_options
    def exponential(
        cls,
        first: Duration = "1s",
        factor: float = 2.0,
        cap: Duration = "1m",
        attempts: int = 5,
        *,
        jitter: float = 0.25,
        retry_on: tuple[ErrorClass, ...] = (),
        give_up_on: tuple[ErrorClass, ...] = (),
        when: Predicate | None = None,
    ) -> Retry:
        """Makes a policy whose delays grow by `factor` from `first` up to `cap`."""
        return cls(attempts, first, factor, cap, jitter, retry_on, give_up_on, when)

    def __repr__(self) -> str:
        """What differs from the defaults."""
        shown = [(each, getattr(self, each.name)) for each in fields(self) if each.repr]
        return f"Retry({', '.join([f'{each.name}={value!r}' for each, value in shown if value != each.default])})"

    def delay(self, retry: int) -> Span:
        """Returns the delay before retry number `retry`, counted from 1, without jitter."""
        try:
            return round(min(self.first_span * self.factor ** (retry - 1), self.cap_span))
        except OverflowError:
            return self.cap_span if self.first_span else 0

    def encode(self) -> bytes:
        """Returns JSON for the run's row and the wire: classes by name, lengths in microseconds, `when` left out."""
        stored = _Stored(
            attempts=self.attempts,
            first=self.first_span,
            factor=self.factor,
            cap=self.cap_span,
            jitter=self.jitter,
            retry_on=tuple([_name(cls) for cls in self.retry_on]),
            give_up_on=tuple([_name(cls) for cls in self.give_up_on]),
        )
        return _ENCODER.encode(stored)

    @classmethod
    def decode(cls, data: bytes) -> Retry:
        try:
            stored = _DECODER.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidRequest(f"the retry policy is not readable: {error}") from None
        return cls(
            attempts=stored.attempts,
            first=timedelta(microseconds=stored.first),
            factor=stored.factor,
            cap=timedelta(microseconds=stored.cap),
            jitter=stored.jitter,
            retry_on=stored.retry_on,
            give_up_on=stored.give_up_on,
        )


def next_attempt(policy: Retry, error: Failure | BaseException, attempt: int, jitter: float) -> Span | None:
    """Returns the delay before the next attempt, or None to give up.

    `attempt` is the number of the one that failed, from 1; `jitter` is a random number in [0, 1). Every error
    is tried again except those the author or the policy says are hopeless. A RetryAfter asks for another
    attempt by itself, so neither `retry_on` nor `when` is asked about it, and its delay is kept exactly.
    """
    if policy.attempts != UNLIMITED and attempt >= policy.attempts:
        return None
    hopeless = error.non_retryable if isinstance(error, Failure) else classify(error)[1]
    if hopeless or _matches(error, policy.give_up_on):
        return None
    asked = asked_delay(error)
    if asked is not None:
        return asked
    if policy.retry_on and not _matches(error, policy.retry_on):
        return None
    if policy.when is not None and not _allowed(policy.when, error):
        return None
    delay = policy.delay(attempt)
    return max(0, round(delay * (1.0 + policy.jitter * (2.0 * jitter - 1.0))))


_StoredSpan: TypeAlias = Annotated[int, Meta(ge=0, le=LONGEST)]


class _Stored(Struct, frozen=True, kw_only=True, omit_defaults=True):
    attempts: int = 5
    first: _StoredSpan = SECOND
    factor: float = 2.0
    cap: _StoredSpan = 60 * SECOND
    jitter: float = 0.25
    retry_on: tuple[str, ...] = ()
    give_up_on: tuple[str, ...] = ()


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(_Stored)
_RETRY_AFTER = dotted_name(RetryAfter)


def _number(value: object, what: str, most: float) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidRequest(f"{what} must be a number, not {value!r:.100}")
    if math.isnan(value) or not 0 <= value <= most:
        raise InvalidRequest(f"{what} must be between 0 and {most:g}, not {value!r:.100}")
    return float(value)


def _classes(value: Any, field: str) -> tuple[ErrorClass, ...]:
    classes = tuple(value) if isinstance(value, (tuple, list, set, frozenset)) else (value,)
    if len(classes) > _MOST_CLASSES:
        raise InvalidRequest(f"retry {field} lists {len(classes)} classes; at most {_MOST_CLASSES} are allowed")
    for cls in classes:
        if isinstance(cls, str):
            check_name(cls, f"retry {field}")
        elif not (isinstance(cls, type) and issubclass(cls, BaseException)):
            raise InvalidRequest(f"retry {field} must list exception classes or their names, not {cls!r:.100}")
    return classes


def _name(cls: ErrorClass) -> str:
    return cls if isinstance(cls, str) else dotted_name(cls)


def _matches(error: Failure | BaseException, classes: tuple[ErrorClass, ...]) -> bool:
    if isinstance(error, Failure):
        return any(error.is_a(cls) for cls in classes)
    return any(_is_a(type(error), cls) for cls in classes)


def _is_a(found: ExceptionClass, cls: ErrorClass) -> bool:
    if not isinstance(cls, str):
        return issubclass(found, cls)
    name = cls if "." in cls else f"builtins.{cls}"
    return any(dotted_name(base) == name for base in found.__mro__)


def asked_delay(error: Failure | BaseException) -> Span | None:
    """Returns the delay that a RetryAfter asks for, if this is one and its delay is a length of time."""
    delay: Any
    if isinstance(error, Failure):
        if not error.is_a(_RETRY_AFTER):
            return None
        delay = (error.attributes or {}).get("delay")
    elif isinstance(error, RetryAfter):
        delay = error.delay
    else:
        return None
    try:
        return parse_duration(delay, "RetryAfter delay")
    except InvalidRequest:
        return None  # still an error worth another attempt, at the policy's own pace


def _allowed(when: Predicate, error: Failure | BaseException) -> bool:
    try:
        return bool(when(exception_of(error) if isinstance(error, Failure) else error))
    except Exception:
        # The predicate met an error it was not written for; unknown errors are retried.
        return True


Retry.__init__ = names_its_options(Retry.__init__)  # type: ignore[method-assign]
Retry.none = Retry(attempts=1)
