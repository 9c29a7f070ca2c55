"""What is refused of jobs over many runs before they begin."""

from __future__ import annotations

from kagzi.api.jobs import StartJob
from kagzi.core.job import MOST_RATE, JobAction, JobOptions, wrong_option
from kagzi.core.limits import check_name, check_step_id, check_text
from kagzi.core.namespace import DEFAULT_NAMESPACE, check_same_namespace
from kagzi.engine.checks import check_filter, check_number
from kagzi.errors import InvalidRequest
from kagzi.store.searching import is_search


def check_job(start: StartJob) -> None:
    check_name(start.namespace, "namespace")
    if not isinstance(start.action, JobAction):
        raise InvalidRequest(f"action must be one of {', '.join(JobAction)}, not {start.action!r:.60}")
    check_filter(start.filter)
    if start.filter.namespace != DEFAULT_NAMESPACE:  # what a filter says that names none
        check_same_namespace(start.filter.namespace, start.namespace)
    if start.rate is not None:
        check_number(start.rate, "rate", 1, MOST_RATE)
    for field in ("children", "everything"):
        if not isinstance(given := getattr(start, field), bool):
            raise InvalidRequest(f"{field} must be true or false, not {given!r:.60}")
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
    if options.from_step is not None:
        check_step_id(options.from_step)
    for field in ("from_version", "version"):
        if (named := getattr(options, field)) is not None:
            check_name(named, field)
    if (wrong := wrong_option(action, options, workflow)) is not None:
        raise InvalidRequest(wrong[1])


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
