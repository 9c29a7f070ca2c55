"""The errors that are raised for a run that ended without a result, where its result is awaited."""

from __future__ import annotations

from collections.abc import Callable

from kagzi.core.exceptions import exception_of
from kagzi.core.failure import Failure
from kagzi.core.report import places
from kagzi.core.run import RunStatus
from kagzi.core.step import StepStatus
from kagzi.errors import CannotDecode, Conflict, KagziError, WorkflowCancelled, WorkflowFailed, WorkflowTimedOut

_ENDS: dict[RunStatus, type[WorkflowFailed]] = {
    RunStatus.FAILED: WorkflowFailed,
    RunStatus.CANCELLED: WorkflowCancelled,
    RunStatus.TIMED_OUT: WorkflowTimedOut,
}


def ended_otherwise(
    status: RunStatus,
    error: bytes | None,
    workflow: str,
    run_id: str,
    more: str = "",
    read: Callable[[bytes], Failure] = Failure.decode,
) -> WorkflowFailed:
    """Returns the error for a run that ended without a result. `read` decodes what the codec of the app has made."""
    failure: Failure | None = None
    unreadable: CannotDecode | None = None
    if error:
        try:
            failure = read(error)
        except CannotDecode as problem:
            unreadable = problem
            failure = stored if (stored := Failure.decode(error)).sealed else None
            more = f". It cannot be read here: {problem}{more}"
    what = status.value.lower().replace("_", " ")
    detail = f": {_told(failure)}" if failure is not None else ""
    raised = _ENDS[status](f"{workflow} {run_id} {what}{detail}{more}", run_id=run_id, failure=failure)
    if failure is not None:
        raised.__cause__ = exception_of(failure)
        # What is raised here has passed through frames of ours alone. Those of the user are with the stored error.
        if where := places(failure):
            raised.add_note(where)
    if unreadable is not None:
        raised.__cause__ = unreadable
    return raised


def _told(failure: Failure) -> str:
    """Returns the failure in words. Of a run that failed because its child did, only the words of the child: otherwise
    those of the whole line would stand in the message of its first ancestor."""
    below = failure.message.partition(" failed: ")[2] if failure.type == _NAMES[WorkflowFailed] else ""
    return below or str(failure)


def child_error(status: StepStatus, error: bytes | None, workflow: str, run_id: str) -> KagziError:
    """Returns the error that a parent gets for a child that ended without a result, by the row of the step that has
    spawned it."""
    if status is StepStatus.CANCELLED:
        return ended_otherwise(RunStatus.CANCELLED, error, workflow, run_id)
    failure = Failure.decode(error or b"")
    # Nothing has raised these: they were written where the run ended, or could not begin.
    if not failure.traceback and failure.type == _NAMES[Conflict]:
        return Conflict(failure.message)
    timed_out = not failure.traceback and failure.type == _NAMES[WorkflowTimedOut]
    return ended_otherwise(RunStatus.TIMED_OUT if timed_out else RunStatus.FAILED, error, workflow, run_id)


_NAMES = {cls: Failure.of(cls, "").type for cls in (Conflict, WorkflowFailed, WorkflowTimedOut)}
