"""`continue_as_new`: it raises, the workflow function ends, and its run begins anew in place.

What is raised is no `Exception`, so that code which handles errors lets it pass; `finally` blocks run. A function that
catches it all the same, and returns, has made a mistake: the new state would be lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kagzi.errors import InvalidRequest, NonDeterminismError, PayloadTooLarge
from kagzi.sdk.replay.loop import place_of_call

if TYPE_CHECKING:
    from kagzi.sdk.replay.execution import Execution


class ContinueAsNew(BaseException):
    """Raised where the workflow function ends, to begin anew with this input in this version."""

    def __init__(self, input: bytes, version: str, place: str) -> None:
        super().__init__(f"the workflow begins anew (at {place})")
        self.input = input
        self.version = version
        self.place = place


def continue_as_new(execution: Execution, workflow: str, input: bytes, version: str) -> ContinueAsNew:
    """Returns what the workflow function is to raise."""
    loop, place = execution.loop, place_of_call()
    if loop.evicting:
        loop.refuse()
    if loop.unawaited.dropped:
        loop.unawaited.refuse_dropped()
    what = f"{workflow}.continue_as_new()"
    if execution.workflow != workflow:
        raise InvalidRequest(
            f"{what} was called in a run of {execution.workflow} (at {place}); a run stays one of its workflow. To "
            f"start another one, write `await {workflow}.spawn(...)`"
        )
    if loop.current_scope() is not loop.root:
        raise InvalidRequest(
            f"{what} was called in a task beside the workflow function (at {place}); return to that, and call it there"
        )
    if execution.cancelled:
        raise InvalidRequest(f"{what} was called in a run that was told to end (at {place}); clean up and return")
    if len(input) > execution.payload_limit:
        raise PayloadTooLarge(
            f"the input that {workflow} is to begin anew with is {len(input):,} bytes (at {place}); at most "
            f"{execution.payload_limit:,} are stored. Keep large data elsewhere and pass a reference to it"
        )
    execution.continuing = ContinueAsNew(input, version, place)
    return execution.continuing


def caught(asked: ContinueAsNew) -> NonDeterminismError:
    """Returns the error of a workflow function that has returned although it is to begin anew."""
    return NonDeterminismError(
        f"continue_as_new() was called at {asked.place}, and the workflow function went on and returned: what it "
        "raises must not be caught; do not catch BaseException"
    )


def is_asked(error: BaseException | None) -> bool:
    """Returns whether a workflow function has ended to begin anew, perhaps out of the group of a task group."""
    if isinstance(error, BaseExceptionGroup):
        members: tuple[Any, ...] = error.exceptions
        return all(is_asked(member) for member in members)
    return isinstance(error, ContinueAsNew)
