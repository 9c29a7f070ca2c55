"""Waits of a workflow, from the call to its recorded end: steps, which have a body, and what comes from outside,
signals and outcomes of children, which have none.

A wait has the identity of its row, which is fixed when it is called. The execution keeps it in a table while its
workflow waits, asks for what it waits for (`request`), gives it what happened (`deliver`: an event that is recorded, or
one that came back on replay), and takes the request back if the workflow no longer waits (`withdraw`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec import Struct, field

from kagzi.api.operations import ChildStart, StepOperation
from kagzi.core.exceptions import exception_of
from kagzi.core.failure import Failure
from kagzi.core.instant import Instant, Span
from kagzi.core.lineage import PayloadContext, PayloadKind
from kagzi.core.retry import Retry
from kagzi.core.step import Step, StepStatus
from kagzi.errors import Unavailable
from kagzi.sdk.ambient import CallCodec
from kagzi.sdk.run_errors import child_error

if TYPE_CHECKING:
    from kagzi.sdk.replay.execution import Execution


# What the workflow is given the end of: what is recorded now, or was before.
Event: TypeAlias = Step | StepOperation


class Wait(Struct, eq=False, kw_only=True):
    step_id: str
    name: str
    input_hash: int = 0  # of what it was called with; 0 if that cannot be compared
    made: Any = None  # for `Unawaited`
    future: asyncio.Future[Any] | None = None

    @property
    def awaited(self) -> bool:
        return self.future is not None and not self.future.done()

    def request(self, execution: Execution) -> None:
        """Has the wait happen, now or when the execution goes live: the workflow waits, and nothing is recorded of
        it."""
        raise NotImplementedError

    def go_live(self, execution: Execution) -> None:
        """Goes live: all that is recorded was delivered, and this was not among it."""

    def deliver(self, event: Event, execution: Execution) -> None:
        """Gives the workflow what is recorded."""
        raise NotImplementedError

    def withdraw(self, execution: Execution) -> None:
        """Notes that the workflow no longer waits for it."""
        raise NotImplementedError

    def resolve(self, result: Any) -> None:
        assert self.future is not None
        self.future.set_result(result)

    def fail(self, error: Exception) -> None:
        # The traceback will refer to this very call stack, so nothing on it may refer to the exception.
        future, self.future = self.future, None
        assert future is not None
        _note_failure(future)
        future.set_exception(error)


class StepCall(Wait, eq=False, kw_only=True):
    """A call of a step in a workflow."""

    fn: Callable[..., Any]
    codec: CallCodec
    policy: Retry
    timeout: Span | None
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    # As JSON. With the hash 0 the arguments were recorded by their repr: the body gets them as they are.
    input: bytes
    stored: bytes | None  # what is recorded of it; None until a codec has made that, when the body is to start
    attempt: int = 1
    gate: int = 0
    retry_at: Instant | None = None
    running: bool = False
    started_at: Instant = 0
    rooted: bool = False  # its identity stays as it is, in groups, too
    child: str | None = None  # which it tells something
    context: Context | None = None  # that the body is to see beside the worker's own; None: only that
    # The host's own notes about the body.
    body: Any = None
    shown: bool = False
    deadline: Instant | None = None
    body_timed_out: bool = False

    def request(self, execution: Execution) -> None:
        steps = execution.steps
        self.gate = steps.journal.submitted
        if steps.live:
            if steps.attempts:
                steps.resume(self)
            else:
                steps.wanted.append(self)

    def go_live(self, execution: Execution) -> None:
        self.gate = execution.steps.journal.submitted  # children that were spawned during replay are submitted by now
        execution.steps.resume(self)

    def deliver(self, event: Event, execution: Execution) -> None:
        if event.status is StepStatus.COMPLETED:
            try:
                codec = self.codec
                context = None
                if codec.seal is not None:
                    context = execution.lineage.of(PayloadKind.STEP_OUTPUT, self.step_id)
                result = codec.decode_result(event.output or b"null", context)
            except Unavailable:  # of what keeps large payloads, which is no affair of the workflow
                raise
            except Exception as error:
                self.fail(error)
            else:
                self.resolve(result)
        else:
            self.fail(exception_of(Failure.decode(event.error or b"")))

    def withdraw(self, execution: Execution) -> None:
        execution.steps.cancel(self)


class SignalWait(Wait, eq=False, kw_only=True):
    """A wait for a signal, whose value `decode` reads."""

    decode: Callable[[bytes], Any]
    since: Instant
    default_at: Instant | None = None  # when its caller takes a default instead

    def request(self, execution: Execution) -> None:
        execution.inbox.add_wait(self)

    def deliver(self, event: Event, execution: Execution) -> None:
        execution.inbox.remove_wait(self)
        try:
            result = self.decode(event.output or b"null")
        except Unavailable:
            raise
        except Exception as error:
            self.fail(error)
        else:
            self.resolve(result)

    def withdraw(self, execution: Execution) -> None:
        execution.inbox.remove_wait(self)


class ChildWait(Wait, eq=False, kw_only=True):
    """A child run: what it is started with, and waits for its outcome, of which there may be several at once."""

    workflow: str
    start: ChildStart  # without an id until it is spawned
    input: bytes
    decode: Callable[..., Any]
    seal: Callable[[bytes, PayloadContext], bytes] | None = None  # what an app with a codec makes of its input
    waiters: list[asyncio.Future[Any]] = field(default_factory=list)
    outcome: Event | None = None  # once the workflow has seen it

    @property
    def awaited(self) -> bool:
        return any(not future.done() for future in self.waiters)

    def request(self, execution: Execution) -> None:
        execution.children.add_wait(self)

    def deliver(self, event: Event, execution: Execution) -> None:
        execution.children.seen(self, event.status)
        self.outcome = event
        for future in self._take_waiters():
            try:
                future.set_result(self.result())
            except Unavailable:
                raise
            except Exception as error:
                # Each has an exception of its own, whose traceback refers to this frame.
                _note_failure(future)
                future.set_exception(error)

    def resolve(self, result: Any) -> None:
        for future in self._take_waiters():
            future.set_result(result)

    def withdraw(self, execution: Execution) -> None:
        execution.children.remove_wait(self)

    def result(self) -> Any:
        """Returns what the child has returned; raises if it ended otherwise."""
        event = self.outcome
        assert event is not None
        if event.status is StepStatus.COMPLETED:
            return self.decode(event.output or b"null")
        raise child_error(event.status, event.error, self.workflow, self.start.run_id)

    def fail(self, error: Exception) -> None:
        for future in self._take_waiters():
            _note_failure(future)
            future.set_exception(error)

    def _take_waiters(self) -> list[asyncio.Future[Any]]:
        waiters = [future for future in self.waiters if not future.done()]
        self.waiters.clear()
        return waiters


def _note_failure(future: asyncio.Future[Any]) -> None:
    """Notes that workflow code gets an error, and may not come to what it was about to do."""
    loop: Any = future.get_loop()
    loop.failed_at = loop.newest
