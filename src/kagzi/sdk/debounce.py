"""`kagzi.Debounce`: many starts in a short time become one run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kagzi.api.operations import StartDebounce
from kagzi.core.duration import Duration, format_span, parse_duration
from kagzi.core.limits import check_name
from kagzi.errors import InvalidRequest
from kagzi.sdk.limits import Key, check_path, key_of

if TYPE_CHECKING:
    from kagzi.sdk.definitions.options import WorkflowOptions
    from kagzi.sdk.definitions.workflow import Workflow


class Debounce:
    """Starts of a workflow with one key become one run, which begins when none has come for `wait`, and at most `most`
    after the first. The input of the last one counts.

    In `.options(debounce=...)` the `key` is the key itself, text or a whole number. In `@app.workflow(debounce=...)` it
    is what the key is made of: the name of a parameter, a path into one, or a function of the arguments. Without one
    all starts of the workflow become one run.
    """

    __slots__ = ("key", "most", "wait")

    def __init__(self, wait: Duration, *, most: Duration | None = None, key: Key | int | None = None) -> None:
        self.wait = parse_duration(wait, "the wait of a Debounce")
        if self.wait == 0:
            raise InvalidRequest(f"the wait of a Debounce must be longer than 0, not {wait!r:.100}")
        self.most = None if most is None else parse_duration(most, "most of a Debounce")
        if self.most is not None and self.most < self.wait:
            raise InvalidRequest(
                f"most of a Debounce must not be shorter than its wait of {format_span(self.wait)}, not {most!r:.100}"
            )
        if key is not None and not callable(key):
            if isinstance(key, bool) or not isinstance(key, str | int):
                raise InvalidRequest(
                    f"the key of a Debounce must be text, a whole number or a function, not {key!r:.100}"
                )
            check_name(str(key), "the key of a Debounce")
        self.key = key

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Debounce) and (self.wait, self.most, self.key) == (other.wait, other.most, other.key)

    def __hash__(self) -> int:
        return hash((self.wait, self.most, self.key))

    def __repr__(self) -> str:
        most = "" if self.most is None else f", most={format_span(self.most)!r}"
        return f"Debounce({format_span(self.wait)!r}{most}{'' if self.key is None else f', key={self.key!r}'})"


def check_declared(debounce: object, workflow: str, parameters: Sequence[str]) -> Debounce:
    """Checks and returns what `@app.workflow(debounce=...)` says."""
    if not isinstance(debounce, Debounce):
        raise InvalidRequest(
            f'debounce of {workflow} must be a Debounce, such as Debounce("30s", key="document"), not {debounce!r:.100}'
        )
    key = debounce.key
    if isinstance(key, str):
        check_path(key)
    if key is not None and not callable(key) and str(key).partition(".")[0] not in parameters:
        if not parameters:
            raise InvalidRequest(
                f"the key {key!r} of the Debounce of {workflow} must be one of its parameters, and it has none; leave "
                "the key out to have all of its starts become one run, or give it a parameter of this name"
            )
        raise InvalidRequest(
            f"the key {key!r} of the Debounce of {workflow} is none of its parameters: {', '.join(parameters)}"
        )
    return debounce


def check_option(debounce: object) -> Debounce | bool:
    """Checks and returns what `.options(debounce=...)` says."""
    if debounce is False or isinstance(debounce, Debounce):
        return debounce
    raise InvalidRequest(
        f'debounce must be a Debounce, such as Debounce("30s", key="d-7"), or False for none, not {debounce!r:.100}'
    )


def debounce_of(
    workflow: Workflow[Any, Any], options: WorkflowOptions, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> StartDebounce | None:
    """Returns which run a start may join: the one with its key."""
    debounce = workflow.debounce if options.debounce is None else options.debounce
    if not isinstance(debounce, Debounce):
        return None
    refuse_beside(workflow, options)
    key = debounce.key
    if key is None:
        made = ""
    elif callable(key) or options.debounce is None:
        given = workflow.signature.parameters.with_defaults(args, kwargs)
        made = key_of(key if callable(key) else str(key), f"the Debounce of {workflow.name}", given)
    else:
        made = str(key)
    return StartDebounce(key=made, wait=debounce.wait, most=debounce.most)


def refuse_beside(workflow: Workflow[Any, Any], options: WorkflowOptions) -> None:
    for field in ("id", "signal", "delay", "start_at", "connection"):
        if getattr(options, field) is not None:
            raise InvalidRequest(
                f"debounce and {field} do not go together: a debounced start may join the run of another one. Say "
                f"{workflow.name}.options(debounce=False, {field}=...) for a run of its own. Nothing was written"
            )
