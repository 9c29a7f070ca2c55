"""A stored error as people read it: with the frames of their own code, its causes first, as Python prints them."""

from __future__ import annotations

from collections.abc import Iterator

from kagzi.core.failure import Failure

_LED_TO = "The error above led to this one:"


def report(failure: Failure) -> str:
    """Returns the text of an error with its causes and where each was raised."""
    return "\n".join(report_lines(failure))


def places(failure: Failure) -> str:
    """Returns where an error was raised, for use behind a message that has said what it was. Empty if that is not
    known."""
    return "\n".join([*_places(failure, ""), *_members(failure, "")])


def report_lines(failure: Failure, indent: str = "") -> Iterator[str]:
    """Yields the lines of `report`, for those who show the first of them: those of inner errors are indented, which
    makes many of them long."""
    yield from _places(failure, indent)
    yield from _indented(str(failure), indent)
    yield from _members(failure, indent)


def _places(failure: Failure, indent: str) -> Iterator[str]:
    if failure.cause is not None:
        yield from report_lines(failure.cause, indent)
        yield from (indent, indent + _LED_TO, indent)
    if failure.traceback:
        yield f"{indent}Traceback (most recent call last):"
        yield from _indented(failure.traceback, indent)


def _members(group: Failure, indent: str) -> Iterator[str]:
    for number, member in enumerate(group.members, 1):
        yield f"{indent}Error {number} of {len(group.members)} in the group:"
        yield from report_lines(member, f"{indent}  ")


def _indented(text: str, indent: str) -> Iterator[str]:
    if not indent:
        yield text
        return
    for line in text.splitlines():
        yield indent + line
