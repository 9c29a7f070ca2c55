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


class WorkflowInterface(Struct, frozen=True, kw_only=True):
    """What a version of a workflow is for and what it takes, as a worker tells it."""

    workflow_type: str
    version: str | None = None  # None: every version
    summary: str = ""  # the first line of its docstring
    # JSON Schema of its parameters, an object by name. `x-kagzi-positional` says how many of them may be given by
    # position. None: it is not known, or larger than is kept.
    input_schema: str | None = None
    # What its decorator gives to runs whose start says nothing about it.
    on_failure: str | None = None
    on_failure_queue: str | None = None
    timeout: Span | None = None


class StartDefaults(Struct, frozen=True):
    """What a start by name gets, which knows no more of the workflow than that: the version, and what the decorator of
    that version says about runs."""

    version: str
    on_failure: str | None = None
    on_failure_queue: str | None = None
    timeout: Span | None = None


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
        if each.on_failure is not None:
            check_name(each.on_failure, f"on_failure of {each.workflow_type}")
        if each.on_failure_queue is not None:
            check_name(each.on_failure_queue, f"on_failure_queue of {each.workflow_type}")
            if each.on_failure is None:
                raise InvalidRequest(f"on_failure_queue of {each.workflow_type} goes with on_failure")
        if each.timeout is not None and not 1 <= each.timeout <= LONGEST:
            raise InvalidRequest(f"timeout of {each.workflow_type} must be from 1 µs to {format_span(LONGEST)}")
        if each.input_schema is not None:
            total += _check_schema(each.input_schema, f"input_schema of {each.workflow_type}")
    if total > SCHEMAS_BYTES:
        raise InvalidRequest(
            f"the schemas of a worker's workflows have {total:,} bytes together; at most {SCHEMAS_BYTES:,} are allowed"
        )


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
