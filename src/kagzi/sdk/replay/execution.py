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
    difference it is recorded, too.
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

Workflow code may be changed under a live run. A recorded step that is no longer called is passed over; one that is
called later than recorded gets its result when it is called; a new step simply runs.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextvars import Context, copy_context
from heapq import heappop, heappush
from random import Random
from typing import Any, Protocol
from zlib import crc32

from msgspec import Struct
from msgspec.structs import replace

from kagzi.api.operations import CancelStep, CompleteStep, FailStep, Operation, StartStep, TakeSignal
from kagzi.core.duration import format_span
from kagzi.core.failure import Failure
from kagzi.core.instant import SECOND, Instant, Span
from kagzi.core.retry import Retry, next_attempt
from kagzi.core.signal import Signal
from kagzi.core.step import BEGIN, CANCEL, LATE, Step, StepKind, StepStatus, escape, step_name
from kagzi.errors import NonDeterminismError, NotSerializable, PayloadTooLarge
from kagzi.sdk.ambient import CallCodec
from kagzi.sdk.replay.inbox import SignalInbox, SignalWait
from kagzi.sdk.replay.loop import WorkflowLoop, WorkflowTask, place_of_call

logger = logging.getLogger("kagzi.workflow")

# Of many callbacks in a row: far longer than a turn takes that begins a hundred thousand steps.
_LONGEST_TURN: Span = 20 * SECOND


class Effects(Protocol):
    """What an execution can do to the world. All calls are made from the host's callbacks and return at once."""

    def submit(self, operation: Operation) -> None:
        """Hand over an operation. Operations become durable in this order; the host reports by `durable`."""
        ...

    def start_body(self, call: StepCall) -> None:
        """Run the body of a step; report by `step_returned` or `step_raised`."""
        ...

    def cancel_body(self, call: StepCall) -> None:
        """The body's result is no longer wanted: cancel it, and report its end by `body_ended`."""
        ...

    def submit_unhurried(self, operation: Operation) -> None:
        """The same, but it may wait until another one is handed over."""
        ...

    def now(self) -> Instant:
        """The engine's time, at the latest that it can be."""
        ...

    def passed(self) -> Instant:
        """The engine's time, at the earliest that it can be: what is due by then is surely due."""
        ...

    def jitter(self) -> float: ...


class StepCall(Struct, eq=False, kw_only=True):
    """A call of a step in a workflow: from the call to its recorded end."""

    step_id: str
    name: str
    fn: Callable[..., Any]
    codec: CallCodec
    policy: Retry
    timeout: Span | None
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    input: bytes
    input_hash: int  # 0 if the arguments were recorded by their repr: the body gets them as they are
    made: Any = None  # for `Unawaited`
    future: asyncio.Future[Any] | None = None
    attempt: int = 1
    gate: int = 0
    retry_at: Instant | None = None
    running: bool = False
    started_at: Instant = 0
    # The host's own notes about the body.
    body: Any = None
    shown: bool = False
    deadline: Instant | None = None
    body_timed_out: bool = False


class Outcome:
    """How a workflow function ended: with an output, with a failure, or with neither because it was cancelled."""

    __slots__ = ("failure", "keep_seq", "output")

    def __init__(self, output: bytes | None, failure: Failure | None = None, keep_seq: int = 0) -> None:
        self.output = output
        self.failure = failure
        self.keep_seq = keep_seq

    @property
    def cancelled(self) -> bool:
        return self.output is None and self.failure is None


class Execution:
    def __init__(
        self,
        effects: Effects,
        *,
        run_id: str,
        workflow: str,
        started_at: Instant,
        resumed: bool = False,
        history: Iterable[Step],
        default_retry: Retry,
        payload_limit: int,
        strict: bool = False,
        seed: str | None = None,
        namespace: str = "default",
        queue: str = "default",
    ) -> None:
        self.run_id = run_id
        self.queue = queue
        self.namespace = namespace
        self.seed = seed or run_id  # of chance and of hashes: that of the run whose history this one continues
        self.workflow = workflow
        self.outcome: Outcome | None = None
        self.cancelled = False  # the workflow has been told to end
        self.cancel_recorded = False  # that it was told, or will be when this is replayed
        self._live = False  # bodies may start
        self.random: Random | None = None  # made on first use, by the context
        self._effects = effects
        self._default_retry = default_retry
        self._payload_limit = payload_limit
        self._strict = strict
        # Salted and spread, so that tasks of different runs do not collide in asyncio's process-wide set.
        self.loop = WorkflowLoop(self, salt=crc32(self.seed.encode()) << 24, now=started_at)  # type: ignore[abstract]
        self._seq = 0
        self._first_final_failure: int | None = None
        self._submitted = 0
        self._durable = 0
        self._waiting: dict[str, StepCall] = {}  # requested and not ended, in order of request
        self._wanted: deque[StepCall] = deque()  # of those, the ones whose body is to be started
        self._retrying: list[tuple[Instant, int, StepCall]] = []  # a heap of those that wait for their next attempt
        self._retries = 0
        self._exhausted: deque[tuple[StepCall, Failure]] = deque()  # resumed with no attempt left
        self._running = 0
        self._ending = 0  # cancelled bodies that have not ended yet
        self._shown: dict[StepCall, None] = {}  # bodies that show as RUNNING
        self._inbox = SignalInbox()
        self._signal_waits: dict[str, SignalWait] = {}  # by step id
        self._main: WorkflowTask | None = None
        self._encode_result: Callable[[Any], bytes] | None = None
        self._events: deque[Step] = deque()
        self._early: dict[str, Step] = {}  # recorded events whose step the code has not called yet
        self._beside: dict[str, tuple[str, ...]] = {}  # which steps it had called instead by then
        self._attempts: dict[str, Step] = {}  # the last failed attempt of steps that are to be tried again
        self._ticks: dict[str, int] = {}  # recorded ticks and cancellations, with their attempt
        for step in history:
            if step.completed_seq is not None:
                self._events.append(step)
                if step.kind is StepKind.SLEEP or step.kind is StepKind.CANCEL or step.step_id == BEGIN:
                    self._ticks[step.step_id] = max(step.attempt, self._ticks.get(step.step_id, 0))
                    if step.kind is StepKind.CANCEL:
                        self.cancel_recorded = True
            elif step.status is StepStatus.FAILED:
                last = self._attempts.get(step.step_id)
                if last is None or last.attempt < step.attempt:
                    self._attempts[step.step_id] = step
        # For logs: whether workflow code now does what it has done before. The code behind an event ran before the
        # event was durable, so that behind the last recorded one is old as well; the code before the first event is new
        # in the first execution of a run, and known by `resumed` to be old later.
        self.replaying = resumed or bool(self._events)

    # What the host calls. Each call is one event; afterwards the host looks at `outcome` and `idle`.

    def begin(
        self,
        coroutine: Coroutine[Any, Any, Any],
        encode_result: Callable[[Any], bytes],
        context: Context | None = None,
        *,
        cancel: bool = False,
    ) -> None:
        """Start the workflow function, replay what is recorded, then go live: with a cancellation, if it has not been
        told of that before."""
        self._encode_result = encode_result
        self._main = self.loop.start(coroutine, context or copy_context())
        with self.loop:
            self._set_off()
            while self._events and not self._main.done():
                self._replay(self._events.popleft())
        if self.outcome is not None:
            return  # it spins
        self.replaying = False
        self._live = True
        if self._early:
            self._tell_replaced()
        for call in self._waiting.values():
            self._resume(call)
        if cancel:
            self._deliver_cancel()
        self._settle()

    def _set_off(self) -> None:
        """Run the workflow function until it waits for the first time."""
        loop, zero, main = self.loop, self.loop.now, self._main
        assert main is not None
        first = self._events[0] if self._events else None
        noted = first is not None and first.step_id == BEGIN and first.kind is StepKind.SIGNAL
        if first is None:
            loop.late = max(0, self._effects.now() - zero)
        elif noted:
            self._events.popleft()
            loop.late = (first.finished_at or zero) - zero
        self._drain()
        late, loop.late = loop.late, 0
        if noted:
            self._next_event(zero + late)
        elif first is None and loop.next_due() is not None and not main.done():
            # Only now, when bodies have been asked for: none of them has to wait until this is durable.
            self._next_event(zero + late)
            self._submitted += 1
            self._effects.submit_unhurried(self._marked(BEGIN, StepKind.SIGNAL, zero))

    def cancel(self) -> None:
        """Somebody has asked for the run to end: the workflow function gets a CancelledError where it waits."""
        if not self.loop.evicting:
            self._deliver_cancel()
            self._settle()

    def step_returned(self, call: StepCall, value: Any) -> None:
        """A body returned. The value is recorded, and the workflow sees what the record says."""
        if self.loop.evicting:
            return
        if not self._ended(call):
            self._dropped(call)
            return
        try:
            output, result = call.codec.settle_result(value)
            if len(output) > self._payload_limit:
                raise PayloadTooLarge(
                    f"step {call.step_id} returned {len(output):,} bytes; at most {self._payload_limit:,} are stored. "
                    f"Keep large data elsewhere and return a reference to it"
                )
        except Exception as error:
            # The body has run and cannot be recorded; running it again would not help.
            if isinstance(error, NotSerializable) and call.name not in str(error):
                # An inline step is known to people by its own name, not by its function's.
                error = NotSerializable(f"step {call.step_id}: {error}")
            self._fail(call, Failure.from_exception(error))
            return
        now = self._next_event()
        self._submit(
            CompleteStep(
                step_id=call.step_id,
                attempt=call.attempt,
                completed_seq=self._seq,
                started_at=call.started_at,
                finished_at=now,
                input=call.input,
                input_hash=call.input_hash,
                output=output,
            )
        )
        self._resolve(call, result)

    def step_raised(self, call: StepCall, error: BaseException) -> None:
        """A body raised: try again later, or record the failure for good."""
        if self.loop.evicting:
            return
        if not self._ended(call):
            self._dropped(call)
            return
        failure = Failure.from_exception(error)
        delay = next_attempt(call.policy, error, call.attempt, self._effects.jitter())
        if delay is None:
            self._fail(call, failure)
            return
        self._tell_failed(call, failure, f"tried again in {format_span(delay)}")
        now = max(self._effects.now(), self.loop.now)
        call.retry_at = now + delay
        self._submit(
            FailStep(
                step_id=call.step_id,
                attempt=call.attempt,
                started_at=call.started_at,
                finished_at=now,
                retry_at=call.retry_at,
                input=call.input,
                input_hash=call.input_hash,
                error=failure.encode(),
            )
        )
        call.attempt += 1
        call.gate = self._submitted
        if call.input_hash:
            # Whatever the failed attempt did to its arguments is not seen by the next one, as after a crash.
            call.args, call.kwargs = call.codec.decode_input(call.input)
        self._retry(call)
        self._settle()

    def body_ended(self, call: StepCall) -> None:
        """A cancelled body has come to its end, or its grace time is over."""
        if call.running and not self.loop.evicting:
            call.running = False
            self._ending -= 1
            self._dropped(call)

    def tick(self) -> None:
        """Time has passed: fire timers that are due, start attempts whose time has come."""
        if self.loop.evicting:
            return
        passed = self._effects.passed()
        if self.loop.first_due(passed) is not None:
            self._fire(passed)
        self._settle()

    def receive(self, signals: Iterable[Signal]) -> None:
        """Signals have arrived that were not taken yet, in their order. Those that came before are passed over."""
        if not self.loop.evicting:
            self._inbox.receive(signals)
            self._settle()

    @property
    def awaits_signals(self) -> bool:
        return bool(self._signal_waits)

    def unserved_signals(self) -> tuple[str, ...]:
        """Returns the names of signals that the workflow waits for and that have not arrived here."""
        return self._inbox.unserved_names()

    def waiting_for(self) -> tuple[str, ...]:
        """Returns what may wake the run beside time, as `ParkRun` says it."""
        return self._inbox.waiting_for()

    def durable(self, operations: int, *, start: bool = True) -> None:
        """This many more operations are durable. Only starts bodies, unless they are to wait for the next event; the
        workflow does not notice."""
        self._durable += operations
        if start:
            self._pump()

    def show(self, call: StepCall) -> None:
        """A body has been running for a while: make it visible."""
        if self.loop.evicting or not call.running or not self._awaited(call):
            return
        call.shown = True
        self._shown[call] = None
        self._submit(
            StartStep(
                step_id=call.step_id,
                attempt=call.attempt,
                started_at=call.started_at,
                timeout_at=None if call.timeout is None else call.started_at + call.timeout,
                input=call.input,
                input_hash=call.input_hash,
            )
        )

    @property
    def events(self) -> int:
        """How many have happened so far, those that were recorded before and replayed among them."""
        return self._seq

    @property
    def idle(self) -> bool:
        """Nothing can happen until a timer or a retry is due: the run may be parked."""
        return (
            self.outcome is None
            and self._running == 0
            and self._ending == 0
            and not self._wanted
            and not self.loop.evicting
        )

    @property
    def busy(self) -> bool:
        """Bodies are running, cancelled ones included."""
        return self._running > 0 or self._ending > 0

    def next_due(self) -> Instant | None:
        due = self.loop.next_due()
        retrying = self._retrying
        while retrying and not self._awaited(retrying[0][2]):
            heappop(retrying)
        # While a cancelled body has not ended no attempt starts, so there is nothing to wake for.
        if retrying and not self._ending and (due is None or retrying[0][0] < due):
            due = retrying[0][0]
        return due

    def evict(self) -> None:
        """Let go of the run in memory. Nothing is recorded."""
        if self.loop.evicting:
            return
        self.loop.evict()
        # Break the cycles, so that a run goes when it is let go of and leaves nothing to the garbage collector.
        self.loop.release()
        self._main = None
        self._encode_result = None
        self._waiting.clear()
        self._wanted.clear()
        self._retrying.clear()
        self._exhausted.clear()
        self._events.clear()
        self._early.clear()
        self._beside.clear()
        self._shown.clear()
        self._running = self._ending = 0

    def describe(self) -> str:
        return f"{self.workflow} ({self.run_id})"

    def about(self) -> dict[str, object]:
        """Which run this is, for lines of the log."""
        return {"namespace": self.namespace, "run_id": self.run_id, "workflow": self.workflow}

    # What the loop calls.

    def turn_goes_on(self, began: Instant | None, must_end: bool) -> Instant:
        """Many callbacks have run without the workflow waiting for anything. Fails the run if they never end; returns
        when they began."""
        now = self._effects.now()
        if began is None:
            return now
        if must_end or now - began > _LONGEST_TURN:
            error = NonDeterminismError(
                f"workflow {self.describe()} spins at {self.loop.spinner()}: it goes on for ever without waiting for a "
                f"step or a sleep. `await asyncio.sleep(0)` lets nothing happen meanwhile; wait for what the loop is "
                f"about, with asyncio.Event for example, or sleep for a while"
            )
            for call in list(self._shown):
                self._submit_cancelled(call)
            self.outcome = Outcome(None, Failure.from_exception(error), self._keep_seq())
            self._let_go()
        return began

    # What workflow code calls, through Step.__call__ and the context.

    def call_step(
        self,
        *,
        name: str,
        fn: Callable[..., Any],
        codec: CallCodec,
        policy: Retry | None,
        timeout: Span | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Coroutine[Any, Any, Any]:
        """Fix the identity of a step now, in the scope of its caller; run it when the coroutine is awaited.

        `name` is escaped already.
        """
        if self.loop.evicting:
            self.loop.refuse()
        unawaited = self.loop.unawaited
        if unawaited.dropped:
            unawaited.refuse_dropped()
        # The body gets copies: it must not change the workflow's state behind its back. They are made on replay too:
        # arguments that cannot be read back raise here, every time.
        try:
            data, input_hash, args, kwargs = codec.settle_input(args, kwargs)
        except Exception:
            unawaited.excuse()
            raise
        call = StepCall(
            step_id=self.loop.current_scope().identity(name),
            name=name,
            fn=fn,
            codec=codec,
            policy=policy or self._default_retry,
            timeout=timeout,
            args=args,
            kwargs=kwargs,
            input=data,
            input_hash=input_hash,
        )
        return unawaited.add(self._await(call), call, name, sys._getframe(2))

    def call_inline(self, name: str, begin: Callable[..., Coroutine[Any, Any, Any]], *args: Any) -> Any:
        """Another workflow, whose coroutine `begin(*args)` makes, to be awaited as part of this run."""
        unawaited = self.loop.unawaited
        if unawaited.dropped:
            unawaited.refuse_dropped()
        return unawaited.watch(begin(*args), name, sys._getframe(2))

    async def _await(self, call: StepCall) -> Any:
        self.loop.unawaited.strike(call)
        future = call.future = self.loop.create_future()
        self._request(call)
        try:
            return await future
        except asyncio.CancelledError:
            if future.cancelled() and not self.loop.evicting:
                self._cancelled(call)
            raise
        finally:
            # The exception's traceback refers to this frame, and this frame to the call: break the cycle. What asyncio
            # makes of the traceback (`timeout` keeps its task, which keeps the error) must not keep the whole run.
            del self, future, call

    def wait_signal(self, name: str, decode: Callable[[bytes], Any]) -> Coroutine[Any, Any, Any]:
        """Waits for a signal of this name; its value is what `decode` makes of it."""
        if self.loop.evicting:
            self.loop.refuse()
        step_id = self.loop.current_scope().identity("@@" + escape(name))
        return self._await_signal(SignalWait(step_id=step_id, name=name, decode=decode, since=self.loop.now))

    async def _await_signal(self, wait: SignalWait) -> Any:
        future = wait.future = self.loop.create_future()
        self._request_signal(wait)
        try:
            return await future
        except asyncio.CancelledError:
            if future.cancelled() and not self.loop.evicting:
                self._signal_waits.pop(wait.step_id, None)
                self._inbox.remove_wait(wait)
            raise
        finally:
            del self, future, wait  # as in `_await`

    # Inside.

    def _request_signal(self, wait: SignalWait) -> None:
        if self.loop.evicting:
            return
        self._signal_waits[wait.step_id] = wait
        self._inbox.add_wait(wait)
        early = self._early.pop(wait.step_id, None) if self._early else None
        if early is not None:
            self._see_signal(wait, early.output or b"null")

    def _see_signal(self, wait: SignalWait, value: bytes) -> None:
        """Gives a wait its signal."""
        self._signal_waits.pop(wait.step_id, None)
        self._inbox.remove_wait(wait)
        future, wait.future = wait.future, None
        assert future is not None
        try:
            result = wait.decode(value)
        except Exception as error:
            future.set_exception(error)
        else:
            future.set_result(result)

    def _take(self, wait: SignalWait, signal: Signal) -> None:
        """Delivers a signal that has arrived; before that, timers that were due before it came."""
        passed = min(self._effects.passed(), signal.sent_at - 1)
        if self.loop.first_due(passed) is not None:
            self._fire(passed)
            return
        now = self._next_event()
        self._inbox.take(wait, signal)
        self._submit(
            TakeSignal(
                step_id=wait.step_id,
                kind=StepKind.SIGNAL,
                completed_seq=self._seq,
                started_at=wait.since,
                finished_at=now,
                output=signal.value,
                signal=signal.key,
            )
        )
        self._see_signal(wait, signal.value)
        self.loop.drain()

    def _request(self, call: StepCall) -> None:
        if self.loop.evicting:
            return
        call.gate = self._submitted
        self._waiting[call.step_id] = call
        early = self._early.pop(call.step_id, None) if self._early else None
        if early is not None:
            self._see(call, early)
        elif self._live:
            if self._attempts:
                self._resume(call)
            else:
                self._wanted.append(call)

    def _resume(self, call: StepCall) -> None:
        """Go live with a call: the next attempt, when its time has come."""
        last = self._attempts.pop(call.step_id, None)
        if last is None:
            self._wanted.append(call)
            return
        call.attempt = last.attempt + 1
        call.retry_at = last.retry_at
        failure = Failure.decode(last.error or b"")
        if last.retry_at is None or not _allows(call.policy, call.attempt):
            # An attempt ended by the coordinator, or by a policy since made stricter: nothing is left to try.
            delay = next_attempt(call.policy, failure, last.attempt, self._effects.jitter())
            if delay is None:
                call.attempt = last.attempt
                call.started_at = last.started_at
                self._exhausted.append((call, failure))
                return
            call.retry_at = (last.finished_at or last.started_at) + delay
        self._retry(call)

    def _retry(self, call: StepCall) -> None:
        assert call.retry_at is not None
        self._retries += 1
        heappush(self._retrying, (call.retry_at, self._retries, call))

    def _cancelled(self, call: StepCall) -> None:
        self._waiting.pop(call.step_id, None)
        if call.running:
            self._running -= 1
            self._ending += 1
            self._effects.cancel_body(call)

    def _replay(self, event: Step) -> None:
        assert event.completed_seq is not None
        assert event.finished_at is not None
        self._seq = event.completed_seq
        self.loop.now = event.finished_at
        if event.kind is StepKind.SLEEP:
            self.loop.fire_due(event.finished_at - int(event.output or 0))
        elif event.kind is StepKind.CANCEL:
            self._tell_cancelled()
        elif not self._see_recorded(event):
            self._early[event.step_id] = event
            self._beside[event.step_id] = tuple(self._waiting)
            return
        self._drain()

    def _see_recorded(self, event: Step) -> bool:
        """Gives a recorded event to the call or wait it belongs to; whether there is one."""
        if event.kind is StepKind.SIGNAL:
            wait = self._signal_waits.get(event.step_id)
            if wait is not None:
                self._see_signal(wait, event.output or b"null")
            return wait is not None
        call = self._waiting.get(event.step_id)
        if call is not None:
            self._see(call, event)
        return call is not None

    def _drain(self) -> None:
        """Let the workflow go on after an event; if it was recorded that it was told too late, with that beside it."""
        if self._events and _is_late_cancel(self._events[0]):
            late = self._events.popleft()
            assert late.completed_seq is not None
            assert late.finished_at is not None
            self._seq = late.completed_seq
            self.loop.now = late.finished_at
            if not self._events:
                self.replaying = False  # what the code does about it, it has not done before
            self._tell_cancelled()
        self.loop.drain()

    def _tell_replaced(self) -> None:
        """Say so if the code has come past a recorded step without calling it, and runs one without a record instead.

        It may have been put in front of the recorded one. It may also be the same under another name.
        """
        for recorded in self._early:
            new = [step_id for step_id in self._beside[recorded] if self._is_new(step_id)]
            if new:
                logger.warning(
                    "step %s of %s is recorded and was not called up to here; %s, not recorded, runs instead. If it "
                    "was renamed, it now runs a second time: keep the recorded name with name=%r",
                    recorded,
                    self.describe(),
                    ", ".join(new),
                    step_name(recorded),
                    extra=self.about() | {"step_id": new[0]},
                )

    def _is_new(self, step_id: str) -> bool:
        return step_id in self._waiting and step_id not in self._attempts

    def _fire(self, passed: Instant) -> None:
        """Fires the timers that are due by then; there is one."""
        timer = self.loop.first_due(passed)
        assert timer is not None
        now = self._next_event()
        self.loop.fire_due(passed)
        due = self.loop.next_due()
        early = now - passed if due is not None and due <= now else 0
        self._mark(timer.step_id, StepKind.SLEEP, timer.created_at, early)
        self.loop.drain()

    def _deliver_cancel(self) -> None:
        assert self._main is not None
        if not self.cancelled and not self._main.done():
            self._mark(CANCEL, StepKind.CANCEL, self._next_event())
            self.cancel_recorded = True
            self._tell_cancelled()
            self.loop.drain()

    def tell_late(self) -> None:
        """The workflow function has returned, and before that was stored somebody was promised that it will be told to
        end. Records that it is, for the next execution."""
        self._submit(replace(self._marked(CANCEL, StepKind.CANCEL, self._next_event()), output=LATE))
        self.cancel_recorded = True

    def _tell_cancelled(self) -> None:
        assert self._main is not None
        self.cancelled = True
        self._main.cancel()

    def _mark(self, step_id: str, kind: StepKind, since: Instant, early: Span = 0) -> None:
        """Record an event that is no step of its own."""
        self._submit(self._marked(step_id, kind, since, early))

    def _marked(self, step_id: str, kind: StepKind, since: Instant, early: Span = 0) -> CompleteStep:
        # Code that was changed under the run can come to the name of an older tick once more, and a sleep may be called
        # `cancel`. Both are kept: a row that is taken is not written again, and the event would be lost.
        attempt = self._ticks[step_id] = self._ticks.get(step_id, 0) + 1
        return CompleteStep(
            step_id=step_id,
            attempt=attempt,
            kind=kind,
            completed_seq=self._seq,
            started_at=since,
            finished_at=self.loop.now,
            output=b"%d" % early if early else None,
        )

    def _see(self, call: StepCall, event: Step) -> None:
        """Give a call its recorded end."""
        del self._waiting[call.step_id]
        assert call.future is not None
        if event.input_hash != call.input_hash and event.input_hash and call.input_hash:
            message = (
                f"step {call.step_id} of {self.describe()} was recorded with other arguments than it is now called "
                f"with; workflow code must call a step with the same arguments on every replay"
            )
            if self._strict:
                _raise_in(call, NonDeterminismError(message))
                return
            logger.warning(message, extra=self.about() | {"step_id": call.step_id})
        if event.status is StepStatus.COMPLETED:
            try:
                result = call.codec.decode_result(event.output or b"null")
            except Exception as error:
                _raise_in(call, error)
            else:
                call.future.set_result(result)
        else:
            self._note_final_failure(event.completed_seq or 0)
            _raise_in(call, Failure.decode(event.error or b"").to_exception())

    def _awaited(self, call: StepCall) -> bool:
        return call.future is not None and not call.future.done()

    def _ended(self, call: StepCall) -> bool:
        """A body has come to its end: book it out. Whether its end is still wanted."""
        if self._shown:
            self._shown.pop(call, None)
        awaited = call.future is not None and not call.future.done()
        if call.running:
            call.running = False
            if awaited:
                self._running -= 1
            else:
                self._ending -= 1
        return awaited

    def _dropped(self, call: StepCall) -> None:
        """A body whose result nobody wants has ended."""
        if call.shown and self.outcome is None and not self.loop.evicting:
            self._submit_cancelled(call)
        self._settle()

    def _submit_cancelled(self, call: StepCall) -> None:
        self._shown.pop(call, None)
        self._submit(
            CancelStep(
                step_id=call.step_id,
                attempt=call.attempt,
                started_at=call.started_at,
                finished_at=max(self._effects.now(), self.loop.now),
                input=call.input,
                input_hash=call.input_hash,
            )
        )

    def _fail(self, call: StepCall, failure: Failure) -> None:
        """A step has failed for good."""
        self._deliver_failure(call, failure)
        self._settle()

    def _tell_failed(self, call: StepCall, failure: Failure, what_next: str) -> None:
        most = call.policy.attempts
        logger.warning(
            "step %s of %s failed in attempt %d%s and is %s: %.1000s",
            call.step_id,
            self.describe(),
            call.attempt,
            f" of {most}" if most > 0 else "",
            what_next,
            failure,
            extra=self.about() | {"step_id": call.step_id, "attempt": call.attempt},
        )

    def _deliver_failure(self, call: StepCall, failure: Failure) -> None:
        self._tell_failed(call, failure, "not tried again")
        now = self._next_event()
        self._note_final_failure(self._seq)
        data = failure.encode()
        self._submit(
            FailStep(
                step_id=call.step_id,
                attempt=call.attempt,
                completed_seq=self._seq,
                started_at=call.started_at or now,
                finished_at=now,
                input=call.input,
                input_hash=call.input_hash,
                error=data,
            )
        )
        self._waiting.pop(call.step_id, None)
        _raise_in(call, Failure.decode(data).to_exception())
        self.loop.drain()

    def _resolve(self, call: StepCall, result: Any) -> None:
        del self._waiting[call.step_id]
        assert call.future is not None
        call.future.set_result(result)
        self.loop.drain()
        self._settle()

    def _note_final_failure(self, seq: int) -> None:
        if self._first_final_failure is None:
            self._first_final_failure = seq

    def _next_event(self, now: Instant | None = None) -> Instant:
        """Number an event and give it its time, which never lies before the last event's."""
        self._seq += 1
        if now is None:
            now = self._effects.now()
        if now > self.loop.now:
            self.loop.now = now
        return self.loop.now

    def _submit(self, operation: Operation) -> None:
        self._submitted += 1
        self._effects.submit(operation)

    def _settle(self) -> None:
        """After every event: has the workflow ended, and which bodies may start?"""
        if self.loop.evicting:
            return
        main = self._main
        assert main is not None
        while not main.done():
            if self._exhausted:
                call, failure = self._exhausted.popleft()
                if self._awaited(call):
                    self._deliver_failure(call, failure)
            elif self._inbox.arrived and (arrived := self._inbox.next()) is not None:
                self._take(*arrived)
            else:
                self._pump()
                return
        self._finish(main)

    def _pump(self) -> None:
        if self._ending or self.loop.evicting:
            return
        wanted = self._wanted
        retrying = self._retrying
        if retrying:
            passed = self._effects.passed()
            while retrying and retrying[0][0] <= passed:
                wanted.append(heappop(retrying)[2])
        while wanted:
            call = wanted[0]
            if call.future is None or call.future.done():
                wanted.popleft()
                continue
            if call.gate > self._durable:
                # Gates never fall along the queue but for retries; whoever waits behind is let through by the next
                # acknowledgement.
                return
            wanted.popleft()
            call.running = True
            now = self._effects.now()
            call.started_at = now if now > self.loop.now else self.loop.now
            call.shown = False
            call.body_timed_out = False
            self._running += 1
            self._effects.start_body(call)

    def _finish(self, main: WorkflowTask) -> None:
        assert self._encode_result is not None
        for call in list(self._shown):
            self._submit_cancelled(call)
        keep_seq = self._keep_seq()
        if main.cancelled() and self.cancelled:
            self.outcome = Outcome(None, None, keep_seq)
        elif main.cancelled():
            failure = Failure.from_exception(
                asyncio.CancelledError("the workflow function was cancelled from within itself")
            )
            self.outcome = Outcome(None, failure, keep_seq)
        elif (error := main.exception()) is not None:
            self.outcome = Outcome(None, Failure.from_exception(_mistake_in(error)), keep_seq)
            _forget_tracebacks(main, error)
        else:
            try:
                self.loop.refuse_mistakes()
                output = self._encode_result(main.result())
                if len(output) > self._payload_limit:
                    raise PayloadTooLarge(
                        f"the result of {self.workflow} is {len(output):,} bytes; "
                        f"at most {self._payload_limit:,} are stored. Return a reference to large data"
                    )
                self.outcome = Outcome(output)
            except Exception as problem:
                self.outcome = Outcome(None, Failure.from_exception(problem), keep_seq)
        self.loop.report_unseen_errors()
        self._let_go()

    def _let_go(self) -> None:
        for call in list(self._waiting.values()):
            if call.running:
                self._effects.cancel_body(call)
        self.evict()

    def _keep_seq(self) -> int:
        """Up to which event a run that is tried again keeps its history."""
        return self._seq if self._first_final_failure is None else self._first_final_failure - 1


def _is_late_cancel(event: Step) -> bool:
    return event.kind is StepKind.CANCEL and event.output == LATE


def _raise_in(call: StepCall, error: Exception) -> None:
    # The traceback will refer to this very call stack, so nothing on it may refer to the exception.
    future, call.future = call.future, None
    assert future is not None
    future.set_exception(error)


def _mistake_in(error: BaseException) -> BaseException:
    """The NonDeterminismError that task groups, of a library perhaps, have made a group of, if nothing else is in it;
    with the way through the user's code that led to the group. Any other error as it is."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    leaves = list(_leaves(error))
    if not all(isinstance(leaf, NonDeterminismError) for leaf in leaves):
        return error
    return leaves[0].with_traceback(error.__traceback__)


def _leaves(group: BaseExceptionGroup[Any]) -> Iterator[BaseException]:
    for member in group.exceptions:
        if isinstance(member, BaseExceptionGroup):
            yield from _leaves(member)
        else:
            yield member


def _forget_tracebacks(main: WorkflowTask, error: BaseException | None) -> None:
    """The error is data by now. Its tracebacks hold all frames of the run, and often themselves."""
    try:
        main.result()  # the task keeps the traceback for itself until somebody asks
    except BaseException:
        pass
    seen = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


def _allows(policy: Retry, attempt: int) -> bool:
    return policy.attempts < 0 or attempt <= policy.attempts


__all__ = ["Effects", "Execution", "Outcome", "StepCall", "place_of_call"]
