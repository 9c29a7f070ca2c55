"""Decisions about children: what one is when it is inserted, and why it could not be. For both databases."""

from __future__ import annotations

from typing import assert_never

from kagzi.api.operations import CancelRun, ChildStart, TerminateRun
from kagzi.core.failure import Failure
from kagzi.core.family import ParentPolicy
from kagzi.core.run import RunStatus
from kagzi.errors import Conflict, WorkflowFailed


def spawn_refused(child: ChildStart) -> bytes:
    """Returns the outcome of a child whose id another run has."""
    if child.external_id is not None:
        message = f"id {child.external_id!r} belongs to another run, so {child.workflow_type} was not started"
    else:
        message = f"run id {child.run_id} belongs to another run, so {child.workflow_type} was not started"
    return Failure.of(Conflict, message).encode()


def place_taken(child: ChildStart, step_id: str) -> bytes:
    """Returns the outcome of a child whose place is taken by another step of its parent."""
    message = (
        f"step {step_id} of this run is recorded, and not as a child, so {child.workflow_type} was not started; "
        f"give it a key of its own"
    )
    return Failure.of(Conflict, message).encode()


def outcome_lost(run_id: str) -> bytes:
    """Returns the outcome of a child that ended without telling, and whose record is gone."""
    message = f"child {run_id} has ended, and was deleted before its parent was told how"
    return Failure.of(WorkflowFailed, message).encode()


def end_of_child(namespace: str, run_id: str, policy: str) -> CancelRun | TerminateRun:
    """Returns what a child is told when its parent has ended."""
    match ParentPolicy(policy):
        case ParentPolicy.TERMINATE:
            return TerminateRun(namespace=namespace, run_id=run_id, reason="its parent has ended")
        case ParentPolicy.CANCEL:
            return CancelRun(namespace=namespace, run_id=run_id)
        case ParentPolicy.ABANDON | ParentPolicy.NONE as left:
            raise AssertionError(f"a child of the policy {left} does not hear of the end of its parent")
        case other:
            assert_never(other)


def gives_id_up(child: ChildStart, workflow_type: str, status: RunStatus, *, own: bool) -> bool:
    """Returns whether a finished run of this type gives its id up to a child. One that the same step has spawned before
    (`own`) always does, or a parent that is tried again could never spawn it again."""
    return own or (workflow_type == child.workflow_type and child.on_conflict.restarts(status))
