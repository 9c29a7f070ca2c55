"""One claimed run in a worker: the host of an `Execution`.

It turns what the execution asks for into commits, bodies and timers, and tells it what came of them. Everything here
runs in plain callbacks of the worker's loop, never inside one of its tasks (see `replay.loop`).

A run's operations are committed in chunks, at most one in flight: while it is, the next one fills. So `CompleteStep`
and the `CompleteRun` or `ParkRun` that follows from it share a commit.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager, nullcontext
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

from kagzi.api.operations import (
    Chunk,
    ChunkAnswer,
    CompleteRun,
    CompleteStep,
    ContinueRun,
    EndCancelledRun,
    FailRun,
    HandBackRun,
    Operation,
    ParkRun,
    RetryRun,
    Transition,
)
from kagzi.api.workers import Claim, Inbox
from kagzi.core.cancel import cancelled
from kagzi.core.duration import format_span
from kagzi.core.exceptions import failure_of
from kagzi.core.failure import Failure
from kagzi.core.instant import SECOND, Instant, Span
from kagzi.core.retry import next_attempt
from kagzi.core.run_value import Progress
from kagzi.core.wake import NEWS_ALONE, read_woken
from kagzi.errors import InvalidRequest, Locked, PermissionDenied, Unauthenticated, Unavailable, VersionMismatch
from kagzi.sdk.replay.execution import Execution
from kagzi.sdk.replay.waits import StepCall
from kagzi.sdk.worker.engine_clock import Bounds
from kagzi.sdk.worker.lingering import SHORT_WAIT, Lingering
from kagzi.sdk.worker.news import News
from kagzi.sdk.worker.sealed_errors import SealedErrors
from kagzi.sdk.worker.transactions import Transactions
from kagzi.sdk.worker.values import Values, count_values

if TYPE_CHECKING:
    from kagzi.sdk.worker.bodies import StepInfo
    from kagzi.sdk.worker.process_pool import ProcessPool
    from kagzi.sdk.worker.worker import Worker
    from kagzi.tracing import RunSpan

logger = logging.getLogger("kagzi.worker")

# Errors of an engine that says nothing about the write: somebody else will have more luck with it.
_PASSING: Final = (Unavailable, Unauthenticated, PermissionDenied, VersionMismatch)
# Seconds after which a write that was refused for an unknown reason is repeated, before it counts as refused for good.
_LOCKED_AGAIN: Final = 0.3  # seconds
_REPEAT_AFTER: Final = (0.5, 1.0, 2.0)
_DONE: Final = ChunkAnswer.DONE  # a member is found slowly by the name of its class (until Python 3.12)
# When only news from outside can wake a run, it is still looked at after this long, in case that news was missed; the
# longer it has waited the later, at most after a day.
RECHECK: Span = 300 * SECOND
# A run whose payloads are out of reach is looked at again after this long.
_PUT_OFF: Final[Span] = 5 * SECOND
_MAKING: Final = Lock()  # steps on threads may be the first to say something
_LONGEST_RECHECK: Final[Span] = 24 * 3600 * SECOND


class Attempt:
    # Slots for the same reason as those of an `Execution`.
    __slots__ = (
        "__weakref__",
        "_ahead",
        "_bodies",
        "_chunk",
        "_in_flight",
        "_last",
        "_lingering",
        "_looked_at",
        "_news",
        "_outbox",
        "_reconciled",
        "_refusals",
        "_safe_span",
        "_surely_ahead",
        "_timer",
        "_timer_due",
        "_transactions",
        "_unhurried",
        "_unstorable",
        "_values",
        "_worker",
        "cancelling",
        "claim",
        "claimed_at",
        "errors",
        "execution",
        "gone",
        "leased_at",
        "loop",
        "monotonic",
        "run_id",
        "submit",
        "token",
        "trace",
        "workflow",
    )

    def __init__(self, worker: Worker, claim: Claim, bounds: Bounds, leased_at: Span) -> None:
        self.run_id = claim.run_id
        self.token = claim.token
        self.workflow = claim.workflow_type
        self.claim = claim
        self.claimed_at = leased_at
        self.leased_at = leased_at  # by the worker's monotonic clock, when the lease was last known to be asked for
        self.cancelling = claim.cancel_requested  # somebody has asked for the run to end
        self.loop = worker.loop
        self._worker = worker
        self.monotonic = worker.monotonic
        self._safe_span = claim.lease * 5 // 6
        self._ahead = bounds.high
        # Timers that others have set were stamped by other clocks; those that are all set here count by one.
        self._surely_ahead = bounds.low if claim.history else bounds.high
        self._outbox: list[Operation] = []
        self.submit = self._outbox.append
        self._bodies: dict[StepCall, None] = {}  # in order of start: a set's order differs from process to process
        self.trace: RunSpan | None = None  # of a `TracedAttempt`
        self.execution: Execution | None = None
        self._in_flight = 0
        self._chunk: Chunk  # the last one that was sent
        self._last: Transition | None = None  # the operation that ends this attempt, once submitted
        self._unhurried = 0  # of the outbox, the first so many wait for another that goes along
        self._refusals = 0  # in a row, for reasons that may pass
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due: Instant = 0
        self._looked_at: Instant = 0  # when the inbox was last looked into because timers were due
        self.gone = False
        self._unstorable = False  # what it did was refused, so the run fails
        self._reconciled = False
        # Made on first use: most attempts have no need of them.
        self._lingering: Lingering | None = None  # when it waits for children
        self._news: News | None = None  # when something may have arrived for the run
        self._values: Values | None = None  # when the run says something about itself
        self.errors: SealedErrors | None = None  # of an app with a codec
        self._transactions: Transactions | None = None  # for the first step that has one

    # Effects, called by the execution, beside `submit`.

    def submit_unhurried(self, operation: Operation) -> None:
        if self._unhurried == len(self._outbox):  # else it goes along with one that does not wait, such as a SpawnChild
            self._unhurried += 1
        self._outbox.append(operation)

    def start_body(self, call: StepCall) -> None:
        worker = self._worker
        if worker.draining:
            # In-flight steps finish and are recorded, new ones start elsewhere.
            worker.loop.call_soon(self.drain)
            return
        at = self.monotonic()
        if not self.lease_is_safe(at):
            worker.loop.call_soon(self.abandon, "its lease could not be renewed in time")
            return
        self._bodies[call] = None
        worker.bodies.start(self, call, at)

    def cancel_body(self, call: StepCall) -> None:
        self._worker.bodies.cancel(call)

    def set_value(self, name: str, value: bytes) -> None:
        if self._last is None:
            self._kept_values().set(name, value)

    def hear_progress(self, said: Progress) -> None:
        """Takes note of how far the run has come, as a step says; from any thread. Dropped when the run is let go
        of."""
        if self._last is None and not self.gone:
            self._kept_values().hear_progress(said)

    def _kept_values(self) -> Values:
        with _MAKING:
            if self._values is None:
                self._values = Values(self)
            return self._values

    def now(self) -> Instant:
        return self._ahead + self.monotonic()

    def passed(self) -> Instant:
        return self._surely_ahead + self.monotonic()

    def jitter(self) -> float:
        return self._worker.ids.jitter()

    # What happens to bodies.

    def step_returned(self, call: StepCall, value: Any) -> None:
        self._bodies.pop(call, None)
        if self.execution is not None:
            self.execution.step_returned(call, value)
            self._after()

    def step_raised(self, call: StepCall, error: BaseException) -> None:
        self._bodies.pop(call, None)
        if self.execution is not None:
            self.execution.step_raised(call, error)
            self._after()

    def body_ended(self, call: StepCall) -> None:
        self._bodies.pop(call, None)
        if self.execution is not None:
            self.execution.body_ended(call)
            self._after()

    def show(self, call: StepCall) -> None:
        if self.execution is not None and self.wants(call):
            self.execution.show(call)
            self._flush()

    def wants(self, call: StepCall) -> bool:
        return call.future is not None and not call.future.done()

    def about(self) -> dict[str, object]:
        """Which run this is, for lines of the log."""
        return {
            "namespace": self.claim.namespace,
            "run_id": self.run_id,
            "workflow": self.workflow,
            "worker_id": self._worker.worker_id,
        }

    # Steps with a transaction: what their bodies need, and what became of a chunk that was not sent as others are.

    def transactions(self) -> Transactions:
        if self._transactions is None:
            self._transactions = Transactions(self, self._worker.transactions)
        return self._transactions

    def process_pool(self) -> ProcessPool | None:
        return self._worker.process_pool()

    def waiting(self, call: StepCall) -> AbstractContextManager[Callable[[], None]]:
        return self._worker.bodies.waiting(self, call)

    @property
    def around_def(self) -> Callable[[], AbstractContextManager[object]]:
        """What each `def` body runs inside of."""
        return self._worker.bodies.around or nullcontext

    def lives_in(self, engine: object, home: str) -> bool:  # noqa: ARG002
        """Returns whether this is the engine that the run was claimed from."""
        return self._worker.works_for(engine)

    def call_of(self, info: StepInfo) -> StepCall | None:
        """Returns the call whose body this is, if its end is still waited for."""
        calls = (call for call in self._bodies if call.step_id == info.step_id and call.attempt == info.attempt)
        return None if self.gone else next(calls, None)

    def is_submitted(self, step_id: str, attempt: int) -> bool:
        """Returns whether the result of a step waits to be sent."""
        return any(
            type(each) is CompleteStep and each.step_id == step_id and each.attempt == attempt for each in self._outbox
        )

    def committed(self, answer: ChunkAnswer) -> None:
        self._committed(answer)

    def not_committed(self, instead: list[Operation]) -> None:
        """Lets go of a run whose workflow has gone on with a result that was not committed. What is true is recorded,
        and the run replayed."""
        self._in_flight = 0
        if self.gone:
            return
        self._stop_execution()
        if self._values is not None:
            self._values.forget()
        self._outbox[:] = instead
        self.transactions().abandon()
        self._end(HandBackRun())

    def flush_held_back(self) -> None:
        if self._outbox or self.execution is not None:
            self._flush()

    # The life of the attempt.

    def begin(
        self, execution: Execution, workflow: Coroutine[Any, Any, Any], encode_result: Callable[[Any], bytes]
    ) -> None:
        self.execution = execution
        claim = self.claim
        woken = None
        if claim.woken is not None:
            woken = read_woken(claim.woken, incarnation=claim.incarnation, attempts=claim.attempts)
        unread = claim.inbox is None and claim.inbox_seq > 0
        execution.begin(
            workflow, encode_result, cancel=self.cancelling, woken=woken, signals=claim.inbox or (), unread=unread
        )
        if (execution.may_await_news or self._news is not None) and (
            self._reads_news(execution) or self._looks_first(execution)
        ):
            pass  # what has arrived goes before timers that are due
        elif execution.idle and (due := execution.next_due()) is not None and due <= self.passed():
            # It has slept, and was claimed because that is over. Were it to wait for that once more, it would lend its
            # slot, and the worker ask for a run that it has no place for when this one goes on.
            execution.tick()
        self._after()

    def fail(self, failure: Failure) -> None:
        """Fails a run whose workflow could not even be called."""
        self._end(FailRun(error=failure.encode(), family=self._has_family()))

    def broke(self, error: Exception) -> None:
        """Lets go of a run because driving it has failed, and not its workflow."""
        if isinstance(error, Unavailable):
            logger.warning(
                "run %s (%s) is put off for %s: %s",
                self.run_id,
                self.workflow,
                format_span(_PUT_OFF),
                error,
                extra=self.about(),
            )
            self.hand_back(self.now() + _PUT_OFF)
            return
        logger.error("run %s (%s) cannot be driven", self.run_id, self.workflow, exc_info=error, extra=self.about())
        if self._last is None and not self.gone:
            self._stop_execution()
            self.fail(failure_of(error))

    def lease_is_safe(self, at: Span) -> bool:
        """Returns whether the lease surely still holds by then: a margin of a sixth is left for what is under way."""
        return at < self.leased_at + self._safe_span

    def lease_holds(self) -> bool:
        """Whether the lease can still be ours, as far as this worker knows."""
        return self._worker.monotonic() < self.leased_at + self.claim.lease

    @property
    def unanswered(self) -> bool:
        return self._in_flight > 0

    def has_progressed(self) -> bool:
        """Whether something new is recorded since the claim."""
        if self.execution is None or self._in_flight:
            return False
        return self.execution.events > max((step.completed_seq or 0 for step in self.claim.history), default=0)

    def cancel(self) -> None:
        """Tells the workflow that the run is to end. If this attempt is at its end already, the next one is told."""
        if self.cancelling or self.gone or self._last is not None:
            return
        self.cancelling = True
        if self._worker.slots.is_lent(self):
            self._take_slot_back()
        else:
            self._tell_cancelled()

    def hear_news(self, inbox_seq: int) -> None:
        """Reads what has arrived for the run, whose inbox goes up to this number (0 if that is not known)."""
        if self.gone or self._last is not None or not self._known_news().hear(inbox_seq):
            return  # if this attempt is at its end already, parking is declined
        if self._worker.slots.is_lent(self):
            self._take_slot_back()
        elif self.execution is not None:
            self._after()

    def _known_news(self) -> News:
        if self._news is None:
            self._news = News(self._worker, self.claim, self._arrived, self.abandon)
        return self._news

    def _reads_news(self, execution: Execution) -> bool:
        """Begins to read what has arrived, if the workflow waits for it; returns whether that is under way."""
        if not execution.may_await_news and (self._news is None or not self._news.unknown):
            return False
        return execution.outcome is None and self._known_news().read(
            execution.inbox.unserved_names(), children=execution.awaits_children
        )

    def _looks_first(self, execution: Execution) -> bool:
        """Looks for signals and outcomes that came before a timer that is due now, since word of them may still be on
        its way here: the wait they are for must not time out. Whether that is under way."""
        if not execution.may_await_news or execution.outcome is not None:
            return False
        due, passed = execution.loop.next_due(), self.passed()
        if due is None or not self._looked_at < due <= passed:
            return False
        names = execution.inbox.unserved_names()
        children = execution.awaits_children
        if not names and not children:
            return False
        self._looked_at = passed
        return self._known_news().read(names, afresh=True, children=children)

    def _arrived(self, inbox: Inbox) -> None:
        if self.execution is None or self._last is not None:
            return
        try:
            outcomes = inbox.outcomes if self.errors is None else self.errors.unsealed(inbox.outcomes)
            self.execution.receive(inbox.signals, outcomes)
            if inbox.cancel_requested and not self.cancelling and not self._worker.slots.is_lent(self):
                self.cancel()
            else:
                self._go_on()
        except Exception as error:
            self.broke(error)

    def _take_slot_back(self) -> None:
        """Asks for a slot, because the run waits in memory and has to go on."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._worker.slots.take_back(self)

    def _tell_cancelled(self) -> None:
        if self.execution is not None:
            self.execution.cancel()
            self._after()

    def abandon(self, reason: str) -> None:
        """Stops at once and reports nothing: another worker drives the run now, or soon will."""
        if not self.gone:
            logger.warning("run %s (%s) is let go of: %s", self.run_id, self.workflow, reason, extra=self.about())
            self._leave()

    def hand_back(self, available_at: Instant | None = None) -> None:
        """Gives the run back, at once or for later: no attempt is counted, and another worker goes on with it."""
        if self._last is None and not self.gone:
            # Bodies that are still running are stopped first, and whatever they say from now on is not recorded: the
            # next holder runs them again.
            self._stop_execution()
            self._end(HandBackRun(available_at=available_at))

    def drain(self) -> None:
        """Gives the run back as soon as no body is running."""
        if not self._bodies:
            self.hand_back()

    def _after(self) -> None:
        """Decides after every event: the run ends, waits or goes on."""
        execution = self.execution
        if execution is None or self._last is not None:
            return
        if execution.outcome is not None:
            if self.cancelling and execution.outcome.output is not None and not execution.cancel_recorded:
                self._tell_late(execution)
            else:
                self._end(self._final_operation(execution))
            return
        if self._worker.draining:
            self.drain()
        elif (execution.may_await_news or self._news is not None) and self._reads_news(execution):
            pass  # it goes on when that has come; asked here too, because this is where every event passes
        elif execution.idle:
            self._wait(execution)
        elif execution.loop.timers or execution.steps.retrying:
            self._watch_timers(execution)
        if len(self._outbox) > self._unhurried:
            self._flush()

    def _final_operation(self, execution: Execution) -> Transition:
        outcome = execution.outcome
        assert outcome is not None
        if outcome.cancelled:
            return EndCancelledRun(error=cancelled(), family=self._has_family())
        if outcome.anew is not None:
            return ContinueRun(input=outcome.anew.input, version=outcome.anew.version)
        if outcome.failure is None:
            assert outcome.output is not None
            return CompleteRun(
                output=outcome.output,
                unless_cancelled=not execution.cancel_recorded,
                family=self.claim.family or execution.has_spawned,
            )
        error = outcome.failure.encode()
        policy = self._worker.run_retry(self.claim)
        delay = None
        if policy is not None and not execution.cancelled:  # what was told to end is not tried again
            delay = next_attempt(policy, outcome.failure, self.claim.attempts + 1, self.jitter())
        if delay is None:
            return FailRun(error=error, family=self._has_family())
        return RetryRun(available_at=self.now() + delay, keep_seq=outcome.keep_seq, error=error)

    def _has_family(self) -> bool | None:
        """Returns whether the run has children, or a parent that is told of its end; None if that is not known here."""
        if self.claim.family:
            return True
        return None if self.execution is None else self.execution.has_spawned

    def _tell_late(self, execution: Execution) -> None:
        """Records a cancellation as late: the workflow function has returned, and before that it was promised that it
        will be told to end. It is told in the next execution, which replays what this one has recorded and has the
        cancellation with its last event."""
        execution.tell_late()
        self._end(HandBackRun())

    def _wait(self, execution: Execution) -> None:
        due = execution.next_due()
        if due is not None and due - self.passed() <= SHORT_WAIT and self._worker.slots.lend(self):
            self._set_timer(due, self._due)
            return
        if execution.awaits_children and self._waits_for_children(execution, due):
            return
        waiting_for = execution.waiting_for(due) if execution.may_await_news else ()
        if due is None:
            # Only what arrives can wake it, in the transaction that stores it. Looking now and then is but a net.
            due = self.now() + min(max(RECHECK, (self.now() - execution.loop.now) // 2), _LONGEST_RECHECK)
            waiting_for = (*waiting_for, NEWS_ALONE) if waiting_for else ()
        # What is in flight may be acknowledged after the due time: no retry may start then, behind the ParkRun.
        self._stop_execution()
        inbox_seq = self.claim.inbox_seq if self._news is None else self._news.seq
        self._end(ParkRun(available_at=due, inbox_seq=inbox_seq, waiting_for=waiting_for))

    def _waits_for_children(self, execution: Execution, due: Instant | None) -> bool:
        """Waits for children in memory for a while, with the slot lent; returns whether it does."""
        if not self._reconciled and self.claim.executions > 1 and not self.has_progressed():
            # It was parked, and nothing that it waits for has come: look whether somebody forgot to tell it.
            self._reconciled = True
            if self._known_news().read((), children=True, reconcile=True):
                return True
        if self._lingering is None:
            self._lingering = Lingering(self.claim, self._worker.declared_limits)
        awaited = (wait.start for wait in execution.children.awaited.values())
        until = self._lingering.until(execution.events, awaited, self.passed())
        if until <= self.passed() or not self._worker.slots.lend(self):
            return False
        self._set_timer(until if due is None else min(until, due), self._due)
        return True

    def _watch_timers(self, execution: Execution) -> None:
        """Sets a timer for what is due next; timers fire beside running bodies too: a timeout around a step, a sleep
        beside one, a retry."""
        due = execution.next_due()
        if due is None or (self._timer is not None and self._timer_due <= due):
            return  # a timer that rings too early sets itself anew, so a cancelled timeout costs nothing here
        self._set_timer(due, self._ring)

    def _set_timer(self, due: Instant, callback: Callable[[], None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_due = due
        self._timer = self._worker.loop.call_later(max(due - self.passed(), 0) / SECOND, callback)

    def _ring(self) -> None:
        self._timer = None
        self._go_on()

    def _due(self) -> None:
        self._timer = None
        self._worker.slots.take_back(self)

    def resume(self) -> None:
        """Goes on, now that the wait is over and there is a slot again."""
        self.loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        if self.execution is None or self._last is not None:
            return
        try:
            if self.cancelling and not self.execution.cancelled:
                self._tell_cancelled()
            elif not self._reads_news(self.execution) and not self._looks_first(self.execution):
                self.execution.tick()
                self._after()
        except Exception as error:
            self.broke(error)

    def _end(self, operation: Transition) -> None:
        self._last = operation
        self._outbox.append(operation)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._flush()
        self._worker.slots.end(self)

    def flush_values(self) -> None:
        if self.execution is not None:
            self._flush()

    def _flush(self) -> None:
        if self._in_flight or self.gone:
            return
        if self._transactions is not None:
            self._flush_with(self._transactions)
            return
        operations: tuple[Operation, ...] = tuple(self._outbox)
        if self._values is not None:
            operations = self._values.join(operations)
        if not operations:
            return
        if self.errors is not None:
            operations = self.errors.sealed(operations)
        self._outbox.clear()
        self._unhurried = 0
        self._in_flight = len(operations)
        self._chunk = Chunk(namespace=self.claim.namespace, run_id=self.run_id, token=self.token, operations=operations)
        self._worker.commit(self._chunk).then(self._committed)

    def _flush_with(self, transactions: Transactions) -> None:
        """Sends the next chunk of a run with steps that have transactions: the result of one of those in its own."""
        chunk = transactions.next_chunk(self._outbox)
        if chunk is None:
            return
        count, within = chunk
        operations: tuple[Operation, ...] = tuple(self._outbox[:count])
        if self._values is not None and count == len(self._outbox):
            operations = self._values.join(operations)
        if not operations:
            return
        del self._outbox[:count]  # `submit` is a method of this list
        self._unhurried = max(0, self._unhurried - count)
        self._in_flight = len(operations)
        stored = operations if self.errors is None else self.errors.sealed(operations)
        self._chunk = Chunk(namespace=self.claim.namespace, run_id=self.run_id, token=self.token, operations=stored)
        if within is None:
            self._worker.commit(self._chunk).then(self._committed)
        else:
            transactions.commit(within, self._chunk, operations)

    def _committed(self, answer: ChunkAnswer | Exception) -> None:
        operations, self._in_flight = self._in_flight, 0
        if self._transactions is not None:
            self._transactions.acknowledged()
        if self.gone:
            return
        if answer is not _DONE:
            self._declined(answer)
            return
        self._refusals = 0
        if self._last is not None and not self._outbox:
            self._worker.finished(self, self._last)
            self._leave()
        else:
            if self.execution is not None:
                if self._values is not None:
                    operations -= count_values(self._chunk.operations)
                try:
                    # A run that waits in memory has lent its slot; what is due starts when it has one again.
                    self.execution.durable(operations, start=not self._worker.slots.is_lent(self))
                except Exception as error:
                    self.broke(error)
            if self._outbox:
                self._flush()

    def _declined(self, answer: ChunkAnswer | Exception) -> None:
        if isinstance(answer, Exception):
            self._refused(answer)
        elif answer is ChunkAnswer.LEASE_LOST:
            self.abandon("its lease was lost")
        elif answer is ChunkAnswer.NEWS:
            if isinstance(self._last, CompleteRun) and self.execution is not None:
                self._tell_late(self.execution)
            else:
                # It was not parked, because something arrived meanwhile. Claiming the run again brings the news along.
                self._end(HandBackRun())

    def _refused(self, error: Exception) -> None:
        if isinstance(error, VersionMismatch):
            # Whatever the worker did would be done for nothing, and once more: the next run would fare no better.
            self._worker.give_up(error, "the server is of another version")
        if type(error) is Locked:
            # While somebody has locked the row no other worker can take the run over. It is stored when the lock is
            # gone, unless another worker was faster.
            self._in_flight = len(self._chunk.operations)
            self.loop.call_later(_LOCKED_AGAIN, self._repeat)
            return
        if self._unstorable or isinstance(error, _PASSING):
            self.abandon(f"its progress could not be stored: {error}")
        elif not isinstance(error, InvalidRequest) and self._refusals < len(_REPEAT_AFTER):
            # Nobody foresaw this. It may pass, and what comes twice is stored once.
            logger.error("run %s: storing its progress failed", self.run_id, exc_info=error, extra=self.about())
            self._in_flight = len(self._chunk.operations)
            self.loop.call_later(_REPEAT_AFTER[self._refusals], self._repeat)
            self._refusals += 1
        else:
            # It will not be stored the next time either, and nobody is to do the same work again and again for that.
            self._unstorable = True
            self._stop_execution()
            if self._values is not None:
                self._values.forget()
            self._outbox.clear()
            self._end(FailRun(error=failure_of(error).encode(), family=True))

    def _repeat(self) -> None:
        if not self.gone:
            self._worker.commit(self._chunk).then(self._committed)

    def _leave(self) -> None:
        self.gone = True
        self._news = None  # it refers to this attempt: without it nothing is left to the garbage collector
        if self._values is not None:
            self._values.forget()
            self._values = None
        if self._transactions is not None:
            self._transactions.abandon()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._stop_execution()
        self._worker.release(self)

    def _stop_execution(self) -> None:
        execution, self.execution = self.execution, None
        if self._bodies:
            for call in list(self._bodies):
                self._worker.bodies.cancel(call)
        if execution is not None:
            execution.evict()
