"""The steps that a workflow waits for: which bodies may start, and what is recorded of their ends.

A body starts when everything that was submitted before its request is durable (rule 4 of `execution.py`), and no
cancelled body is still at its end (rule 10). Steps that failed wait here for the time of their next attempt.
"""

from __future__ import annotations

import logging
from heapq import heappop, heappush
from typing import Any

from kagzi.api.operations import CancelStep, CompleteStep, FailStep, StartStep
from kagzi.api.workers import Claim
from kagzi.core.duration import format_span
from kagzi.core.exceptions import exception_of, failure_of
from kagzi.core.failure import Failure, Redact
from kagzi.core.instant import Instant
from kagzi.core.lineage import PayloadContext, PayloadKind, lineage_of
from kagzi.core.retry import Retry, next_attempt
from kagzi.core.step import Step
from kagzi.errors import NotSerializable, PayloadTooLarge, Unavailable
from kagzi.sdk.replay.effects import Effects
from kagzi.sdk.replay.journal import Journal
from kagzi.sdk.replay.loop import WorkflowLoop
from kagzi.sdk.replay.waits import StepCall

logger = logging.getLogger("kagzi.workflow")


class Steps:
    __slots__ = (
        "_effects",
        "_loop",
        "_payload_limit",
        "_redact",
        "_retries",
        "_run",
        "attempts",
        "ending",
        "exhausted",
        "journal",
        "live",
        "retrying",
        "running",
        "shown",
        "wanted",
    )

    def __init__(
        self,
        effects: Effects,
        loop: WorkflowLoop,
        journal: Journal,
        attempts: dict[str, Step],
        payload_limit: int,
        redact: Redact | None,
        run: Claim,
    ) -> None:
        self._redact = redact
        self._run = run
        self.live = False  # bodies may start
        self.running = 0
        self.ending = 0  # cancelled bodies that have not ended yet
        self.wanted: list[StepCall] = []  # their body is to be started
        self.exhausted: list[tuple[StepCall, Failure]] = []  # no attempt is left, or none can begin
        self.retrying: list[tuple[Instant, int, StepCall]] = []  # a heap of those that wait for their next attempt
        self._retries = 0
        self.shown: dict[StepCall, None] = {}  # bodies that show as RUNNING, or are to show as cancelled
        self.attempts = attempts  # recorded failures that another attempt is to follow, by step
        self._effects = effects
        self._loop = loop
        self.journal = journal
        self._payload_limit = payload_limit

    def resume(self, call: StepCall) -> None:
        """Goes live with a call: its next attempt begins when its time has come."""
        last = self.attempts.pop(call.step_id, None)
        if last is None:
            self.wanted.append(call)
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
                self.exhausted.append((call, failure))
                return
            call.retry_at = (last.finished_at or last.started_at) + delay
        self.retry(call)

    def retry(self, call: StepCall) -> None:
        assert call.retry_at is not None
        self._retries += 1
        heappush(self.retrying, (call.retry_at, self._retries, call))

    def hasten(self, until: Instant, now: Instant) -> None:
        """Starts attempts now that were to start by then, in their order."""
        retrying = [(min(at, now) if at <= until else at, number, call) for at, number, call in self.retrying]
        for at, _, call in retrying:
            call.retry_at = at
        self.retrying[:] = sorted(retrying, key=lambda each: each[:2])  # a sorted list is a heap

    def next_retry(self) -> Instant | None:
        """Returns when the earliest attempt is due that is still waited for."""
        retrying = self.retrying
        while retrying and not retrying[0][2].awaited:
            heappop(retrying)
        # While a cancelled body has not ended no attempt starts, so there is nothing to wake for.
        return retrying[0][0] if retrying and not self.ending else None

    def start_due(self) -> None:
        """Starts the bodies that may start."""
        if self.ending or self._loop.evicting:
            return
        wanted = self.wanted
        retrying = self.retrying
        if retrying:
            passed = self._effects.passed()
            while retrying and retrying[0][0] <= passed:
                wanted.append(heappop(retrying)[2])
        if not wanted:
            return
        passed_by = 0
        try:
            for call in wanted:
                if call.future is not None and not call.future.done():
                    if call.gate > self.journal.durable:
                        # Gates never fall along the queue but for retries; whoever waits behind is let through by the
                        # next acknowledgement.
                        return
                    passed_by += 1
                    if call.stored is not None or self._seal(call):
                        self._start(call)
                else:
                    passed_by += 1
        finally:
            del wanted[:passed_by]

    def _start(self, call: StepCall) -> None:
        call.running = True
        now = self._effects.now()
        call.started_at = now if now > self._loop.now else self._loop.now
        call.shown = False
        call.body_timed_out = False
        self.running += 1
        self._effects.start_body(call)

    def _seal(self, call: StepCall) -> bool:
        """Has the app's codec make what is stored of the arguments; returns whether it could. Now, and not when the
        step was called: workflow code is no place for the errors of a codec, and replay, which needs none of this,
        calls as often. A codec that is out of reach for a while leaves the run to its host."""
        seal = call.codec.seal
        assert seal is not None
        try:
            call.stored = seal(call.input, lineage_of(self._run).of(PayloadKind.STEP_INPUT, call.step_id))
        except Unavailable:
            raise
        except Exception as error:
            call.stored, call.input_hash = b"null", 0
            self.exhausted.append((call, failure_of(error, redact=self._redact)))
            return False
        return True

    def show(self, call: StepCall) -> None:
        """Makes a body visible that has been running for a while."""
        if self._loop.evicting or not call.running or not call.awaited:
            return
        call.shown = True
        self.shown[call] = None
        self.journal.submit(
            StartStep(
                step_id=call.step_id,
                attempt=call.attempt,
                started_at=call.started_at,
                timeout_at=None if call.timeout is None else call.started_at + call.timeout,
                input=call.stored,
                input_hash=call.input_hash,
            )
        )

    def end(self, call: StepCall) -> bool:
        """Books out a body that has come to its end; returns whether its end is still wanted."""
        if self.shown:
            self.shown.pop(call, None)
        awaited = call.future is not None and not call.future.done()
        if call.running:
            call.running = False
            if awaited:
                self.running -= 1
            else:
                self.ending -= 1
        return awaited

    def cancel(self, call: StepCall) -> None:
        """Withdraws a step: its workflow no longer waits for it."""
        if call.running:
            self.running -= 1
            self.ending += 1
            self.note_begun(call)
            self._effects.cancel_body(call)

    def _output_context(self, call: StepCall) -> PayloadContext | None:
        if call.codec.seal is None:
            return None
        return lineage_of(self._run).of(PayloadKind.STEP_OUTPUT, call.step_id)

    def note_begun(self, call: StepCall) -> None:
        """Notes that a body has begun whose result will not be recorded: that it was cancelled will be, so that nothing
        is done of which there is no record."""
        call.shown = True
        self.shown[call] = None

    def record_result(self, call: StepCall, value: Any) -> bool:
        """Records what a body has returned, and gives it to the workflow as the record says it. Returns whether the
        step has ended: if what keeps large results is out of reach, the attempt has failed."""
        try:
            output, result = call.codec.settle_result(value, self._output_context(call))
            if len(output) > self._payload_limit:
                raise PayloadTooLarge(
                    f"step {call.step_id} returned {len(output):,} bytes; at most {self._payload_limit:,} are stored. "
                    f"Keep large data elsewhere and return a reference to it"
                )
        except Unavailable as error:
            return self.record_error(call, error)
        except Exception as error:
            # The body has run and cannot be recorded; running it again would not help.
            if isinstance(error, NotSerializable) and call.name not in str(error):
                # An inline step is known to people by its own name, not by its function's.
                error = NotSerializable(f"step {call.step_id}: {error}")
            self.record_failure(call, failure_of(error, redact=self._redact))
            return True
        journal = self.journal
        now = journal.next_event()
        journal.submit(
            CompleteStep(
                step_id=call.step_id,
                attempt=call.attempt,
                completed_seq=journal.seq,
                started_at=call.started_at,
                finished_at=now,
                input=call.stored,
                input_hash=call.input_hash,
                output=output,
            )
        )
        assert call.future is not None
        call.future.set_result(result)
        return True

    def record_error(self, call: StepCall, error: BaseException) -> bool:
        """Takes the error that a body has raised: it is tried again later, or the workflow gets the failure. Returns
        whether the step has ended."""
        failure = failure_of(error, redact=self._redact)
        delay = next_attempt(call.policy, error, call.attempt, self._effects.jitter())
        if delay is None:
            self.record_failure(call, failure)
            return True
        self._tell_failed(call, failure, f"tried again in {format_span(delay)}")
        now = max(self._effects.now(), self._loop.now)
        call.retry_at = now + delay
        self.journal.submit(
            FailStep(
                step_id=call.step_id,
                attempt=call.attempt,
                started_at=call.started_at,
                finished_at=now,
                retry_at=call.retry_at,
                input=call.stored,
                input_hash=call.input_hash,
                error=failure.encode(),
            )
        )
        call.attempt += 1
        call.gate = self.journal.submitted
        if call.input_hash:
            # Whatever the failed attempt did to its arguments is not seen by the next one, as after a crash.
            call.args, call.kwargs = call.codec.copy_input(call.input)
        self.retry(call)
        return False

    def record_failure(self, call: StepCall, failure: Failure) -> None:
        """Records that a step has failed for good."""
        self._tell_failed(call, failure, "not tried again")
        if call.stored is None:
            self._seal(call)
        journal = self.journal
        now = journal.next_event()
        journal.note_failure(journal.seq)
        data = failure.encode()
        journal.submit(
            FailStep(
                step_id=call.step_id,
                attempt=call.attempt,
                completed_seq=journal.seq,
                started_at=call.started_at or now,
                finished_at=now,
                input=call.stored,
                input_hash=call.input_hash,
                error=data,
            )
        )
        call.fail(exception_of(Failure.decode(data)))

    def _tell_failed(self, call: StepCall, failure: Failure, what_next: str) -> None:
        most = call.policy.attempts
        execution = self._loop.execution
        logger.warning(
            "step %s of %s failed in attempt %d%s and is %s: %.1000s",
            call.step_id,
            execution.describe(),
            call.attempt,
            f" of {most}" if most > 0 else "",
            what_next,
            failure,
            extra=execution.about() | {"step_id": call.step_id, "attempt": call.attempt},
        )

    def record_cancelled(self, call: StepCall) -> None:
        """Records, for people, that a body which had begun was cancelled."""
        self.shown.pop(call, None)
        self.journal.submit(
            CancelStep(
                step_id=call.step_id,
                attempt=call.attempt,
                started_at=call.started_at,
                finished_at=max(self._effects.now(), self._loop.now),
                input=call.stored,
                input_hash=call.input_hash,
            )
        )

    def record_all_cancelled(self) -> None:
        for call in list(self.shown):
            self.record_cancelled(call)

    def clear(self) -> None:
        self.wanted.clear()
        self.retrying.clear()
        self.exhausted.clear()
        self.shown.clear()
        self.running = self.ending = 0


def _allows(policy: Retry, attempt: int) -> bool:
    return policy.attempts < 0 or attempt <= policy.attempts
