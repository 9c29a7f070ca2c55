"""Versions of workflows: which ones workers have offered, and how much depends on each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import Struct

from kagzi.core.duration import LONGEST, format_span
from kagzi.core.instant import Instant, Span
from kagzi.core.limits import check_name, check_text
from kagzi.errors import InvalidRequest

FIRST_VERSION: Final = "1"  # of a workflow that nobody has ever offered; `resolve_version` of both stores says it, too
SUMMARY_CHARACTERS: Final = 200
SCHEMA_BYTES: Final = 64 * 1024  # of one workflow
SCHEMAS_BYTES: Final = 256 * 1024  # of all that a worker tells of: what registers it fits into one small request


class DebounceDefaults(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How starts become one run; `key` is a path as that of a limit."""

    wait: Span
    most: Span | None = None
    key: str | None = None


class StartDefaults(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the code of a workflow gives to runs whose start says nothing about it.

    A key is the path to a value of the input (`order.customer.id`), which the engine follows; MADE_BY_CODE: a function
    of the worker makes it, so that only a start can say it that knows the function.
    """

    queue: str | None = None
    on_failure: str | None = None
    on_failure_queue: str | None = None
    timeout: Span | None = None
    limit_name: str | None = None
    limit_key: str | None = None
    debounce: DebounceDefaults | None = None
    codec: bool = False  # its payloads go through one, so an input need not be JSON


MADE_BY_CODE: Final = ""
NO_DEFAULTS: Final = StartDefaults()


class WorkflowInterface(Struct, frozen=True, kw_only=True):
    """What a version of a workflow is for and what it takes, as a worker tells it."""

    workflow_type: str
    version: str | None = None  # None: every version
    summary: str = ""  # the first line of its docstring
    # JSON Schema of its parameters, an object by name. `x-kagzi-positional` says how many of them may be given by
    # position. None: it is not known, or larger than is kept.
    input_schema: str | None = None
    defaults: StartDefaults = NO_DEFAULTS


class Resolved(Struct, frozen=True):
    """What a start by name gets, which knows no more of the workflow than that: the version, and what a worker has
    told of it. `known`: one has offered it."""

    version: str
    known: bool = False
    input_schema: str | None = None
    defaults: StartDefaults = NO_DEFAULTS


def check_interfaces(interfaces: Sequence[WorkflowInterface], most: int) -> None:
    if len(interfaces) > most:
        raise InvalidRequest(f"a worker describes at most {most:,} workflows, not {len(interfaces):,}")
    total = 0
    for each in interfaces:
        check_name(each.workflow_type, "workflow type of an interface")
        if each.version is not None:
            check_name(each.version, "version of an interface")
        check_text(each.summary, f"summary of {each.workflow_type}")
        if len(each.summary) > SUMMARY_CHARACTERS:
            raise InvalidRequest(
                f"summary of {each.workflow_type} has {len(each.summary)} characters; at most {SUMMARY_CHARACTERS} "
                "are allowed"
            )
        _check_defaults(each.defaults, each.workflow_type)
        if each.input_schema is not None:
            total += _check_schema(each.input_schema, f"input_schema of {each.workflow_type}")
    if total > SCHEMAS_BYTES:
        raise InvalidRequest(
            f"the schemas of a worker's workflows have {total:,} bytes together; at most {SCHEMAS_BYTES:,} are allowed"
        )


def _check_defaults(defaults: StartDefaults, workflow: str) -> None:
    debounce = defaults.debounce
    names = {field: getattr(defaults, field) for field in ("queue", "on_failure", "on_failure_queue", "limit_name")}
    keys = {"limit_key": defaults.limit_key, "key of debounce": None if debounce is None else debounce.key}
    for field, name in (names | {field: key or None for field, key in keys.items()}).items():
        if name is not None:
            check_name(name, f"{field} of {workflow}")
    if defaults.on_failure_queue is not None and defaults.on_failure is None:
        raise InvalidRequest(f"on_failure_queue of {workflow} goes with on_failure")
    spans = {"timeout": defaults.timeout}
    if debounce is not None:
        spans |= {"wait of debounce": debounce.wait, "most of debounce": debounce.most}
        if debounce.most is not None and debounce.most < debounce.wait:
            raise InvalidRequest(f"most of debounce of {workflow} must not be shorter than its wait")
    for field, span in spans.items():
        if span is not None and not 1 <= span <= LONGEST:
            raise InvalidRequest(f"{field} of {workflow} must be from 1 µs to {format_span(LONGEST)}")


def _check_schema(text: str, field: str) -> int:
    check_text(text, field)
    size = len(text.encode())
    if size > SCHEMA_BYTES:
        raise InvalidRequest(f"{field} has {size:,} bytes; at most {SCHEMA_BYTES:,} are allowed")
    try:
        read = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest(f"{field} is not JSON: {error}") from None
    if not isinstance(read, dict):
        raise InvalidRequest(f'{field} must be a JSON object, as in {{"type": "object"}}')
    return size


class WorkflowVersion(Struct, frozen=True, kw_only=True):
    """A version of a workflow. It is there if a worker has ever offered it, if somebody has made it the default, or if
    runs of it have not finished."""

    workflow_type: str
    version: str | None  # None: offered by workers that execute every version
    default: bool = False  # what a start that names no version gets now
    chosen: bool = False  # it was made the default; if none was, the newest version is
    queues: tuple[str, ...] = ()  # where workers have offered it
    first_seen_at: Instant | None = None  # when a worker first offered it; None: none has
    last_seen_at: Instant | None = None  # when one last registered with it, to the hour
    workers: int = 0  # online now, including those that execute every version
    pending: int = 0
    running: int = 0
    sleeping: int = 0
    at_least: bool = False  # there may be more runs than were counted
    oldest_run_at: Instant | None = None  # when the oldest of these was started
    summary: str = ""  # what it is for, as its code says

    @property
    def live(self) -> int:
        """How many runs of it have not finished."""
        return self.pending + self.running + self.sleeping

    @property
    def retirable(self) -> bool:
        """Whether its code can go: no run needs it, and no start that names no version gets it."""
        return self.version is not None and not (self.live or self.at_least or self.default)


class Versions(Struct, frozen=True):
    """Versions by workflow, the newest first; `more`: there are others than these."""

    items: tuple[WorkflowVersion, ...]
    more: bool = False


class CheckedRun(Struct, frozen=True):
    """A run whose history somebody has looked at, and how often it had been claimed by then: another claim may have
    recorded more."""

    run_id: str
    executions: int


class MovedRuns(Struct, frozen=True, kw_only=True):
    """How many runs went from one version to another, or would have, among those that were looked at; `after` leads to
    the rest, and is None at the end."""

    moved: int
    after: str | None = None
