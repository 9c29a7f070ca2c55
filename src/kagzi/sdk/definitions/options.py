"""What `.options(...)` and the decorators say about a run or a step, and what is refused of it."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Struct

from kagzi.core.duration import Duration, parse_duration
from kagzi.core.instant import Span
from kagzi.core.retry import Retry
from kagzi.core.run import PRIORITY_LIMIT
from kagzi.errors import InvalidRequest
from kagzi.sdk.debounce import Debounce
from kagzi.sdk.start_signal import Signal

OnConflict: TypeAlias = Literal["return", "fail", "restart_finished", "restart_failed"]
OnParentEnd: TypeAlias = Literal["cancel", "abandon", "terminate"]


class FailureHandler(Struct, frozen=True):
    """A workflow that is started when a run fails, and where it waits; None: in the queue of that run."""

    name: str
    queue: str | None = None


class WorkflowOptions(Struct, frozen=True, kw_only=True):
    """What `.options(...)` says about one run; None is what the decorator said, or the default."""

    id: str | None = None
    queue: str | None = None
    version: str | None = None
    priority: int = 0
    delay: Duration | None = None
    start_at: datetime | None = None
    retry: Retry | None = None
    timeout: Duration | None = None
    deadline: datetime | None = None
    namespace: str | None = None
    on_conflict: OnConflict | None = None
    signal: Signal | None = None
    on_failure: FailureHandler | None = None
    key: str | None = None
    on_parent_end: OnParentEnd | None = None
    tags: dict[str, str] = {}
    limit_key: str | None = None
    debounce: Debounce | bool | None = None  # False: none, whatever the decorator says
    connection: Any = None  # of the caller's own, in whose transaction the run is started


NO_OPTIONS: Final = WorkflowOptions()


def given_options(options: WorkflowOptions) -> dict[str, Any]:
    """Returns what `.options(...)` has said, by name."""
    return {
        name: value for name, value in msgspec.structs.asdict(options).items() if value != getattr(NO_OPTIONS, name)
    }


def check_retry(retry: object) -> Retry | None:
    if retry is None or isinstance(retry, Retry):
        return retry
    raise InvalidRequest(f"retry must be a Retry, for example Retry(attempts=3), not {retry!r:.100}")


def check_flag(given: object, field: str) -> None:
    if not isinstance(given, bool):
        raise InvalidRequest(f"{field} must be True or False, not {given!r:.100}")


def check_executor(executor: object, *, transaction: bool) -> None:
    if executor is None:
        return
    if executor != "process":
        raise InvalidRequest(
            f'executor must be "process", not {executor!r:.100}; without it `def` steps run on threads and `async def` '
            "steps on the worker's event loop"
        )
    if transaction:
        raise InvalidRequest(
            "transaction=True and executor='process' do not go together: a connection cannot be in two processes. "
            "Compute in one step, and write in another"
        )


def check_timeout(timeout: Duration, field: str) -> Span:
    span = parse_duration(timeout, field)
    if span == 0:
        raise InvalidRequest(f"{field} must be longer than 0; leave it out for the default")
    return span


def check_priority(priority: object) -> int:
    if isinstance(priority, bool) or not isinstance(priority, int) or not 0 <= priority <= PRIORITY_LIMIT:
        raise InvalidRequest(f"priority must be a whole number from 0 to {PRIORITY_LIMIT}, not {priority!r:.100}")
    return priority


def check_moment(moment: object, field: str) -> datetime:
    if not isinstance(moment, datetime) or moment.tzinfo is None:
        raise InvalidRequest(
            f"{field} must be a datetime with a time zone, for example datetime.now(UTC), not {moment!r:.100}"
        )
    return moment
