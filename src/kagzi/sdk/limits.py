"""`kagzi.Limit`: how many runs of a workflow may run at once, said where the workflow is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from kagzi.api.workers import DeclaredLimit
from kagzi.core.flow import MOST_CONCURRENCY
from kagzi.core.limits import check_name
from kagzi.errors import InvalidRequest

if TYPE_CHECKING:
    from kagzi.sdk.definitions.options import WorkflowOptions
    from kagzi.sdk.definitions.workflow import Workflow

Key = str | Callable[..., object]

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
        named: object = key
        if not (named is None or callable(named) or (isinstance(named, str) and named)):
            raise InvalidRequest(f"key must name a parameter, or be a function of the arguments, not {key!r:.100}")
        self.most = most
        self.key = key
        self.name = None if name is None else check_name(name, "limit name")

    def __repr__(self) -> str:
        key = "" if self.key is None else f", key={self.key!r}"
        return f"Limit({self.most}{key}{'' if self.name is None else f', name={self.name!r}'})"


class WorkflowLimits(Struct, frozen=True):
    """The limits of one workflow: whose they are, how many at once, how many of each key, and what the key is."""

    name: str
    most: int | None
    key_most: int | None
    key: Key | None

    @property
    def declared(self) -> DeclaredLimit:
        return DeclaredLimit(self.name, self.most, self.key_most)

    def shared_by(self, workflow: str) -> DeclaredLimit:
        """What says that runs of this workflow count for these limits, however they are started."""
        return DeclaredLimit(workflow, shares=self.name)

    def key_of(self, workflow: str, arguments: Mapping[str, Any]) -> str:
        """Returns the key of a run with these arguments."""
        if self.key is None:
            return _NO_KEY
        if callable(self.key):
            try:
                value = self.key(*arguments.values())
            except Exception as error:
                raise InvalidRequest(f"the key of the limit of {workflow} cannot be made: {error!r:.200}") from error
        else:
            value = _follow(self.key, workflow, arguments)
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise InvalidRequest(
                f"the key of the limit of {workflow} must be text or a whole number, not {value!r:.100}"
            )
        return check_name(str(value), f"the key of the limit of {workflow}")


def limits_of(given: object, workflow: str, parameters: Sequence[str]) -> WorkflowLimits | None:
    """Returns what `concurrency=` of a workflow says, or refuses it."""
    if given is None:
        return None
    said = list(given) if isinstance(given, list | tuple) else [given]
    limits = [limit for limit in said if isinstance(limit, Limit)]
    if not limits or len(limits) != len(said):
        raise InvalidRequest(f"concurrency of {workflow} must be a Limit or a list of them, not {given!r:.100}")
    names = {limit.name for limit in limits}
    if len(names) > 1:
        raise InvalidRequest(f"the limits of {workflow} must have one name, not {sorted(map(str, names))}")
    whole = [limit for limit in limits if limit.key is None]
    keyed = [limit for limit in limits if limit.key is not None]
    if len(whole) > 1 or len(keyed) > 1:
        raise InvalidRequest(
            f"{workflow} has one limit for all its runs and one for each key at most; a run has one key"
        )
    key = keyed[0].key if keyed else None
    if isinstance(key, str) and key.partition(".")[0] not in parameters:
        raise InvalidRequest(
            f"the key {key!r} of a limit of {workflow} is none of its parameters: {', '.join(parameters)}"
        )
    return WorkflowLimits(
        limits[0].name or workflow, whole[0].most if whole else None, keyed[0].most if keyed else None, key
    )


def limit_of(
    workflow: Workflow[Any, Any], options: WorkflowOptions, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[str | None, str | None]:
    """Returns whose limits count for a run, and which share of them it takes."""
    limits = workflow.limits
    if limits is None:
        return (None, None) if options.limit_key is None else (workflow.name, options.limit_key)
    if options.limit_key is not None:
        return limits.name, options.limit_key
    arguments = workflow.signature.named_arguments(args, kwargs) if limits.key is not None else {}
    return limits.name, limits.key_of(workflow.name, arguments)


def smaller(one: DeclaredLimit, other: DeclaredLimit) -> DeclaredLimit:
    """Returns the smaller of each of their numbers."""

    def least(a: int | None, b: int | None) -> int | None:
        return min((each for each in (a, b) if each is not None), default=None)

    shares = min((each.shares for each in (one, other) if each.shares is not None), default=None)
    return DeclaredLimit(one.name, least(one.most, other.most), least(one.key_most, other.key_most), shares)


def _follow(path: str, workflow: str, arguments: Mapping[str, Any]) -> Any:
    first, *rest = path.split(".")
    value = arguments.get(first)
    for part in rest:
        found = value.get(part) if isinstance(value, Mapping) else getattr(value, part, None)
        if found is None:
            raise InvalidRequest(
                f"the key {path!r} of a limit of {workflow} leads nowhere: {value!r:.60} has no {part}"
            )
        value = found
    return value
