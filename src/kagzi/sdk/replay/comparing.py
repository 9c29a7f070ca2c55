"""Replays a recorded history with today's code, and finds the first call that differs.

It is the replay of a worker, with effects that do nothing: no body starts and nothing is written. A worker is lenient
with code that was changed under a run, because a run has to go on somehow. Here every recorded event must meet the call
that it is recorded of, with the same arguments.

Two changes do no harm, and are told apart: steps and children that are new, and recorded ones that the code does
without. Both together may be one under another name, which would be done again. To come to the calls behind a new one,
it is given a stand-in for its result; what the code makes of that is not compared.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Sequence
from types import FrameType
from typing import Any, Final, TypeVar, assert_never

from msgspec import Struct

from kagzi.api.operations import Operation
from kagzi.api.workers import Claim
from kagzi.core.instant import Instant
from kagzi.core.limits import PAYLOAD_BYTES
from kagzi.core.retry import Retry
from kagzi.core.step import Step, StepKind, StepStatus, step_name
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
    """An execution that stops at the first difference that does harm."""

    def __init__(self, run: Claim, history: Iterable[Step], *, ended: bool = False) -> None:
        """`ended`: the run has completed, so all of its code is compared and not only that up to the last event."""
        super().__init__(NoEffects(), run, history=history, default_retry=Retry(), payload_limit=PAYLOAD_BYTES)
        self.difference: Difference | None = None
        self.harmless: Difference | None = None  # the first that does none
        self.new: list[str] = []  # steps and children that nothing is recorded of, up to where the history ends
        self.gone: list[str] = []  # recorded ones that the code does without
        self.guessed = False  # a stand-in may have been taken for a result
        self._ended = ended
        self._stuck = False
        self._events = tuple(self._recorded.events)
        self._known = {step.step_id for step in self._events} | self._recorded.attempts.keys()
        self._known |= self._recorded.children.keys()
        self._places: dict[str, str] = {}
        self._calls = _Calls(self.loop)
        self.loop.unawaited = self._calls

    def compare(self, coroutine: Coroutine[Any, Any, Any], encode_result: Callable[[Any], bytes]) -> None:
        """Replays everything; afterwards `outcome` and `difference` tell what came of it."""
        self.begin(coroutine, encode_result)
        if self.difference is not None:
            return
        left = [event for event in self._events if (event.completed_seq or 0) > self._journal.seq]
        missing = [*self._recorded.early.values(), *left]
        others = [event for event in missing if event.kind not in _CALLS]
        if missing and not self.lost_track and (others or self._has_failed()):
            self._differs(
                min([*others, missing[0]], key=lambda event: event.completed_seq or 0), self.described_end(), None
            )
            return
        if self.lost_track:
            # What is called behind a result that cannot be made up is not seen; what the app lacks is not called.
            app: Any = self.app
            missing = [event for event in missing if event.kind in _CALLS and app.lacks(step_name(event.step_id))]
        if not missing:
            return
        first = missing[0]
        self._note(first, self.described_end(), None)
        names = ", ".join(event.step_id for event in missing)
        if self.new:
            present = f"would run again: {names} (new: {', '.join(self.new)})"
            self.difference = _difference(self._events, first, present, self._places.get(self.new[0]))
        else:
            self.gone = [event.step_id for event in missing]

    @property
    def replayed_events(self) -> int:
        return len(self._events)

    @property
    def lost_track(self) -> bool:
        """Whether the code could not be followed: it waits for a result that cannot be made up, or has failed on one
        that was."""
        return self._stuck or (self.guessed and self._has_failed())

    def _has_failed(self) -> bool:
        return self.outcome is not None and self.outcome.failure is not None

    def request(self, wait: Wait) -> None:
        if not self.loop.evicting:
            self._places[wait.step_id] = self._calls.place_of(wait) or place_of_call()
        super().request(wait)

    def _replay(self, event: Step) -> None:
        if self.difference is not None:
            return
        self._tell_spawned(event)
        if event.kind is StepKind.SLEEP:
            while not self._fires(event):
                if not self._pass_new(event):
                    if not self._stuck:
                        self._differs(event, *self.awaited())
                    return
        elif event.kind is not StepKind.CANCEL:
            while event.step_id not in self._waiting and self._pass_new(event):
                pass
            if event.step_id not in self._waiting:
                if event.kind not in _CALLS:
                    if not self._stuck:
                        self._differs(event, *self.awaited())
                    return
                self._note(event, *self.awaited())
        super()._replay(event)

    def _fires(self, event: Step) -> bool:
        assert event.finished_at is not None
        return event.step_id == WAKE or self.loop.first_due(event.finished_at - int(event.output or 0)) is not None

    def _go_live(self) -> None:
        whole = bool(self._recorded.early) or self._ended
        while self.difference is None and whole and self._pass_new(None):
            pass
        if whole:
            self._tell_spawned(None)
        super()._go_live()

    def _tell_replaced(self) -> None:
        """Looks for nothing: `compare` does."""

    def _tell_spawned(self, event: Step | None) -> None:
        """Tells the children that were spawned until now and are not recorded; the code may wait for none of them."""
        for spawned in () if self._children is None else self._children.unrecorded:
            if spawned.step_id not in self.new:
                self.new.append(spawned.step_id)
                if event is not None:
                    self._note(event, f"spawns child {spawned.step_id}", None)

    def _pass_new(self, event: Step | None) -> bool:
        """Goes past a call that nothing is recorded of, if the code waits for one: with a stand-in for its result."""
        for wait in self._waiting.values():
            if wait.step_id in self._known or not isinstance(wait, StepCall | ChildWait):
                continue
            if wait.step_id not in self.new:
                self.new.append(wait.step_id)
                if event is not None:
                    self._note(event, f"waits for {_named(wait)}", self._places.get(wait.step_id))
            stand_in = _stand_in(wait)
            if stand_in is None:
                self._stuck = True
                continue
            value, exact = stand_in
            self.guessed = self.guessed or not exact
            del self._waiting[wait.step_id]
            if isinstance(wait, ChildWait):
                self.children.seen(wait, StepStatus.COMPLETED)
            wait.resolve(value)
            self.loop.drain()
            return True
        return False

    def _see(self, wait: Wait, event: Step) -> None:
        other = event.input_hash != wait.input_hash and event.input_hash and wait.input_hash
        if other and self.guessed:
            wait.input_hash = 0
        elif other and self.difference is None and not self.told_another_child(wait):
            place = self._places.get(wait.step_id)
            self._differs(event, f"{_named(wait)} with other arguments", place)
            return
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
        """Notes that the code does something else at this event, or did before if it has not come back since."""
        if self._recorded.early and not self.new and self.harmless is not None:
            self.difference = self.harmless
        else:
            self.difference = _difference(self._events, event, present, place)

    def _note(self, event: Step, present: str, place: str | None) -> None:
        if self.harmless is None:
            self.harmless = _difference(self._events, event, present, place)


_CALLS: Final = (StepKind.FUNCTION, StepKind.CHILD_WORKFLOW)
_STAND_INS: Final = (b"null", b"0", b'""', b"false", b"[]", b"{}")


def _stand_in(wait: StepCall | ChildWait) -> tuple[Any, bool] | None:
    """Returns a result that a call could have, and whether it can have no other; None if none is known."""
    decode: Any = None if isinstance(wait, StepCall) else wait.decode
    codec: Any = wait.codec if isinstance(wait, StepCall) else getattr(decode, "func", decode).__self__
    read = codec.with_codec(None).decode_result
    fit = []
    for data in _STAND_INS:
        try:
            fit.append((data, read(data)))
        except Exception:
            continue  # it is of another type
    return (fit[0][1], [data for data, _ in fit] == [b"null"]) if fit else None


def _difference(events: Sequence[Step], event: Step, present: str, place: str | None) -> Difference:
    return Difference(event.completed_seq or 0, len(events), _described(event), present, place)


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
