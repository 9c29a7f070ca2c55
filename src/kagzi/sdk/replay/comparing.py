"""Replays a recorded history with today's code, and finds the first call that differs.

It is the replay of a worker, with effects that do nothing: no body starts and nothing is written. A worker is lenient
with code that was changed under a run, because a run has to go on somehow. Here every recorded event must meet the call
that it is recorded of, with the same arguments and in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from types import FrameType
from typing import Any, TypeVar, assert_never

from msgspec import Struct

from kagzi.api.operations import Operation
from kagzi.api.workers import Claim
from kagzi.core.instant import Instant
from kagzi.core.limits import PAYLOAD_BYTES
from kagzi.core.retry import Retry
from kagzi.core.step import Step, StepKind
from kagzi.core.wake import WAKE
from kagzi.sdk.replay.execution import Execution
from kagzi.sdk.replay.loop import WorkflowLoop, place_of_call
from kagzi.sdk.replay.unawaited import Holder, Unawaited
from kagzi.sdk.replay.waits import ChildWait, SignalWait, StepCall, Wait

C = TypeVar("C", bound=Coroutine[Any, Any, Any])


class Difference(Struct, frozen=True):
    """The first recorded event that today's code does not come to as it did: its number, what is recorded, what the
    code does instead, and where. Event 0 is the call of the workflow function."""

    event: int
    events: int
    recorded: str
    present: str
    place: str | None

    def __str__(self) -> str:
        at = "" if self.place is None else f", at {self.place}"
        where = f"event {self.event} of {self.events}" if self.event <= self.events else "the end"
        where = where if self.event else "its arguments"
        return f"{where}\n  recorded: {self.recorded}\n  present:  {self.present}{at}"


class ComparedExecution(Execution):
    """An execution that stops at the first difference."""

    def __init__(self, run: Claim, history: Iterable[Step]) -> None:
        super().__init__(NoEffects(), run, history=history, default_retry=Retry(), payload_limit=PAYLOAD_BYTES)
        self.difference: Difference | None = None
        self._events = tuple(self._recorded.events)
        self._places: dict[str, str] = {}
        self._calls = _Calls(self.loop)
        self.loop.unawaited = self._calls

    def compare(self, coroutine: Coroutine[Any, Any, Any], encode_result: Callable[[Any], bytes]) -> None:
        """Replays everything; afterwards `outcome` and `difference` tell what came of it."""
        self.begin(coroutine, encode_result)
        left = [event for event in self._events if (event.completed_seq or 0) > self._journal.seq]
        if self.difference is None and left:
            self._differs(left[0], self.described_end(), None)

    @property
    def replayed_events(self) -> int:
        return len(self._events)

    def request(self, wait: Wait) -> None:
        if not self.loop.evicting:
            self._places[wait.step_id] = self._calls.place_of(wait) or place_of_call()
        super().request(wait)

    def _replay(self, event: Step) -> None:
        if self.difference is not None:
            return
        if event.kind is StepKind.SLEEP:
            assert event.finished_at is not None
            if event.step_id != WAKE and self.loop.first_due(event.finished_at - int(event.output or 0)) is None:
                self._differs(event, *self.awaited())
                return
        elif event.kind is not StepKind.CANCEL and event.step_id not in self._waiting:
            self._differs(event, *self.awaited())
            return
        super()._replay(event)

    def _see(self, wait: Wait, event: Step) -> None:
        other = event.input_hash != wait.input_hash and event.input_hash and wait.input_hash
        if other and self.difference is None and not self.told_another_child(wait):
            place = self._places.get(wait.step_id)
            self._differs(event, f"{_named(wait)} with other arguments", place)
        else:
            super()._see(wait, event)

    def awaited(self) -> tuple[str, str | None]:
        """Returns what the code waits for instead, and where: the calls that nothing is recorded of come first."""
        later = {event.step_id for event in self._recorded.events}
        waits = sorted(self._waiting.values(), key=lambda wait: wait.step_id in later)
        if waits:
            first = waits[0]
            more = f" and {len(waits) - 1} more" if len(waits) > 1 else ""
            return f"waits for {_named(first)}{more}", self._places.get(first.step_id)
        if self.loop.timers:
            return "waits for a sleep or a timeout that is not over by then", None
        return self.described_end(), None

    def described_end(self) -> str:
        if self.outcome is None:
            return "waits for nothing that is recorded"
        if self.outcome.failure is not None:
            return f"the workflow function has raised {self.outcome.failure.type}: {self.outcome.failure.message}"
        return "the workflow function has ended"

    def _differs(self, event: Step, present: str, place: str | None) -> None:
        self.difference = Difference(event.completed_seq or 0, self.replayed_events, _described(event), present, place)


class _Calls(Unawaited):
    """Remembers where each call was made."""

    def __init__(self, loop: WorkflowLoop) -> None:
        super().__init__(loop)
        self._made: dict[int, tuple[Holder, str]] = {}

    def add(self, coroutine: C, holder: Holder, what: str, caller: FrameType) -> C:
        self._made[id(holder)] = (holder, place_of_call())
        return super().add(coroutine, holder, what, caller)

    def place_of(self, wait: Wait) -> str | None:
        made = self._made.get(id(wait))
        return None if made is None else made[1]


def _named(wait: Wait) -> str:
    match wait:
        case StepCall():
            return f"step {wait.step_id}"
        case SignalWait():
            return f"signal {wait.name}"
        case ChildWait():
            return f"child {wait.step_id}"
        case _:
            raise AssertionError(f"{type(wait).__name__} has no name here")


def _described(event: Step) -> str:
    match event.kind:
        case StepKind.SLEEP:
            return f"sleep or timeout {event.step_id.lstrip('@')} was over"
        case StepKind.SIGNAL:
            return f"signal {event.name} came"
        case StepKind.CHILD_WORKFLOW:
            return f"child {event.step_id} ended {event.status.value}"
        case StepKind.CANCEL:
            return "the run was told to end"
        case StepKind.FUNCTION:
            return f"step {event.step_id} {event.status.value}"
        case kind:
            assert_never(kind)


class NoEffects:
    """The effects of a replay, which does nothing to the world."""

    def submit(self, operation: Operation) -> None:
        """Writes nothing."""

    def start_body(self, call: StepCall) -> None:
        """Starts nothing."""

    def cancel_body(self, call: StepCall) -> None:
        """Does nothing: no body was started."""

    def submit_unhurried(self, operation: Operation) -> None:
        """Writes nothing."""

    def set_value(self, name: str, value: bytes) -> None:
        """Drops it: a comparison has nobody to tell."""

    def now(self) -> Instant:
        return 0

    def passed(self) -> Instant:
        return 0

    def jitter(self) -> float:
        return 0.5
