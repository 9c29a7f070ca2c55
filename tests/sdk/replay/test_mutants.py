"""Break one rule at a time: the checks of `checks.py` must notice each within a bounded number of programs.

The patches are planted here and nowhere else. That the same programs pass without them is shown by
`test_random_programs`, which runs at least as many seeds.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import logging
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from kagzi.api.operations import CancelStep, CompleteStep, TakeOutcome
from kagzi.api.workers import Claim
from kagzi.core.instant import SECOND
from kagzi.core.step import Step, StepKind
from kagzi.sdk.replay import children as family
from kagzi.sdk.replay import execution as kernel
from kagzi.sdk.replay import steps
from kagzi.sdk.replay.children import Children
from kagzi.sdk.replay.execution import Execution
from kagzi.sdk.replay.journal import Journal
from kagzi.sdk.replay.loop import WorkflowLoop
from kagzi.sdk.replay.steps import Steps
from kagzi.sdk.replay.tasks import WorkflowTask
from kagzi.sdk.replay.waits import ChildWait, StepCall
from tests.sdk.replay import checks
from tests.sdk.replay.host import Host, JsonCodec

Patch = pytest.MonkeyPatch
VOLUME = range(350)  # programs, one of which shows the broken rule


def two_events_in_one_drain(patch: Patch) -> None:
    drain = WorkflowLoop.drain
    chance = random.Random(1)

    def hold(self: WorkflowLoop) -> None:
        # While another body runs, another event will come, and its drain makes up for this one.
        held = self.execution.steps.live and self.execution.steps.running and chance.random() < 0.5
        if not held:
            drain(self)

    patch.setattr(WorkflowLoop, "drain", hold)


def number_after_the_workflow_went_on(patch: Patch) -> None:
    submit, step_returned = Journal.submit, Execution.step_returned
    held: list[tuple[Journal, Any]] = []

    def late_submit(self: Journal, operation: Any) -> None:
        if isinstance(operation, CompleteStep) and operation.kind is StepKind.FUNCTION:
            held.append((self, operation))
        else:
            submit(self, operation)

    def early_resolve(self: Execution, call: StepCall, value: Any) -> None:
        step_returned(self, call, value)
        if held:
            submit(*held.pop())

    patch.setattr(Journal, "submit", late_submit)
    patch.setattr(Execution, "step_returned", early_resolve)


def number_when_the_body_returns(patch: Patch) -> None:
    """Two bodies return in one order and are delivered in the other."""
    step_returned = Execution.step_returned
    held: dict[Execution, tuple[StepCall, Any, int]] = {}

    def returned(self: Execution, call: StepCall, value: Any) -> None:
        journal = self._journal
        if self not in held and self.steps.running > 1 and call.awaited:
            journal.seq += 1
            held[self] = (call, value, journal.seq)
            return
        step_returned(self, call, value)
        if self in held:
            other, other_value, seq = held.pop(self)
            after, journal.seq = journal.seq, seq - 1
            step_returned(self, other, other_value)
            journal.seq = after

    patch.setattr(Execution, "step_returned", returned)


def commit_in_any_order(patch: Patch) -> None:
    def send(self: Host) -> None:
        self.random.shuffle(self.pending)
        self.in_flight, self.pending = self.pending[:1], self.pending[1:]

    patch.setattr(Host, "send", send)


def start_bodies_at_once(patch: Patch) -> None:
    start_due = Steps.start_due

    def open_gate(self: Steps) -> None:
        durable, self.journal.durable = self.journal.durable, 1 << 60
        start_due(self)
        self.journal.durable = durable

    patch.setattr(Steps, "start_due", open_gate)


def wait_for_the_newest_acknowledgement_only(patch: Patch) -> None:
    def durable(self: Execution, operations: int, **_: bool) -> None:
        self._journal.durable = self._journal.submitted
        self.steps.start_due()

    patch.setattr(Execution, "durable", durable)


def end_before_the_last_events(patch: Patch) -> None:
    commit_all = Host.commit_all

    def overtaken(self: Host) -> None:
        if self.execution is not None and self.execution.outcome is not None:
            self.pending.clear()
        commit_all(self)

    patch.setattr(Host, "commit_all", overtaken)


def record_after_the_end(patch: Patch) -> None:
    finish = Execution._finish

    def finished(self: Execution, main: WorkflowTask) -> None:
        bodies = [call for call in self._waiting.values() if isinstance(call, StepCall) and call.running]
        finish(self, main)
        for call in bodies:
            self._journal.submit(CancelStep(step_id=call.step_id, attempt=call.attempt, started_at=call.started_at))

    patch.setattr(Execution, "_finish", finished)


def ticks_are_no_events(patch: Patch) -> None:
    def tick(self: Execution) -> None:
        now = max(self._effects.now(), self.loop.now)
        if self.loop.first_due(now) is not None:
            self.loop.now = now
            self.loop.fire_due(now)
            self.loop.drain()
        self._settle()

    patch.setattr(Execution, "tick", tick)


def derive_ticks_from_timestamps(patch: Patch) -> None:
    replay = Execution._replay

    def derived(self: Execution, event: Step) -> None:
        assert event.finished_at is not None
        while (due := self.loop.next_due()) is not None and due <= event.finished_at:
            self.loop.now = max(self.loop.now, due)
            self.loop.fire_due(self.loop.now)
            self.loop.drain()
        if event.kind is not StepKind.SLEEP:
            replay(self, event)

    patch.setattr(Execution, "_replay", derived)


def a_tick_fires_one_timer(patch: Patch) -> None:
    """Live, all timers that are due fire; on replay only the one that gave the tick its name."""
    replay = Execution._replay

    def one(self: Execution, event: Step) -> None:
        if event.kind is StepKind.SLEEP:
            later = [timer for timer in self.loop.timers if timer.step_id != event.step_id]
            self.loop.timers = [timer for timer in self.loop.timers if timer.step_id == event.step_id]
            self.loop.timers, fired = [], self.loop.timers
            self.loop.now = event.finished_at or 0
            self._journal.seq += 1
            self.loop._ready.extend(fired)
            self.loop.timers = sorted(later)
            self.loop.drain()
        else:
            replay(self, event)

    patch.setattr(Execution, "_replay", one)


def a_tick_with_nothing_due_is_recorded(patch: Patch) -> None:
    tick = Execution.tick

    def always(self: Execution) -> None:
        if self.loop.next_due() is not None and self.loop.first_due(self._effects.passed()) is None:
            now = self._journal.next_event()
            self._journal.submit(
                CompleteStep(
                    step_id=f"@idle{self._journal.seq}",
                    kind=StepKind.SLEEP,
                    completed_seq=self._journal.seq + 1,
                    started_at=now,
                    finished_at=now,
                )
            )
        tick(self)

    patch.setattr(Execution, "tick", always)


def time_of_the_worker(patch: Patch) -> None:
    patch.setattr(WorkflowLoop, "time", lambda self: self.execution._effects.now() / SECOND)


def start_time_of_the_worker(patch: Patch) -> None:
    create = Execution.__init__

    def now(self: Execution, effects: Any, run: Claim, **kwargs: Any) -> None:
        create(self, effects, replace(run, started_at=effects.now()), **kwargs)

    patch.setattr(Execution, "__init__", now)


def replay_starts_bodies(patch: Patch) -> None:
    replay, request, resume = Execution._replay, StepCall.request, Steps.resume

    def eager(self: Execution, event: Step) -> None:
        replay(self, event)
        self.steps.start_due()

    def requested(self: StepCall, execution: Execution) -> None:
        request(self, execution)
        if not execution.steps.live and self.awaited:
            execution.steps.resume(self)

    def once(self: Steps, call: StepCall) -> None:
        if not call.running and call not in self.wanted:
            resume(self, call)

    patch.setattr(Execution, "_replay", eager)
    patch.setattr(StepCall, "request", requested)
    patch.setattr(Steps, "resume", once)


def late_results_are_recorded(patch: Patch) -> None:
    step_returned = Execution.step_returned

    def returned(self: Execution, call: StepCall, value: Any) -> None:
        if not call.awaited and not self.loop.evicting:
            now = self._journal.next_event()
            self._journal.submit(
                CompleteStep(
                    step_id=call.step_id,
                    attempt=call.attempt,
                    completed_seq=self._journal.seq,
                    started_at=call.started_at,
                    finished_at=now,
                    input_hash=call.input_hash,
                    output=b"0",
                )
            )
        step_returned(self, call, value)

    patch.setattr(Execution, "step_returned", returned)


def cancelled_bodies_are_not_told(patch: Patch) -> None:
    """The workflow goes on, and the body keeps its place until it ends by itself."""

    def cancel(self: Steps, call: StepCall) -> None:
        if call.running:
            self.running -= 1
            call.running = False

    patch.setattr(Steps, "cancel", cancel)


def cancelled_bodies_are_not_waited_for(patch: Patch) -> None:
    start_due = Steps.start_due

    def impatient(self: Steps) -> None:
        ending, self.ending = self.ending, 0
        start_due(self)
        self.ending = ending

    patch.setattr(Steps, "start_due", impatient)


def values_are_not_rebuilt(patch: Patch) -> None:
    step_returned = Execution.step_returned

    def returned(self: Execution, call: StepCall, value: Any) -> None:
        patch.setattr(JsonCodec, "decode_result", lambda _self, _data: value)
        try:
            step_returned(self, call, value)
        finally:
            patch.setattr(JsonCodec, "decode_result", decode_result)

    decode_result = JsonCodec.decode_result
    patch.setattr(Execution, "step_returned", returned)


def errors_are_not_rebuilt(patch: Patch) -> None:
    step_raised, exception_of = Execution.step_raised, steps.exception_of

    def raised(self: Execution, call: StepCall, error: BaseException) -> None:
        patch.setattr(steps, "exception_of", lambda _failure: error)
        try:
            step_raised(self, call, error)
        finally:
            patch.setattr(steps, "exception_of", exception_of)

    patch.setattr(Execution, "step_raised", raised)


def tasks_are_hashed_by_chance(patch: Patch) -> None:
    chance = random.Random(1)
    create = WorkflowTask.__init__

    def shuffled(self: WorkflowTask, coro: Any, loop: Any, scope: Any, number: int, context: Any) -> None:
        create(self, coro, loop, scope, chance.randrange(1 << 40), context)

    patch.setattr(WorkflowTask, "__init__", shuffled)


def tasks_are_named_by_a_counter_of_the_process(patch: Patch) -> None:
    numbers = itertools.count()
    create_task = WorkflowLoop.create_task

    def counted(self: WorkflowLoop, coro: Any, **options: Any) -> WorkflowTask:
        return create_task(self, coro, **{**options, "name": f"Task-{next(numbers)}"})

    patch.setattr(WorkflowLoop, "create_task", counted)
    patch.setattr(WorkflowTask, "set_name", asyncio.Task.set_name)


def retry_before_the_failure_is_durable(patch: Patch) -> None:
    retry = Steps.retry

    def at_once(self: Steps, call: StepCall) -> None:
        call.gate = 0
        retry(self, call)

    patch.setattr(Steps, "retry", at_once)


def failed_attempts_are_forgotten(patch: Patch) -> None:
    create = Execution.__init__

    def forgetful(self: Execution, *args: Any, **kwargs: Any) -> None:
        create(self, *args, **kwargs)
        self._recorded.attempts.clear()

    patch.setattr(Execution, "__init__", forgetful)


def evict_without_a_flag(patch: Patch) -> None:
    class Unflagged(WorkflowLoop):
        @property
        def evicting(self) -> bool:  # type: ignore[override]
            return False

        @evicting.setter
        def evicting(self, _value: bool) -> None:
            pass

    patch.setattr(kernel, "WorkflowLoop", Unflagged)


# 13


def cancellations_are_not_recorded(patch: Patch) -> None:
    patch.setattr(
        Execution, "_deliver_cancel", lambda self: self._main.done() or self._tell_cancelled() or self.loop.drain()
    )


def cancellations_are_delivered_again(patch: Patch) -> None:
    deliver = Execution._deliver_cancel

    def again(self: Execution) -> None:
        self.cancelled = False
        deliver(self)

    patch.setattr(Execution, "_deliver_cancel", again)


def cancellations_are_replayed_last(patch: Patch) -> None:
    begin = Execution.begin

    def last(self: Execution, *args: Any, **kwargs: Any) -> None:
        events = self._recorded.events
        for event in [event for event in events if event.kind is StepKind.CANCEL]:
            events.remove(event)
            events.append(event)
        begin(self, *args, **kwargs)

    patch.setattr(Execution, "begin", last)


def what_was_said_behind_the_last_event_is_not_said_again(patch: Patch) -> None:
    say = Execution.set_value

    def once(self: Execution, name: str, value: bytes) -> None:
        if not self.replaying:
            say(self, name, value)

    patch.setattr(Execution, "set_value", once)


def gates_count_values(patch: Patch) -> None:
    say = Execution.set_value

    def counted(self: Execution, name: str, value: bytes) -> None:
        self._journal.submitted += 1
        say(self, name, value)

    patch.setattr(Execution, "set_value", counted)


# 16


def children_are_named_by_chance(patch: Patch) -> None:
    chance = random.Random(1)
    patch.setattr(family, "derived_run_id", lambda *_: f"child-{chance.random()}")


def children_are_spawned_again(patch: Patch) -> None:
    spawn = Children.spawn

    def again(self: Children, wait: ChildWait, now: int, seal: Any) -> None:
        self._recorded = {}
        spawn(self, wait, now, seal)

    patch.setattr(Children, "spawn", again)


def outcomes_are_not_recorded(patch: Patch) -> None:
    submit = Journal.submit
    patch.setattr(
        Journal, "submit", lambda self, operation: isinstance(operation, TakeOutcome) or submit(self, operation)
    )


def outcomes_keep_the_time_of_the_childs_end(patch: Patch) -> None:
    take, submit = Children.take, Journal.submit

    def early(self: Children, row: Step) -> Step:
        patch.setattr(
            Journal, "submit", lambda *given: submit(given[0], replace(given[1], finished_at=row.finished_at))
        )
        event = take(self, row)
        patch.setattr(Journal, "submit", submit)
        return event

    patch.setattr(Children, "take", early)


def several_outcomes_are_one_drain(patch: Patch) -> None:
    take_outcome, drain = Execution._take_outcome, WorkflowLoop.drain

    def together(self: Execution, row: Step) -> None:
        patch.setattr(WorkflowLoop, "drain", lambda _: None)
        take_outcome(self, row)
        patch.setattr(WorkflowLoop, "drain", drain)
        if (other := self.children.next()) is not None:
            together(self, other)
        else:
            drain(self.loop)

    patch.setattr(Execution, "_take_outcome", together)


FAMILY_MUTANTS: list[Callable[[Patch], None]] = [
    children_are_named_by_chance,
    children_are_spawned_again,
    outcomes_are_not_recorded,
    outcomes_keep_the_time_of_the_childs_end,
    several_outcomes_are_one_drain,
]
CANCEL_MUTANTS: list[Callable[[Patch], None]] = [
    cancellations_are_not_recorded,
    cancellations_are_delivered_again,
    cancellations_are_replayed_last,
]
MUTANTS: list[Callable[[Patch], None]] = [
    two_events_in_one_drain,
    number_after_the_workflow_went_on,
    number_when_the_body_returns,
    commit_in_any_order,
    start_bodies_at_once,
    wait_for_the_newest_acknowledgement_only,
    end_before_the_last_events,
    record_after_the_end,
    ticks_are_no_events,
    derive_ticks_from_timestamps,
    a_tick_fires_one_timer,
    a_tick_with_nothing_due_is_recorded,
    time_of_the_worker,
    start_time_of_the_worker,
    replay_starts_bodies,
    late_results_are_recorded,
    cancelled_bodies_are_not_told,
    cancelled_bodies_are_not_waited_for,
    values_are_not_rebuilt,
    errors_are_not_rebuilt,
    tasks_are_hashed_by_chance,
    tasks_are_named_by_a_counter_of_the_process,
    retry_before_the_failure_is_durable,
    failed_attempts_are_forgotten,
    evict_without_a_flag,
    what_was_said_behind_the_last_event_is_not_said_again,
    gates_count_values,
]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logger = logging.getLogger("kagzi.workflow")
    logger.disabled = True
    previous, sys.unraisablehook = sys.unraisablehook, lambda _: None
    yield
    gc.collect()  # what a broken kernel leaves behind must not trouble other tests
    sys.unraisablehook = previous
    logger.disabled = False


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_broken_rule_is_noticed(mutant: Callable[[Patch], None], monkeypatch: Patch) -> None:
    mutant(monkeypatch)
    for seed in VOLUME:
        try:
            checks.check_seed(seed, lives=1)
        except Exception:
            return
    pytest.fail("nothing was noticed")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mutant", CANCEL_MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_broken_rule_of_cancelling_is_noticed(mutant: Callable[[Patch], None], monkeypatch: Patch) -> None:
    mutant(monkeypatch)
    for seed in VOLUME:
        try:
            checks.check_cancelled(seed, lives=2)
        except Exception:
            return
    pytest.fail("nothing was noticed")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mutant", FAMILY_MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_broken_rule_of_children_is_noticed(mutant: Callable[[Patch], None], monkeypatch: Patch) -> None:
    mutant(monkeypatch)
    for seed in VOLUME:
        try:
            checks.check_family(seed)
        except Exception:
            return
    pytest.fail("nothing was noticed")
