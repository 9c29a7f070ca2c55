"""A stored error as people read it: with the frames of their own code, its causes first, as Python prints them."""

from __future__ import annotations

from collections.abc import Iterator

from kagzi.core.failure import Failure

_LED_TO = "The error above led to this one:"


def report(failure: Failure) -> str:
    """Returns the text of an error with its causes and where each was raised."""
    return "\n".join([*_places(failure), str(failure), *_members(failure)])


def places(failure: Failure) -> str:
    """Returns where an error was raised, for use behind a message that has said what it was. Empty if that is not
    known."""
    return "\n".join([*_places(failure), *_members(failure)])


def _places(failure: Failure) -> Iterator[str]:
    if failure.cause is not None:
        yield report(failure.cause)
        yield f"\n{_LED_TO}\n"
    if failure.traceback:
        yield "Traceback (most recent call last):"
        yield failure.traceback


def _members(group: Failure) -> Iterator[str]:
    for number, member in enumerate(group.members, 1):
        yield f"Error {number} of {len(group.members)} in the group:"
        for line in report(member).splitlines():
            yield f"  {line}"
