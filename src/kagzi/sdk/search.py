"""Finding runs by what is known of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from datetime import UTC, date, datetime, time
from typing import Any

from msgspec import Struct

from kagzi.api.schedules import ScheduleService
from kagzi.api.workflows import RunFilter, WorkflowService
from kagzi.core.classes import dotted_name
from kagzi.core.instant import Instant
from kagzi.core.limits import PAGE_SIZE, check_id, check_name, is_run_id
from kagzi.core.run import RUN_STATUSES, RunStatus
from kagzi.core.tags import check_tags, read_tag
from kagzi.errors import InvalidRequest
from kagzi.sdk.definitions import Workflow
from kagzi.sdk.moments import instant_of
from kagzi.sdk.records import Read, RunRecord, run_record


class Runs(Struct, frozen=True, kw_only=True):
    """Chooses runs: those that all of this is true of.

    `tags={"batch": "7"}` and `tag="batch=7"` say the same. `since` and `until` are about when a run was started: a
    datetime with a time zone, or text such as `"2026-11-16"` or `"2026-11-16T09:30+01:00"`, in UTC unless it says
    otherwise; `until` itself is not part of it. `error` is the class of the error that ended it, `"CardDeclined"` or
    `"shop.CardDeclined"`, or the class itself. `parent` is a run id, `schedule` the name or the id of a schedule.
    Without any filter `everything=True` says that every run of the namespace is meant.
    """

    status: RunStatus | str | None = None
    workflow: str | Workflow[Any, Any] | None = None
    queue: str | None = None
    tags: Mapping[str, str] | None = None
    tag: str | None = None
    since: datetime | str | None = None
    until: datetime | str | None = None
    id_prefix: str | None = None
    error: str | type[BaseException] | None = None
    parent: str | None = None
    schedule: str | None = None
    everything: bool = False

    def __post_init__(self) -> None:
        filter = self._filter("default")  # what is wrong is told here
        if self.schedule is not None:
            check_name(self.schedule, "schedule")
        if self.everything and (self.schedule is not None or filter != RunFilter()):
            raise InvalidRequest("everything=True is for runs without any other filter; leave one of them out")

    async def filter(self, namespace: str, schedules: Callable[[], ScheduleService]) -> RunFilter:
        """Returns the filter as the engine takes it. NotFound if there is no such schedule."""
        if self.schedule is None:
            return self._filter(namespace)
        if is_run_id(self.schedule):  # one that was deleted has runs, too
            return self._filter(namespace, self.schedule.lower())
        found = await schedules().get(namespace, self.schedule)
        return self._filter(namespace, found.schedule_id)

    def _filter(self, namespace: str, schedule_id: str | None = None) -> RunFilter:
        since = None if self.since is None else parse_moment(self.since, "since")
        until = None if self.until is None else parse_moment(self.until, "until")
        if since is not None and until is not None and since >= until:
            raise InvalidRequest("since must come before until")
        return RunFilter(
            namespace=namespace,
            status=status_of(self.status),
            workflow_type=None if self.workflow is None else _name_of(self.workflow),
            task_queue=None if self.queue is None else check_name(self.queue, "queue"),
            created_after=None if since is None else max(since - 1, 0),  # the filter leaves the moment itself out
            created_before=until,
            parent_run_id=None if self.parent is None else check_id(self.parent, "parent"),
            tags=_tags_of(self.tags, self.tag),
            id_prefix=None if self.id_prefix is None else check_name(self.id_prefix, "id_prefix"),
            error=None if self.error is None else _error_of(self.error),
            schedule_id=schedule_id,
        )


async def search(
    workflows: WorkflowService, runs: Runs, namespace: str, schedules: Callable[[], ScheduleService], read: Read
) -> AsyncIterator[RunRecord]:
    """Yields the runs that are meant, newest first, however far that has to look."""
    filter = await runs.filter(namespace, schedules)
    token: str | None = None
    while True:
        page = await workflows.list(filter, page_size=PAGE_SIZE, page_token=token)
        for run in page.items:
            yield run_record(run, read)
        if page.next is None:
            return
        token = page.next


def status_of(status: RunStatus | str | None) -> RunStatus | None:
    """Returns the status of this name, in small letters or capitals."""
    try:
        return None if status is None else RunStatus(status.upper())
    except (ValueError, AttributeError):
        names = ", ".join(RUN_STATUSES)
        raise InvalidRequest(f"{status!r} is not a status of a run; there are {names}") from None


def parse_moment(value: object, field: str) -> Instant:
    """Returns the instant of a datetime, or of text such as 2026-11-16 and 2026-11-16T09:30+01:00; UTC unless it says
    otherwise."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            raise InvalidRequest(
                f"{field} must be a moment such as 2026-11-16 or 2026-11-16T09:30+01:00, not {value!r:.60}"
            ) from None
        if value.tzinfo is None:
            value = value.replace(tzinfo=UTC)
    elif isinstance(value, date) and not isinstance(value, datetime):
        value = datetime.combine(value, time(), UTC)
    return instant_of(value, field)


def _tags_of(tags: object, tag: object) -> dict[str, str]:
    wanted = {} if tags is None else check_tags(tags)
    if tag is None:
        return wanted
    name, value = read_tag(tag)
    if wanted.get(name, value) != value:
        raise InvalidRequest(f"tag and tags have different values of {name!r}; a run has one")
    return check_tags(wanted | {name: value})


def _error_of(error: object) -> str:
    if isinstance(error, type) and issubclass(error, BaseException):
        return dotted_name(error)
    return check_name(error, "error")


def _name_of(workflow: object) -> str:
    return check_name(workflow.name if isinstance(workflow, Workflow) else workflow, "workflow")
