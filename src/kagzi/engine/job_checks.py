"""What is refused of jobs over many runs before they begin."""

from __future__ import annotations

from kagzi.api.jobs import StartJob
from kagzi.core.job import MOST_RATE, JobAction, JobOptions
from kagzi.core.limits import check_name, check_step_id, check_text
from kagzi.engine.checks import check_filter, check_number
from kagzi.errors import InvalidRequest
from kagzi.store.searching import is_search


def check_job(start: StartJob) -> None:
    check_name(start.namespace, "namespace")
    if not isinstance(start.action, JobAction):
        raise InvalidRequest(f"action must be one of {', '.join(JobAction)}, not {start.action!r:.60}")
    check_filter(start.filter)
    if start.rate is not None:
        check_number(start.rate, "rate", 1, MOST_RATE)
    _check_options(start.action, start.options, start.filter.workflow_type)
    if not is_search(start.filter) and not start.everything:
        raise InvalidRequest(
            f"there is no filter, so this would {start.action} every run of namespace {start.namespace}; say "
            "everything=True if that is meant"
        )
    _check_statuses(start)
    check_text(start.created_by, "created_by")
    if len(start.created_by) > 255:
        raise InvalidRequest("created_by has more than 255 characters")


def _check_options(action: JobAction, options: JobOptions, workflow: str | None) -> None:
    given = {"from_step": JobAction.FORK, "from_version": JobAction.MOVE}
    for field, of in given.items():
        if getattr(options, field) is not None and action is not of:
            raise InvalidRequest(f"{field} is for the action {of}, not for {action}")
    if options.version is not None and action not in (JobAction.FORK, JobAction.MOVE):
        raise InvalidRequest(f"version is for the actions fork and move, not for {action}")
    if options.from_step is not None:
        check_step_id(options.from_step)
    for field in ("from_version", "version"):
        if (named := getattr(options, field)) is not None:
            check_name(named, field)
    if action is JobAction.MOVE:
        if options.from_version is None or options.version is None:
            missing = "from_version" if options.from_version is None else "version"
            raise InvalidRequest(f"{missing} is missing: say from which version runs are moved, and to which")
        if options.from_version == options.version:
            raise InvalidRequest(f"from_version and version are both {options.version!r}; there is nothing to move")
    if options.version is not None and workflow is None:
        raise InvalidRequest("a version is one of a single workflow: say which one in the filter, too (workflow)")


def _check_statuses(start: StartJob) -> None:
    status = start.filter.status
    if status is None:
        return
    if start.action is JobAction.DELETE and not status.finished:
        raise InvalidRequest(f"status {status}: only finished runs can be deleted; cancel or terminate live ones first")
    if start.action is JobAction.FORK and not status.finished:
        raise InvalidRequest(
            f"status {status}: a job forks finished runs only, because a live one would go on beside its fork; cancel "
            "or terminate live ones first"
        )
