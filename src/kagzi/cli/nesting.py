"""Steps as people see them: nested in the groups and tasks that called them, each with how much of it has ended."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from kagzi.core.duration import format_span
from kagzi.core.instant import Instant
from kagzi.core.step import Step, StepStatus

_INDENT = "  "


class Line(Struct, frozen=True):
    """A line of the listing. `step` is None for a group, which tells of all that is in it: how much has ended, of how
    much that has begun, and how long that took, as far as it has."""

    label: str
    step: Step | None
    ended: int = 0
    begun: int = 0
    took: str = "-"


class _Scope:
    """The calls of one group or task, in the order in which they turned up."""

    def __init__(self) -> None:
        self.parts: dict[str, _Scope] = {}
        self.order: list[Step | str] = []

    def within(self, path: str) -> _Scope:
        scope = self
        for name in path.split("/") if path else ():
            if name not in scope.parts:
                scope.parts[name] = _Scope()
                scope.order.append(name)
            scope = scope.parts[name]
        return scope

    def steps(self) -> Iterator[Step]:
        for part in self.order:
            if isinstance(part, Step):
                yield part
            else:
                yield from self.parts[part].steps()


def nested(steps: Sequence[Step]) -> list[Line]:
    """Returns the lines in the order in which groups and steps turned up."""
    root = _Scope()
    for step in steps:
        root.within(step.scope).order.append(step)
    return list(_lines(root, 0))


def _lines(scope: _Scope, depth: int) -> Iterator[Line]:
    for part in scope.order:
        if isinstance(part, Step):
            yield Line(_INDENT * depth + part.step_id.rpartition("/")[2], part)
        else:
            inner = scope.parts[part]
            yield _summary(_INDENT * depth + part, list(inner.steps()))
            yield from _lines(inner, depth + 1)


def _summary(label: str, steps: list[Step]) -> Line:
    newest = {step.step_id: step for step in steps}  # of several attempts the last counts
    ended = sum(step.completed_seq is not None or step.status is StepStatus.CANCELLED for step in newest.values())
    began = min(step.started_at for step in steps)
    ends: list[Instant] = [step.finished_at for step in steps if step.finished_at is not None]
    took = format_span(max(0, max(ends) - began)) if ends else "-"
    return Line(label, None, ended, len(newest), took)
