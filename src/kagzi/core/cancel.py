"""The failures that cancelled and terminated runs end with."""

from __future__ import annotations

from kagzi.core.failure import Failure
from kagzi.errors import WorkflowCancelled


def cancelled_unbegun() -> bytes:
    return _failure("the run was cancelled before it began")


def cancelled() -> bytes:
    return _failure("the run was cancelled")


def cancelled_unclean() -> bytes:
    return _failure("the run was cancelled and did not end in the time it had to clean up")


def terminated(reason: str) -> bytes:
    return _failure(f"the run was terminated: {reason}" if reason else "the run was terminated")


def _failure(message: str) -> bytes:
    return Failure.of(WorkflowCancelled, message).encode()
