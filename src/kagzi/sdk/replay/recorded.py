"""What is recorded of a run when it is claimed, sorted by what replay does with it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, Final

from kagzi.api.workers import Claim
from kagzi.core.instant import Instant
from kagzi.core.step import BEGIN, LATE, Step, StepKind, StepStatus, is_patch

# Of runs that begin, as most do: an empty deque of their own would take as much room as all else here.
_NO_EVENTS: Final[deque[Step]] = deque(maxlen=0)


class Recorded:
    """Workflow code may be changed under a live run. A recorded step that is no longer called is passed over; one that
    is called later than recorded gets its result when it is called."""

    __slots__ = ("_beside", "attempts", "children", "early", "events", "patches", "suspects", "ticks")

    def __init__(self, history: Iterable[Step]) -> None:
        self.events: deque[Step] = deque() if history else _NO_EVENTS  # to be delivered, in their order
        self.early: dict[str, Step] = {}  # events whose step the code has not called yet
        self.suspects: list[tuple[str, list[str]]] = []  # of `early`: those that others may have taken the place of
        self._beside: dict[str, tuple[str, ...]] = {}  # which steps it had called instead by then
        self.attempts: dict[str, Step] = {}  # the last failed attempt of steps that are to be tried again
        self.ticks: dict[str, int] = {}  # ticks and cancellations, with their attempt
        self.children: dict[str, Step] = {}  # steps that have spawned a run, ended or not
        self.patches: dict[str, int] = {}  # switches that were on, with the occurrence from which on
        for step in history:
            if step.child_run_id is not None:
                self.children[step.step_id] = step
            if step.completed_seq is not None:
                self.events.append(step)
                if step.kind is StepKind.SLEEP or step.kind is StepKind.CANCEL or step.step_id == BEGIN:
                    self.ticks[step.step_id] = max(step.attempt, self.ticks.get(step.step_id, 0))
            elif step.status is StepStatus.FAILED and step.child_run_id is None:
                last = self.attempts.get(step.step_id)
                if last is None or last.attempt < step.attempt:
                    self.attempts[step.step_id] = step
            elif step.kind is StepKind.SIGNAL and is_patch(step.step_id):
                self.note_patch(step.step_id)

    def note_patch(self, step_id: str) -> None:
        """Notes that a switch is on from this occurrence of its id in its scope on."""
        place, occurrence = _occurrence(step_id)
        self.patches[place] = min(occurrence, self.patches.get(place, occurrence))

    def has_patch(self, step_id: str) -> bool:
        """Returns whether a switch was on at this occurrence or before."""
        place, occurrence = _occurrence(step_id)
        return self.patches.get(place, occurrence + 1) <= occurrence

    def tells_cancelled(self) -> bool:
        """Returns whether the workflow was told to end."""
        return any(event.kind is StepKind.CANCEL for event in self.events)

    def take_begin(self) -> Step | None:
        """Takes the event that says when the workflow function began, if it is there."""
        if self.events and self.events[0].step_id == BEGIN and self.events[0].kind is StepKind.SIGNAL:
            return self.events.popleft()
        return None

    def take_late_cancel(self) -> Step | None:
        """Takes the next event if it is a cancellation that came too late for the one before it."""
        events = self.events
        if events and events[0].kind is StepKind.CANCEL and events[0].output == LATE:
            return events.popleft()
        return None

    def keep_early(self, event: Step, called: Iterable[str]) -> None:
        """Keeps an event whose step the code has not called, with what the code waits for instead."""
        self.early[event.step_id] = event
        self._beside[event.step_id] = tuple(called)

    def replaced(self, waiting: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
        """Yields recorded steps that were not called, with those without a record that the code waits for instead.

        They may have been put in front of the recorded one. They may also be the same under another name.
        """
        new = {step_id for step_id in waiting if step_id not in self.attempts}
        for recorded in self.early:
            instead = [step_id for step_id in self._beside[recorded] if step_id in new]
            if instead:
                yield recorded, instead


def run_to_replay(run_id: str, workflow: str, started_at: Instant, **more: Any) -> Claim:
    """Makes what an execution is told of a run that nobody has claimed: its history is only replayed."""
    nowhere: dict[str, Any] = {
        "namespace": "default",
        "version": "",
        "task_queue": "default",
        "external_id": None,
        "input": b"",
    }
    unheld: dict[str, Any] = {
        "token": "",
        "lease": 0,
        "attempts": 0,
        "executions": 2,
        "crashes": 0,
        "inbox_seq": 0,
        "history": (),
    }
    return Claim(run_id=run_id, workflow_type=workflow, started_at=started_at, **(nowhere | unheld | more))


def _occurrence(step_id: str) -> tuple[str, int]:
    """Splits the id of a row into its place in the workflow and its occurrence there."""
    scope, slash, name = step_id.rpartition("/")
    name, _, number = name.partition("#")
    return scope + slash + name, int(number or 1)
