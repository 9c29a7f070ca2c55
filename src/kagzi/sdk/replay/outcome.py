"""Outcomes: how a workflow function ended."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from kagzi.core.exceptions import failure_of
from kagzi.core.failure import Failure, Redact
from kagzi.errors import NonDeterminismError
from kagzi.sdk.replay.tasks import WorkflowTask


class Anew(Struct, frozen=True):
    """The input with which, and the version in which, the workflow function begins anew."""

    input: bytes
    version: str


class Outcome(Struct, frozen=True):
    """How a workflow function ended: with an output, with a failure, to begin anew, or with none of these because it
    was cancelled."""

    output: bytes | None
    failure: Failure | None = None
    keep_seq: int = 0
    anew: Anew | None = None

    @property
    def cancelled(self) -> bool:
        return self.output is None and self.failure is None and self.anew is None


def failed(error: BaseException, keep_seq: int, redact: Redact | None = None) -> Outcome:
    return Outcome(None, failure_of(error, redact=redact), keep_seq)


def begun_anew(main: WorkflowTask, input: bytes, version: str) -> Outcome:
    _forget_tracebacks(main, main.exception())
    return Outcome(None, anew=Anew(input, version))


def unsuccessful(main: WorkflowTask, keep_seq: int, *, told: bool, redact: Redact | None = None) -> Outcome:
    """Returns the outcome of a function that was cancelled or has raised. `told`: somebody has asked for it to end."""
    if main.cancelled():
        if told:
            return Outcome(None, None, keep_seq)
        return failed(asyncio.CancelledError("the workflow function was cancelled from within itself"), keep_seq)
    error = main.exception()
    assert error is not None
    outcome = failed(_mistake_in(error), keep_seq, redact)
    _forget_tracebacks(main, error)
    return outcome


def _mistake_in(error: BaseException) -> BaseException:
    """Returns the NonDeterminismError that task groups, of a library perhaps, have made a group of, if nothing else is
    in it; with the way through the user's code that led to the group. Any other error as it is."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    leaves = list(_leaves(error))
    if not all(isinstance(leaf, NonDeterminismError) for leaf in leaves):
        return error
    return leaves[0].with_traceback(error.__traceback__)


def _leaves(group: BaseExceptionGroup[Any]) -> Iterator[BaseException]:
    for member in group.exceptions:
        if isinstance(member, BaseExceptionGroup):
            yield from _leaves(member)
        else:
            yield member


def _forget_tracebacks(main: WorkflowTask, error: BaseException | None) -> None:
    """Drops the tracebacks of an error that is data by now: they hold all frames of the run, and often themselves."""
    try:
        main.result()  # the task keeps the traceback for itself until somebody asks
    except BaseException:
        pass
    seen = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        error.__traceback__ = None
        error = error.__cause__ or error.__context__
