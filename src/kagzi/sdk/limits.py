"""`kagzi.Limit` and `kagzi.Rate`: how many runs of a workflow may run at once, and how often they may begin, said where
the workflow is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar

from msgspec import Struct

from kagzi.api.workers import DeclaredLimit
from kagzi.core.duration import Duration, format_span, parse_duration
from kagzi.core.flow import MOST_CONCURRENCY
from kagzi.core.limits import check_name
from kagzi.core.rate import RateLimit, check_rate
from kagzi.errors import InvalidRequest

if TYPE_CHECKING:
    from kagzi.sdk.definitions.options import WorkflowOptions
    from kagzi.sdk.definitions.workflow import Workflow

Key = str | Callable[..., object]
T = TypeVar("T", "Limit", "Rate")

_NO_KEY: Final = ""


class Limit:
    """At most `most` runs of a workflow at once, over all workers; with a `key` so many of each key.

    `key` is the name of a parameter (`"tenant"`), a path into one (`"order.customer.id"`), or a function that is given
    the arguments. With a `name`, several workflows share one budget.
    """

    __slots__ = ("key", "most", "name")

    def __init__(self, most: int, *, key: Key | None = None, name: str | None = None) -> None:
        if isinstance(most, bool) or not isinstance(most, int):
            raise InvalidRequest(f"a limit is a number of runs, not {most!r:.100}")
        if not 1 <= most <= MOST_CONCURRENCY:
            raise InvalidRequest(
                f"a limit must be from 1 to {MOST_CONCURRENCY:,}, not {most}; to hand out none, pause it"
            )
        self.most = most
        self.key = None if key is None else _check_key(key)
        self.name = None if name is None else check_name(name, "limit name")

    def __repr__(self) -> str:
        key = "" if self.key is None else f", key={self.key!r}"
        return f"Limit({self.most}{key}{'' if self.name is None else f', name={self.name!r}'})"


class Rate:
    """So many runs of a workflow may begin in a period, over all workers, at the same distance: `Rate(100, "1m")` is
    one each 0.6 s, and after a lull `burst` of them at once. With a `key` so many of each key.

    Only a run that has never begun takes its turn: waking, retries and lost workers are free.
    """

    __slots__ = ("_limit", "key")

    def __init__(self, count: int, period: Duration, *, burst: int = 1, key: Key | None = None) -> None:
        for field, number in (("count", count), ("burst", burst)):
            if isinstance(number, bool) or not isinstance(number, int):
                raise InvalidRequest(f"rate: the {field} is a number of runs, not {number!r:.100}")
        self._limit = check_rate(RateLimit(count, parse_duration(period, "period"), burst))
        self.key = None if key is None else _check_key(key)

    @property
    def count(self) -> int:
        return self._limit.count

    @property
    def period(self) -> timedelta:
        return timedelta(microseconds=self._limit.period)

    @property
    def burst(self) -> int:
        return self._limit.burst

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Rate) and (self._limit, self.key) == (other._limit, other.key)

    def __hash__(self) -> int:
        return hash((self._limit, self.key))

    def __repr__(self) -> str:
        key = "" if self.key is None else f", key={self.key!r}"
        burst = "" if self.burst == 1 else f", burst={self.burst}"
        return f"Rate({self.count}, {format_span(self._limit.period)!r}{burst}{key})"


def rate_of(limit: RateLimit | None) -> Rate | None:
    return None if limit is None else Rate(limit.count, timedelta(microseconds=limit.period), burst=limit.burst)


def set_rate(rate: object, field: str) -> RateLimit:
    """Checks and returns a rate that an operator sets."""
    if not isinstance(rate, Rate):
        raise InvalidRequest(f'{field} must be a Rate, such as Rate(100, "1m"), not {rate!r:.100}')
    if rate.key is not None:
        raise InvalidRequest(f"{field}: what the key is stands in the code of the workflow; leave out key=")
    return rate._limit


class WorkflowLimits(Struct, frozen=True):
    """The limits of one workflow: whose they are, how many at once, how many of each key, how often, whether keys take
    turns, and what the key is."""

    name: str
    most: int | None = None
    key_most: int | None = None
    rate: RateLimit | None = None
    key_rate: RateLimit | None = None
    fair: bool = False
    key: Key | None = None

    @property
    def declared(self) -> DeclaredLimit:
        return DeclaredLimit(self.name, self.most, self.key_most, None, self.rate, self.key_rate, self.fair)

    def shared_by(self, workflow: str) -> DeclaredLimit:
        """The limit to declare, which says that runs of this workflow count for these limits however they are
        started."""
        return DeclaredLimit(workflow, shares=self.name)

    def key_of(self, workflow: str, arguments: Mapping[str, Any]) -> str:
        """Returns the key of a run with these arguments."""
        return _NO_KEY if self.key is None else key_of(self.key, f"the limit of {workflow}", arguments)


def limits_of(
    concurrency: object, rate: object, fair: object, workflow: str, parameters: Sequence[str]
) -> WorkflowLimits | None:
    """Checks and returns what `concurrency=`, `rate=` and `fair=` of a workflow say."""
    if concurrency is None and rate is None and fair is None:
        return None
    said = _listed(concurrency)
    limits = [limit for limit in said if isinstance(limit, Limit)]
    if len(limits) != len(said) or (not said and concurrency is not None):
        raise InvalidRequest(f"concurrency of {workflow} must be a Limit or a list of them, not {concurrency!r:.100}")
    rates = [each for each in _listed(rate) if isinstance(each, Rate)]
    if len(rates) != len(_listed(rate)) or (not rates and rate is not None):
        raise InvalidRequest(f'rate of {workflow} must be a Rate, such as Rate(100, "1m"), not {rate!r:.100}')
    names = {limit.name for limit in limits}
    if len(names) > 1:
        raise InvalidRequest(f"the limits of {workflow} must have one name, not {sorted(map(str, names))}")
    whole, keyed = _apart(limits)
    rate_of_all, rate_of_keys = _apart(rates)
    if any(len(said) > 1 for said in (whole, keyed, rate_of_all, rate_of_keys)):
        raise InvalidRequest(
            f"{workflow} has one limit for all its runs and one for each key at most; a run has one key"
        )
    keys = [key for key in (*(each.key for each in keyed), *(each.key for each in rate_of_keys)) if key is not None]
    if fair is not None:
        keys.append(_check_key(fair))
    if any(key != keys[0] for key in keys):
        raise InvalidRequest(f"the limits, the rate and the turns of {workflow} must have one key: a run has one")
    key = keys[0] if keys else None
    if isinstance(key, str) and key.partition(".")[0] not in parameters:
        whose = "a limit" if keyed else "a rate" if rate_of_keys else "the turns (fair)"
        known = ", ".join(parameters) or "it has none"
        raise InvalidRequest(f"the key {key!r} of {whose} of {workflow} is none of its parameters: {known}")
    return WorkflowLimits(
        name=(limits[0].name if limits else None) or workflow,
        most=whole[0].most if whole else None,
        key_most=keyed[0].most if keyed else None,
        rate=rate_of_all[0]._limit if rate_of_all else None,
        key_rate=rate_of_keys[0]._limit if rate_of_keys else None,
        fair=fair is not None,
        key=key,
    )


def _listed(given: object) -> list[object]:
    if given is None:
        return []
    return list(given) if isinstance(given, list | tuple) else [given]


def _apart(said: Sequence[T]) -> tuple[list[T], list[T]]:
    """Returns the limits for all runs, and those for each key."""
    return [each for each in said if each.key is None], [each for each in said if each.key is not None]


def _check_key(key: object) -> Key:
    if callable(key):
        return key
    if isinstance(key, str) and key:
        return check_path(key)
    raise InvalidRequest(f"key must name a parameter, or be a function of the arguments, not {key!r:.100}")


def check_path(key: str) -> str:
    """Returns the name of a parameter, or a path into one, if there is something on both sides of each of its dots."""
    if "" in key.split("."):
        raise InvalidRequest(f'key {key!r} must be a parameter or a path into one, such as "order.customer.id"')
    return key


def limit_of(
    workflow: Workflow[Any, Any], options: WorkflowOptions, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[str | None, str | None]:
    """Returns the name whose limits count for a run, and the key of its share."""
    limits = workflow.limits
    if limits is None:
        return (None, None) if options.limit_key is None else (workflow.name, options.limit_key)
    if options.limit_key is not None:
        return limits.name, options.limit_key
    arguments = workflow.signature.parameters.with_defaults(args, kwargs) if limits.key is not None else {}
    return limits.name, limits.key_of(workflow.name, arguments)


def key_of(key: Key, whose: str, arguments: Mapping[str, Any]) -> str:
    """Returns the key that is made of these arguments: of the one it names, or by calling it."""
    if callable(key):
        try:
            value = key(*arguments.values())
        except Exception as error:
            raise InvalidRequest(f"the key of {whose} cannot be made: {error!r:.200}") from error
    else:
        value = _follow(key, whose, arguments)
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise InvalidRequest(f"the key of {whose} must be text or a whole number, not {value!r:.100}")
    return check_name(str(value), f"the key of {whose}")


def _follow(path: str, whose: str, arguments: Mapping[str, Any]) -> Any:
    first, *rest = path.split(".")
    value = arguments.get(first)
    for part in rest:
        found = value.get(part) if isinstance(value, Mapping) else getattr(value, part, None)
        if found is None:
            raise InvalidRequest(f"the key {path!r} of {whose} leads nowhere: {value!r:.60} has no {part}")
        value = found
    return value
