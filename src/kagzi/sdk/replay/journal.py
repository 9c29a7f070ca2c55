"""The record as it is written: events get their numbers and times here, and operations go to the host in order.

Gates count operations: one that was submitted is durable when the host has said so of as many.
"""

from __future__ import annotations

from kagzi.api.operations import CompleteStep, Operation
from kagzi.core.instant import Instant, Span
from kagzi.core.step import StepKind
from kagzi.sdk.replay.effects import Effects
from kagzi.sdk.replay.loop import WorkflowLoop


class Journal:
    __slots__ = ("_effects", "_loop", "_ticks", "durable", "first_failure", "seq", "submitted", "told")

    def __init__(self, effects: Effects, loop: WorkflowLoop, ticks: dict[str, int]) -> None:
        self.seq = 0  # of the last event
        self.submitted = 0
        self.durable = 0
        self.first_failure: int | None = None  # the first event that is a final failure
        # Children that the workflow has told something, by step, and the last event before that; not those of which it
        # has heard that they have succeeded.
        self.told: dict[str, int] | None = None
        self._effects = effects
        self._loop = loop
        self._ticks = ticks

    def next_event(self, now: Instant | None = None) -> Instant:
        """Numbers an event and gives it its time, which never lies before the last event's."""
        self.seq += 1
        if now is None:
            now = self._effects.now()
        loop = self._loop
        if now > loop.now:
            loop.now = now
        return loop.now

    @property
    def now(self) -> Instant:
        """The time of the last event."""
        return self._loop.now

    def submit(self, operation: Operation) -> None:
        self.submitted += 1
        self._effects.submit(operation)

    def submit_unhurried(self, operation: Operation) -> None:
        self.submitted += 1
        self._effects.submit_unhurried(operation)

    def marked(self, step_id: str, kind: StepKind, since: Instant, early: Span = 0) -> CompleteStep:
        """Returns the row of the last event, one that is no step of its own."""
        # Code that was changed under the run can come to the name of an older tick once more, and a sleep may be called
        # `cancel`. Both are kept: a row that is taken is not written again, and the event would be lost.
        attempt = self._ticks[step_id] = self._ticks.get(step_id, 0) + 1
        return CompleteStep(
            step_id=step_id,
            attempt=attempt,
            kind=kind,
            completed_seq=self.seq,
            started_at=since,
            finished_at=self._loop.now,
            output=b"%d" % early if early else None,
        )

    def note_failure(self, seq: int) -> None:
        if self.first_failure is None:
            self.first_failure = seq

    def keep_seq(self) -> int:
        """Returns up to which event a run that is tried again keeps its history. What a child was told is not kept: it
        may be another child then, which nobody would tell."""
        kept = self.seq if self.first_failure is None else self.first_failure - 1
        return min(kept, *self.told.values()) if self.told else kept
