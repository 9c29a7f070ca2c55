"""One run being driven: the rules of replay and of the checkpoint pipeline, without any I/O.

The host (a worker, a test, a simulation) tells an `Execution` what happened, one event at a time, and the execution
tells the host what to do through `Effects`. The rules, each of which breaks some program when it is left out:

1.  One inbox: events are delivered one at a time, and the workflow's loop is drained between them.
2.  An event is numbered when it is delivered, and its operation submitted in the same breath. An event whose target
    is done already gets no number.
3.  Operations of a run are submitted in order and become durable in order (the host keeps at most one chunk in flight).
4.  A body starts only when every operation submitted before its request is durable.
5.  The end of the run is submitted last, and nothing after it.
6.  A tick is an event: it is recorded with its time and fires every timer due by then, in the order of due time, then
    creation. A tick with nothing due is not recorded. Two times are known of it, and the engine's lies between: events
    are stamped with the later one, timers fire by the earlier one, so that none fires before its time. If that makes a
    difference it is recorded, too. Somebody may wake the run: then one tick fires what is due by the moment until which
    it slept, recorded in the same way, with a difference below zero.
7.  The workflow's time is that of the last event delivered, and at first the recorded start of the run. But it begins
    somewhat after that, and so do timers it sets at first; how much later is recorded if there are any.
8.  Replay starts no bodies. When the last recorded event is delivered, the steps still wanted are started.
9.  Cancelling a step needs no record: it follows from its cause. The late result is dropped.
10. After a cancellation new bodies wait until the cancelled ones have ended: a refund must not run beside the charge.
11. What a workflow sees is always rebuilt from the record: decode(encode(value)), or the exception made from its data.
12. A failed attempt is durable before the next one starts (rule 4 covers it: the attempt is an operation).
13. That somebody asked for the run to be cancelled is an event like any other: it is delivered once, recorded, and
    cancels the task of the workflow function. What follows from that, cleaning up included, needs no record of its own.
    One that came when the function had returned, and its end was not stored, is recorded as late: the next execution
    delivers it in the turn of the event before it, so that the function hears of it where it waited last.
14. A signal is an event when a wait takes it, and taken in the same breath as it is recorded. Signals and due timers
    are delivered in the order in which they came about, a signal first if both did at once: a run that no worker has
    driven for a weekend decides its timeouts as if one had.
15. What a run says about itself (`set_value`) is no event, and nothing waits for it. It becomes durable with or after
    the events before it; so what was said before the last recorded event is stored, and what was said since is said
    again on replay. A run whose events were cut off by a retry says all of it again.
16. Starting a child is no event: its id follows from the run, the step and the time of the last event, so it is the
    same child whenever it is started. It is submitted in order. Its outcome is an event when the workflow gets it,
    delivered among signals and timers by when the child ended.
17. A switch of the code (`patched`) is on where nobody has been before. That is recorded in order and without a number,
    once for each place: it is on there from then on. Where code has been before and nothing is recorded it is off, also
    behind the last recorded event, where a body may have begun.
18. A workflow function may begin anew (`continue_as_new`): an end like any other, and nothing from before it is
    replayed. Each incarnation has its own time zero, chance and children.

Workflow code may be changed under a live run. A recorded step that is no longer called is passed over; one that is
called later than recorded gets its result when it is called; a new step simply runs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Iterable
from contextvars import Context, copy_context
from random import Random
from typing import Any, Final
from zlib import crc32

from msgspec.structs import replace

from kagzi.api.operations import CompleteStep, TakeSignal
from kagzi.api.workers import Claim
from kagzi.core.failure import Redact
from kagzi.core.instant import NEVER, SECOND, Instant, Span
from kagzi.core.lineage import Lineage, lineage_of
from kagzi.core.retry import Retry
from kagzi.core.run_value import PROGRESS
from kagzi.core.signal import Signal
from kagzi.core.step import BEGIN, CANCEL, LATE, Step, StepKind, StepStatus, step_name
from kagzi.core.wake import THEN_DEFAULT, WAKE, Woken
from kagzi.errors import NonDeterminismError, PayloadTooLarge, Unavailable
from kagzi.sdk.replay import outcome, wait_for
from kagzi.sdk.replay.children import Children
from kagzi.sdk.replay.continuing import ContinueAsNew, caught, is_asked
from kagzi.sdk.replay.effects import Effects
from kagzi.sdk.replay.inbox import SignalInbox
from kagzi.sdk.replay.journal import Journal
from kagzi.sdk.replay.loop import WorkflowLoop
from kagzi.sdk.replay.outcome import Outcome
from kagzi.sdk.replay.recorded import Recorded
from kagzi.sdk.replay.steps import Steps
from kagzi.sdk.replay.tasks import Timer, WorkflowTask
from kagzi.sdk.replay.waits import SignalWait, StepCall, Wait

logger = logging.getLogger("kagzi.workflow")

# Of many callbacks in a row: far longer than a turn takes that begins a hundred thousand steps.
_LONGEST_TURN: Final[Span] = 20 * SECOND

wait_for.unify()


class Execution:
    # Slots, because an execution is made for each run and asked for these at every event: for a default of the class
    # all bases would be looked through first, every time.
    __slots__ = (
        "__weakref__",
        "_children",
        "_effects",
        "_encode_result",
        "_inbox",
        "_journal",
        "_main",
        "_on_old_ground",
        "_recorded",
        "_strict",
        "_unread",
        "_waiting",
        "app",
        "cancel_recorded",
        "cancelled",
        "continuing",
        "default_retry",
        "loop",
        "may_await_news",
        "outcome",
        "payload_limit",
        "random",
        "redact",
        "replaying",
        "run",
        "seed",
        "steps",
        "value_names",
    )

    def __init__(
        self,
        effects: Effects,
        run: Claim,
        *,
        history: Iterable[Step],
        default_retry: Retry,
        payload_limit: int,
        strict: bool = False,
        redact: Redact | None = None,
    ) -> None:
        """`history` is that of the claim, with what a codec has sealed made readable."""
        self.run = run
        self._effects = effects
        self.default_retry = default_retry
        self.payload_limit = payload_limit
        self._strict = strict
        self.redact = redact
        # Of chance and of hashes: that of the run whose history this one repeats; each incarnation has another.
        seed = run.origin_run_id or run.run_id
        self.seed = seed = f"{seed}/{run.incarnation}" if run.incarnation else seed
        # Salted and spread, so that tasks of different runs do not collide in asyncio's process-wide set.
        self.loop = loop = WorkflowLoop(self, salt=crc32(seed.encode()) << 24, now=run.started_at)  # type: ignore[abstract]
        self._recorded = recorded = Recorded(history)
        self._journal = journal = Journal(effects, loop, recorded.ticks)
        self.steps = Steps(effects, loop, journal, recorded.attempts, payload_limit, redact, run)
        self._waiting: dict[str, Wait] = {}  # called and not ended, in order of the calls
        self.outcome: Outcome | None = None
        self.cancelled = False  # the workflow has been told to end
        self.cancel_recorded = False  # that it was told, or will be when this is replayed
        self.may_await_news = False  # something from outside may be what the workflow waits for
        self._unread = False  # signals may have come before the outcomes that are here: they are read first
        # Made on first use: most executions have no need of them.
        self.random: Random | None = None  # by the context
        self._inbox: SignalInbox | None = None
        self._children: Children | None = None
        self.value_names: set[str] | None = None  # that the workflow has set so far
        self.continuing: ContinueAsNew | None = None  # the workflow function is to begin anew
        self.app: object = None  # of the workflow, whose steps and children are of the same one
        self._main: WorkflowTask | None = None
        self._encode_result: Callable[[Any], bytes] | None = None
        # Whether an execution of the run has surely or perhaps been where the code is now, for switches.
        self._on_old_ground = visited = run.executions - run.executions_before > 1
        # For logs: whether workflow code now does what it has done before. The code behind an event ran before the
        # event was durable, so that behind the last recorded one is old as well; the code before the first event is new
        # in the first execution of a run, and old later. But after a crash it is said again: perhaps nobody got as far.
        self.replaying = visited and not run.crashes
        if recorded.events:
            self._on_old_ground = self.replaying = True
            self.cancel_recorded = recorded.tells_cancelled()

    # What the host calls. Each call is one event; afterwards the host looks at `outcome` and `idle`.

    def begin(
        self,
        coroutine: Coroutine[Any, Any, Any],
        encode_result: Callable[[Any], bytes],
        context: Context | None = None,
        *,
        cancel: bool = False,
        woken: Woken | None = None,
        signals: Iterable[Signal] = (),
        unread: bool = False,
    ) -> None:
        """Starts the workflow function, replays what is recorded, then goes live: with a cancellation, if it has not
        been told of that before, or woken, if nothing has been recorded since. `signals` have arrived and were not
        taken. `unread`: there may be others, which are read next if the workflow waits for some. Outcomes of children
        that are here already wait for them: to take one fires the timers before it, and the wait for a signal that came
        in time must not time out by that."""
        self._encode_result = encode_result
        self._main = self.loop.start(coroutine, context or copy_context())
        events = self._recorded.events
        self.steps.live = not events
        if not events:
            self._set_off()
        else:
            with self.loop:
                self._set_off_again()
                while events and not self._main.done():
                    self._replay(events.popleft())
        if self.outcome is not None:
            return  # it spins
        self.replaying = self._on_old_ground = False
        if not self.steps.live:
            self._go_live()
        if cancel:
            self._deliver_cancel()
        elif woken is not None and woken.seq == self._journal.seq:
            self._wake(woken.until)
        if signals:
            self.inbox.receive(signals)
        self._unread = unread and self._inbox is not None and bool(self._inbox.unserved_names())
        self._settle()

    def _go_live(self) -> None:
        """Lets bodies start, now that all that is recorded was delivered."""
        self.steps.live = True
        if self._recorded.early:
            self._recorded.suspects = list(self._recorded.replaced(self._waiting))
        if self._children is not None:
            self._children.go_live()  # first: bodies wait until these exist
        for wait in self._waiting.values():
            wait.go_live(self)

    def _set_off(self) -> None:
        """Runs the workflow function until it waits for the first time."""
        loop = self.loop
        zero, now = loop.now, self._effects.now()
        late = loop.late = now - zero if now > zero else 0
        loop.drain()
        loop.late = 0
        if loop.timers and self._main is not None and not self._main.done():
            # Only now, when bodies have been asked for: none of them has to wait until this is durable.
            self._journal.next_event(zero + late)
            self._journal.submit_unhurried(self._journal.marked(BEGIN, StepKind.SIGNAL, zero))

    def _set_off_again(self) -> None:
        """Runs the workflow function until it waits for the first time, on replay: as late as it was then."""
        zero, began = self.loop.now, self._recorded.take_begin()
        if began is None:
            self._drain()
            return
        late = self.loop.late = (began.finished_at or zero) - zero
        self._drain()
        self.loop.late = 0
        self._journal.next_event(zero + late)

    def cancel(self) -> None:
        """Tells the workflow that the run is to end: its function gets a CancelledError where it waits."""
        if not self.loop.evicting:
            self._deliver_cancel()
            self._settle()

    def step_returned(self, call: StepCall, value: Any) -> None:
        """Records the value that a body returned; the workflow sees what the record says."""
        if self.loop.evicting:
            return
        if self.steps.end(call):
            if self.steps.record_result(call, value):
                self._waiting.pop(call.step_id, None)
                self.loop.drain()
            self._settle()
        else:
            self._dropped(call)

    def step_raised(self, call: StepCall, error: BaseException) -> None:
        """Takes the error that a body raised: it is tried again later, or the failure is recorded for good."""
        if self.loop.evicting:
            return
        if not self.steps.end(call):
            self._dropped(call)
            return
        if self.steps.record_error(call, error):
            self._waiting.pop(call.step_id, None)
            self.loop.drain()
        self._settle()

    def body_ended(self, call: StepCall) -> None:
        """Notes that a cancelled body has come to its end, or that its grace time is over."""
        if call.running and not self.loop.evicting:
            call.running = False
            self.steps.ending -= 1
            self._dropped(call)

    def tick(self) -> None:
        """Fires timers that are due, and starts attempts whose time has come."""
        if self.loop.evicting:
            return
        passed = self._effects.passed()
        if (timer := self.loop.first_due(passed)) is not None:
            self._fire(timer, passed)
        self._settle()

    def receive(self, signals: Iterable[Signal], outcomes: Iterable[Step] = ()) -> None:
        """Takes in signals and outcomes of children that have arrived and were not taken yet, signals in their order.
        Those that came before are passed over."""
        if not self.loop.evicting:
            self._unread = False
            self.inbox.receive(signals)
            if self._children is not None:
                self._children.receive(outcomes)
            self._settle()

    def durable(self, operations: int, *, start: bool = True) -> None:
        """Notes that this many more operations are durable. Only starts bodies, unless they are to wait for the next
        event; the workflow does not notice."""
        self._journal.durable += operations
        if start:
            self.steps.start_due()
            if self.steps.exhausted:
                self._settle()

    def show(self, call: StepCall) -> None:
        """Makes a body visible that has been running for a while."""
        self.steps.show(call)

    @property
    def inbox(self) -> SignalInbox:
        """What the workflow waits for from outside. Most workflows have no use for it."""
        if self._inbox is None:
            self._inbox = SignalInbox()
            self.may_await_news = True
        return self._inbox

    @property
    def children(self) -> Children:
        """The runs that this one has spawned. Most have none."""
        if self._children is None:
            children = Children(self._journal, self._recorded.children, self._family_id(), self.run.depth)
            children.live = self.steps.live
            self._children = children
            self.may_await_news = True
        return self._children

    def _family_id(self) -> tuple[str, ...]:
        """Returns what the ids of children are made of: a run that is tried again, or begins anew, has others."""
        attempts, incarnation = self.run.attempts, self.run.incarnation
        return (self.run_id, f"{attempts}/{incarnation}" if incarnation else str(attempts))

    @property
    def lineage(self) -> Lineage:
        """For whom its payloads are sealed, for a codec."""
        return lineage_of(self.run)

    @property
    def _repeats(self) -> bool:
        """Whether the history that it continues is that of another run."""
        return self.run.origin_run_id not in (None, self.run.run_id)

    @property
    def has_spawned(self) -> bool:
        return self._children is not None and self._children.spawned

    @property
    def awaits_children(self) -> bool:
        return self._children is not None and bool(self._children.awaited)

    def waiting_for(self, due: Instant | None = None) -> tuple[str, ...]:
        """Returns what may wake the run beside time, which does at `due`, as `ParkRun` says it."""
        signals = () if self._inbox is None else self._inbox.waiting_for()
        if due is not None and self._inbox is not None and self._inbox.gives_default(due):
            signals = (*signals, THEN_DEFAULT)
        return signals if self._children is None else self._children.waiting_for() + signals

    @property
    def events(self) -> int:
        """How many have happened so far, those that were recorded before and replayed among them."""
        return self._journal.seq

    @property
    def idle(self) -> bool:
        """Whether nothing can happen until a timer or a retry is due, so that the run may be parked."""
        steps = self.steps
        return (
            steps.running == 0
            and steps.ending == 0
            and not steps.wanted
            and self.outcome is None
            and not self.loop.evicting
        )

    @property
    def busy(self) -> bool:
        """Whether bodies are running, cancelled ones included."""
        return self.steps.running > 0 or self.steps.ending > 0

    def next_due(self) -> Instant | None:
        due = self.loop.next_due()
        retry = self.steps.next_retry() if self.steps.retrying else None
        return retry if due is None or (retry is not None and retry < due) else due

    def evict(self) -> None:
        """Lets go of the run in memory. Nothing is recorded."""
        if self.loop.evicting:
            return
        if self._recorded.suspects:
            self._tell_replaced()
        self.loop.evict()
        # Break the cycles, so that a run goes when it is let go of and leaves nothing to the garbage collector.
        self.loop.release()
        self._main = None
        self._encode_result = None
        self._waiting.clear()
        self.steps.clear()
        self._recorded.events.clear()

    @property
    def run_id(self) -> str:
        return self.run.run_id

    @property
    def workflow(self) -> str:
        return self.run.workflow_type

    @property
    def queue(self) -> str:
        return self.run.task_queue

    def describe(self) -> str:
        return f"{self.workflow} ({self.run_id})"

    def about(self) -> dict[str, object]:
        """Which run this is, for lines of the log."""
        return {"namespace": self.run.namespace, "run_id": self.run_id, "workflow": self.workflow}

    # What the loop calls.

    def turn_goes_on(self, began: Instant | None, must_end: bool) -> Instant:
        """Looks at a turn in which many callbacks have run without the workflow waiting for anything. Fails the run if
        they never end; returns when they began."""
        now = self._effects.now()
        if began is None:
            return now
        if must_end or now - began > _LONGEST_TURN:
            error = NonDeterminismError(
                f"workflow {self.describe()} spins at {self.loop.spinner()}: it goes on for ever without waiting for a "
                f"step or a sleep. `await asyncio.sleep(0)` lets nothing happen meanwhile; wait for what the loop is "
                f"about, with asyncio.Event for example, or sleep for a while"
            )
            self.steps.record_all_cancelled()
            self.outcome = outcome.failed(error, self._journal.keep_seq(), self.redact)
            self._let_go()
        return began

    # What calls of workflow code come to (`calls.py`).

    def request(self, wait: Wait) -> None:
        """Notes that the workflow waits for something from now on."""
        if self.loop.evicting:
            return
        self._waiting[wait.step_id] = wait
        recorded = self._recorded
        early = recorded.early.pop(wait.step_id, None) if recorded.early else None
        if early is None:
            wait.request(self)
        else:
            self._see(wait, early)

    def withdraw(self, wait: Wait) -> None:
        """Notes that the workflow does not wait for it any more."""
        self._waiting.pop(wait.step_id, None)
        wait.withdraw(self)

    def set_value(self, name: str, value: bytes) -> None:
        """Sets a value of the run. It is no event, and no gate counts it.

        While recorded events are to come, what is said has been stored: with the events that followed it. A run that
        continues the history of another one has none of its values, and says all of it again. So does a run that is
        tried again: an attempt before may have said more, behind events that are set aside. But not its progress,
        which a recorded step may have told since.
        """
        if self.loop.evicting:
            return
        if not self._recorded.events or self._repeats or (self.run.attempts and name != PROGRESS):
            self._effects.set_value(name, value)

    def patched(self, step_id: str) -> bool:
        """Returns whether a switch of the code is on at this call of it."""
        recorded = self._recorded
        if recorded.has_patch(step_id):
            return True
        if self._on_old_ground:
            return False
        recorded.note_patch(step_id)
        now = self.loop.now
        self._journal.submit(CompleteStep(step_id=step_id, kind=StepKind.SIGNAL, started_at=now, finished_at=now))
        return True

    def told_another_child(self, wait: Wait) -> bool:
        """Whether this call told something, as it is recorded, to a child of the run that this one repeats."""
        return isinstance(wait, StepCall) and wait.child is not None and self._repeats

    # Inside.

    def _replay(self, event: Step) -> None:
        assert event.completed_seq is not None
        assert event.finished_at is not None
        self._journal.seq = event.completed_seq
        self.loop.now = event.finished_at
        if event.kind is StepKind.SLEEP:
            self.loop.fire_due(event.finished_at - int(event.output or 0))
        elif event.kind is StepKind.CANCEL:
            self._tell_cancelled()
        elif (wait := self._waiting.get(event.step_id)) is not None:
            self._see(wait, event)
        else:
            self._recorded.keep_early(event, self._waiting)
            return
        self._drain()

    def _drain(self) -> None:
        """Lets the workflow go on after an event; if it was recorded that it was told too late, with that beside it."""
        recorded = self._recorded
        if recorded.events and (late := recorded.take_late_cancel()) is not None:
            assert late.completed_seq is not None
            assert late.finished_at is not None
            self._journal.seq = late.completed_seq
            self.loop.now = late.finished_at
            if not recorded.events:
                self.replaying = False  # what the code does about it, it has not done before
            self._tell_cancelled()
        self.loop.drain()

    def _tell_replaced(self) -> None:
        """Warns of recorded steps that the code has come past without calling them, while one without a record has run
        where they were expected. Only when the run is let go of: one that is new may have been put before them."""
        for step_id, instead in self._recorded.suspects:
            if step_id in self._recorded.early and self._waiting.keys().isdisjoint(instead):
                logger.warning(
                    "step %s of %s is recorded and was not called; %s, not recorded, ran instead. If it was renamed, "
                    "it has run a second time: keep the recorded name with name=%r",
                    step_id,
                    self.describe(),
                    ", ".join(instead),
                    step_name(step_id),
                    extra=self.about() | {"step_id": instead[0]},
                )

    def _see(self, wait: Wait, event: Step) -> None:
        """Gives a wait its recorded end."""
        del self._waiting[wait.step_id]
        if event.input_hash != wait.input_hash and event.input_hash and wait.input_hash:
            message = (
                f"step {wait.step_id} of {self.describe()} was recorded with other arguments than it is now called "
                f"with; workflow code must call a step with the same arguments on every replay"
            )
            if told_another := self.told_another_child(wait):
                message = (
                    f"{wait.step_id} of {self.describe()} has told a child of the run that this one repeats, and the "
                    f"child that was spawned in its place is not told again; give it what it needs as an argument"
                )
            if self._strict and not told_another:
                wait.fail(NonDeterminismError(message))
                return
            logger.warning(message, extra=self.about() | {"step_id": wait.step_id})
        if event.status is not StepStatus.COMPLETED:
            self._journal.note_failure(event.completed_seq or 0)
        wait.deliver(event, self)

    def _take_next(self) -> bool:
        """Delivers what has arrived and is waited for, the first that came about; before that, timers that were due
        before it came. Returns whether there was something."""
        signal = None if self._inbox is None else self._inbox.next()
        outcome = None if self._children is None else self._children.next()
        came_at = min(
            NEVER if signal is None else signal[1].sent_at,
            NEVER if outcome is None else outcome.finished_at or 0,
        )
        if signal is None and outcome is None:
            return False
        passed = min(self._effects.passed(), came_at - 1)
        if (timer := self.loop.first_due(passed)) is not None:
            self._fire(timer, passed)
        elif signal is not None and signal[1].sent_at == came_at:
            self._take(*signal)
        else:
            assert outcome is not None
            self._take_outcome(outcome)
        return True

    def _take_outcome(self, row: Step) -> None:
        self._journal.next_event()
        wait = self._waiting.pop(row.step_id)
        wait.deliver(self.children.take(row), self)
        self.loop.drain()

    def _take(self, wait: SignalWait, signal: Signal) -> None:
        now = self._journal.next_event()
        self.inbox.take(signal)
        taken = TakeSignal(
            step_id=wait.step_id,
            kind=StepKind.SIGNAL,
            completed_seq=self._journal.seq,
            started_at=wait.since,
            finished_at=now,
            output=signal.value,
            signal=signal.key,
        )
        self._journal.submit(taken)
        del self._waiting[wait.step_id]
        wait.deliver(taken, self)
        self.loop.drain()

    def _fire(self, timer: Timer, passed: Instant) -> None:
        """Fires the timers that are due by then, of which this is the first."""
        now = self._journal.next_event()
        self.loop.fire_due(passed)
        due = self.loop.next_due()
        early = now - passed if due is not None and due <= now else 0
        self._journal.submit(self._journal.marked(timer.step_id, StepKind.SLEEP, timer.created_at, early))
        self.loop.drain()

    def _wake(self, until: Instant) -> None:
        """Ends a sleep as somebody has asked: what is due by then is due now. A tick like any other, but that it is
        recorded also if it fires no timer, so that it counts once; it says how much too early it came."""
        assert self._main is not None
        if self._main.done():
            return
        passed = self._effects.passed()
        by = max(passed, until)
        timer = self.loop.first_due(by)
        now = self._journal.next_event()
        self.loop.fire_due(by)
        step_id, since = (WAKE, now) if timer is None else (timer.step_id, timer.created_at)
        self._journal.submit(self._journal.marked(step_id, StepKind.SLEEP, since, now - by))
        self.steps.hasten(by, passed)
        self.loop.drain()

    def _deliver_cancel(self) -> None:
        assert self._main is not None
        if not self.cancelled and not self._main.done():
            now = self._journal.next_event()
            self._journal.submit(self._journal.marked(CANCEL, StepKind.CANCEL, now))
            self.cancel_recorded = True
            self._tell_cancelled()
            self.loop.drain()

    def tell_late(self) -> None:
        """Records for the next execution that the workflow is told to end: its function has returned, and before that
        was stored somebody was promised that it will be told."""
        marked = self._journal.marked(CANCEL, StepKind.CANCEL, self._journal.next_event())
        self._journal.submit(replace(marked, output=LATE))
        self.cancel_recorded = True

    def _tell_cancelled(self) -> None:
        assert self._main is not None
        self.cancelled = True
        self._main.cancel()

    def _dropped(self, call: StepCall) -> None:
        """Notes that a body whose result is not wanted has ended."""
        if call.shown and self.outcome is None and not self.loop.evicting:
            self.steps.record_cancelled(call)
        self._settle()

    def _settle(self) -> None:
        """Looks, after every event, whether the workflow has ended and which bodies may start."""
        if self.loop.evicting:
            return
        main = self._main
        assert main is not None
        steps = self.steps
        while not main.done():
            if steps.exhausted:
                call, failure = steps.exhausted.pop(0)
                if call.awaited:
                    self._waiting.pop(call.step_id, None)
                    steps.record_failure(call, failure)
                    self.loop.drain()
            elif not self.may_await_news or self._unread or not self._take_next():
                steps.start_due()
                if not steps.exhausted:
                    return
        self._finish(main)

    def _finish(self, main: WorkflowTask) -> None:
        assert self._encode_result is not None
        if self.steps.running:
            for wait in self._waiting.values():
                if isinstance(wait, StepCall) and wait.running:
                    self.steps.note_begun(wait)
        if self.steps.shown:
            self.steps.record_all_cancelled()
        asked = self.continuing
        if asked is not None and not main.cancelled() and is_asked(main.exception()):
            try:
                self.loop.refuse_mistakes(self._waiting)
                self.outcome = outcome.begun_anew(main, asked.input, asked.version)
            except Exception as problem:
                self.outcome = outcome.failed(problem, self._journal.keep_seq(), self.redact)
        elif main.cancelled() or main.exception() is not None:
            self.outcome = outcome.unsuccessful(main, self._journal.keep_seq(), told=self.cancelled, redact=self.redact)
        else:
            try:
                self.loop.refuse_mistakes(self._waiting)
                if asked is not None:
                    raise caught(asked)
                output = self._encode_result(main.result())
                if len(output) > self.payload_limit:
                    raise PayloadTooLarge(
                        f"the result of {self.workflow} is {len(output):,} bytes; "
                        f"at most {self.payload_limit:,} are stored. Return a reference to large data"
                    )
                self.outcome = Outcome(output)
            except Unavailable:  # of what keeps large payloads: the run has not ended
                raise
            except Exception as problem:
                self.outcome = outcome.failed(problem, self._journal.keep_seq(), self.redact)
        self.loop.report_unseen_errors()
        self._let_go()

    def _let_go(self) -> None:
        if self._waiting:
            for wait in list(self._waiting.values()):
                wait.withdraw(self)
        self.evict()
