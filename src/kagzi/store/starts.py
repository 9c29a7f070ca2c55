"""Starts and repeats that find an id taken: whether the run that has it is the one they ask for. For both databases."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from kagzi.api.operations import StartRun
from kagzi.errors import Conflict


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
    """Why the run that was found is not what this start asks for; None if it is.

    Inputs are compared by their bytes, though a codec may give others for the same value. With an id of the caller's
    choice our own client then looks at what they decode to; a run id it makes anew for every start, and what it sends
    again is the same to the byte.
    """
    if found.run_id == start.run_id:
        asked = identity_of(start)
        if start.version_resolved:  # the default may have changed since the first time
            asked = replace(asked, version=found.version)
        if found == asked and input == start.input:
            return None
        return Conflict(
            f"run id {found.run_id} belongs to a run of {found.workflow_type}, which was started with another type, "
            "id, queue, version or input"
        )
    if found.workflow_type == start.workflow_type and input == start.input:
        return None
    return Conflict(
        f"id {start.external_id!r} belongs to run {found.run_id} of {found.workflow_type}, which was started with "
        "another type or input"
    )


def id_taken(run_id: str, workflow_type: str) -> Conflict:
    """For a run that is to be like another, and is to have this id."""
    return Conflict(f"run id {run_id} belongs to another run, of {workflow_type}")
