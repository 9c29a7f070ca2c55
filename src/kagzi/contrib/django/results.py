"""A run as the result of a task."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from kagzi.contrib.django import compat
from kagzi.contrib.django.tasks import PRIORITY_ZERO, NotATask, TaskNotFound, Terms, find_task
from kagzi.core.failure import Failure
from kagzi.core.report import report
from kagzi.core.run import RunStatus
from kagzi.core.step import StepKind, StepStatus
from kagzi.sdk.records import RunRecord, StepRecord

# A run that sleeps, until its time or before another attempt, is ready to be executed (again).
_STATUSES: Final = {
    RunStatus.PENDING: "READY",
    RunStatus.SLEEPING: "READY",
    RunStatus.RUNNING: "RUNNING",
    RunStatus.COMPLETED: "SUCCESSFUL",
}


def read_result(alias: str, run: RunRecord, steps: Sequence[StepRecord]) -> Any:
    path, args, kwargs, terms = read_input(run.input)
    tries = [step for step in steps if step.kind is StepKind.FUNCTION and not terms.durable]
    failures = [step.error for step in tries if step.error is not None]
    if run.error is not None and (not failures or failures[-1].type != run.error.type):
        failures.append(run.error)  # of a task that never began, timed out or was cancelled
    # One that has just begun is not shown among the steps yet.
    unseen = run.status is RunStatus.RUNNING and not any(step.status is StepStatus.RUNNING for step in tries)
    attempts = int(run.started_at is not None) if terms.durable else len(tries) + unseen
    result = compat.base.TaskResult(
        task=_task(path, alias, run),
        id=run.run_id,
        status=compat.base.TaskResultStatus(_STATUSES.get(run.status, "FAILED")),
        enqueued_at=run.created_at,
        started_at=run.started_at,
        last_attempted_at=_last_attempt(run, tries),
        finished_at=run.finished_at,
        args=args,
        kwargs=kwargs,
        backend=alias,
        errors=[_error(failure) for failure in failures],
        worker_ids=[run.worker_id or "kagzi"] * attempts,
    )
    if run.status is RunStatus.COMPLETED:
        object.__setattr__(result, "_return_value", run.output)
    return result


def _last_attempt(run: RunRecord, tries: Sequence[StepRecord]) -> datetime | None:
    """By the clocks of workers, which may be ahead of the database's, by which the run has ended."""
    begun = max([step.started_at for step in tries], default=run.started_at)
    return begun if begun is None or run.finished_at is None else min(begun, run.finished_at)


def read_input(input: Any) -> tuple[str, list[Any], dict[str, Any], Terms]:
    """What a run was given: by position by this backend, perhaps by name by others."""
    given = list(input) if isinstance(input, list) else []
    if isinstance(input, dict):
        given = [input.get(name) for name in ("task", "args", "kwargs", "terms")]
    path, args, kwargs, terms = [*given, None, None, None, None][:4]
    return str(path), args or [], kwargs or {}, msgspec.convert(terms or {}, Terms)


def _task(path: str, alias: str, run: RunRecord) -> Any:
    try:
        task = find_task(path)
    except (NotATask, TaskNotFound) as error:
        raise compat.exceptions.TaskResultDoesNotExist(f"{run.run_id}: {error}") from error
    later = run.available_at if run.status is RunStatus.PENDING and run.available_at != run.created_at else None
    changes = {"priority": max(-100, min(run.priority - PRIORITY_ZERO, 100)), "queue_name": run.queue, "backend": alias}
    try:
        return task.using(**changes, run_after=later)
    except compat.InvalidTask:  # a queue that the settings do not name any more
        return task


def _error(failure: Failure) -> Any:
    return compat.base.TaskError(exception_class_path=failure.type, traceback=report(failure))
