"""Starts and repeats that find an id taken: whether the run that has it is the one they ask for. For both databases."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from kagzi.api.operations import SendSignal, Started, StartRun
from kagzi.core.canonical import same_json
from kagzi.core.conflict import OnConflict
from kagzi.core.run import RunStatus
from kagzi.errors import Conflict, NotFound


class Identity(Struct, frozen=True):
    """What makes a start the same as another, beside its input."""

    namespace: str
    run_id: str
    external_id: str | None
    workflow_type: str
    task_queue: str
    version: str | None


def identity_of(start: StartRun) -> Identity:
    return Identity(
        start.namespace, start.run_id, start.external_id, start.workflow_type, start.task_queue, start.version
    )


def refusal(start: StartRun, found: Identity, input: bytes) -> Conflict | None:
    """Returns why the run that was found is not what this start asks for; None if it is.

    Inputs are compared as JSON, of which neither the order of keys nor how a number is written counts. With an id of
    the caller's choice our own client then looks at what they are read as, by the types of the workflow and the codec
    of its app; a run id it makes anew for every start, and what it sends again is the same to the byte. Versions are
    not compared: the default may have changed since the first time, and the run may have been moved or have begun anew.
    With a signal the input of a run that is found is not compared: what it was started with is not what it is about by
    now.
    """
    if found.run_id == start.run_id:
        asked = replace(identity_of(start), version=found.version)
        if found == asked and input == start.input:
            return None
        return Conflict(
            f"run id {found.run_id} belongs to a run of {found.workflow_type}, which was started with another type, "
            "id, queue or input"
        )
    if start.on_conflict is OnConflict.FAIL:
        return Conflict(f"there is a run with the id {start.external_id!r} already: {found.run_id}")
    if found.workflow_type == start.workflow_type and (start.signal is not None or same_json(input, start.input)):
        return None
    return Conflict(
        f"id {start.external_id!r} belongs to run {found.run_id} of {found.workflow_type}, which was started with "
        "another type or input"
    )


def id_taken(run_id: str, workflow_type: str) -> Conflict:
    """Makes the error for a repeat whose new run would have the id of another run."""
    return Conflict(f"run id {run_id} belongs to another run, of {workflow_type}")


def signal_of(start: StartRun, run_id: str) -> SendSignal:
    """Returns the signal that came with a start, for the run that has its id."""
    signal = start.signal
    assert signal is not None
    return SendSignal(namespace=start.namespace, run_id=run_id, name=signal.name, value=signal.value, key=signal.key)


def restarts(start: StartRun, found: Identity, status: RunStatus) -> bool:
    """Returns whether the run that was found gives its id up to this start. Its input may be another; its type not."""
    return (
        found.run_id != start.run_id
        and found.workflow_type == start.workflow_type
        and start.on_conflict.restarts(status)
    )


def superseded(of_run_id: str, by: str, status: RunStatus | None, available_at: int) -> Started | Conflict:
    """Answers a repeat of a run that has given its id up before: the run that has taken it over, if that is on its way
    or has done what was asked for. `status` is None if that run is gone."""
    if status is not None and (not status.finished or status is RunStatus.COMPLETED):
        return Started(run_id=by, already_exists=True, status=status, available_at=available_at)
    ended = "was deleted" if status is None else f"has {status}"
    return Conflict(
        f"run {of_run_id} was superseded by run {by}, which {ended}: repeat that one, or this one without its id "
        "(keep_id=False)"
    )


def step_has_no_end(run_id: str, step_id: str) -> NotFound:
    return NotFound(f"run {run_id} has no step {step_id!r} that has ended, so it cannot be forked from there")
