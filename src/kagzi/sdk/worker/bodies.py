"""Running step bodies: `async def` on the worker's loop, `def` on a bounded pool of threads.

A body that has been alive for a while is shown as RUNNING, and one that outlives its timeout is ended. Neither needs a
timer for each body (most live for microseconds): one sweep looks at all of them, oldest first, a few times a second,
and only while there are bodies at all.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future as ThreadFuture
from contextlib import AbstractContextManager, contextmanager
from contextvars import Context, ContextVar, copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from weakref import ReferenceType, ref

from msgspec import Struct

from kagzi.api.operations import StartedBy
from kagzi.core.instant import SECOND, Span
from kagzi.errors import StepTimeout
from kagzi.sdk.replay.waits import StepCall
from kagzi.sdk.worker import forks
from kagzi.sdk.worker.threads import Threads

if TYPE_CHECKING:
    from kagzi.sdk.worker.attempt import Attempt

logger = logging.getLogger("kagzi.worker")

SHOW_AFTER: Span = 100_000
# Less than the engine waits before it ends a step itself (5 s after its timeout): whoever is nearer should be first.
CANCEL_GRACE: Span = 3 * SECOND
_SWEEP_EVERY = 0.05
_CO_COROUTINE: Final = inspect.CO_COROUTINE


class StepInfo(Struct, frozen=True):
    """What a step body can know about itself."""

    run_id: str
    step_id: str
    attempt: int
    workflow: str
    namespace: str
    cancelled: threading.Event | None  # set when a body in a thread should stop; None for async bodies
    held_by: ReferenceType[Attempt] | None = None  # weakly: what a body leaves behind must not keep the run


current_step: ContextVar[StepInfo] = ContextVar("kagzi_step")


def starting_step(engine: object, namespace: str, home: str) -> StartedBy | None:
    """Returns the attempt of a step whose body this is, if its run lives where something is about to be started. `home`
    names the place for bodies in processes of their own, whose engine is another object."""
    info = current_step.get(None)
    if info is None or info.held_by is None or info.namespace != namespace:
        return None
    attempt = info.held_by()
    if attempt is None or attempt.gone or not attempt.lives_in(engine, home):
        return None
    return StartedBy(info.run_id, info.step_id, info.attempt)


class Bodies:
    """All bodies running in a worker. `threads` 0 means none: see `_submit`. Those in threads run inside `around`."""

    def __init__(
        self,
        *,
        monotonic: Callable[[], Span],
        threads: int,
        around: Callable[[], AbstractContextManager[object]] | None = None,
    ) -> None:
        self._monotonic = monotonic
        self.around = around
        self._threads = threads
        self._pool: Threads | None = None
        self._alive: dict[StepCall, tuple[Attempt, Span]] = {}  # in order of start
        self._waiting: set[StepCall] = set()  # for a process: their time has not begun
        self._ending: dict[StepCall, Span] = {}  # cancelled or timed out: until when it may take
        self._ended: list[tuple[Attempt, StepCall, Any, Any, BaseException | None]] = []  # in this turn of the loop
        self._sweeper: asyncio.TimerHandle | None = None
        self._context = copy_context()

    def start(self, attempt: Attempt, call: StepCall, now: Span) -> None:
        is_async = _is_async(call.fn)
        info = StepInfo(
            attempt.run_id,
            call.step_id,
            call.attempt,
            attempt.workflow,
            attempt.claim.namespace,
            None if is_async else threading.Event(),
            ref(attempt),
        )
        context = self._context.copy() if call.context is None else call.context.copy()
        if attempt.trace is not None:
            attempt.trace.begin_step(call, call.name, _attributes(info), context)
        loop = attempt.loop
        if is_async:
            call.body = loop.create_task(self._run(attempt, call, info), name=call.step_id, context=context)
        else:
            context.run(current_step.set, info)
            self._start_thread(loop, attempt, call, context, info)
        self._alive[call] = (attempt, now)
        if self._sweeper is None:
            self._sweeper = loop.call_later(_SWEEP_EVERY, self._sweep)

    def cancel(self, call: StepCall) -> None:
        """Asks a body to stop: CancelledError, or a flag for a thread. `body_ended` follows within the grace time."""
        if call not in self._alive:
            return
        self._ending[call] = self._monotonic() + CANCEL_GRACE
        body = call.body
        if isinstance(body, asyncio.Task):
            body.cancel()
            body.add_done_callback(partial(self._never_begun, self._alive[call][0], call))
        else:
            body.cancelled.set()
            body.future.cancel()  # if no thread has taken it yet, it never runs

    @contextmanager
    def waiting(self, attempt: Attempt, call: StepCall) -> Iterator[Callable[[], None]]:
        """Surrounds the wait of a body for its place. The body calls what this yields when it has one, and its time
        begins then."""

        def begins() -> None:
            self._waiting.discard(call)
            if self._alive.pop(call, None) is not None:
                now = self._monotonic()
                call.started_at += now - submitted
                self._alive[call] = (attempt, now)  # among the youngest

        _, submitted = self._alive.get(call, (attempt, self._monotonic()))
        self._waiting.add(call)
        try:
            yield begins
        finally:
            self._waiting.discard(call)

    @property
    def running(self) -> int:
        """How many there are, those that were cancelled and have not ended among them."""
        return len(self._alive)

    def close(self) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        for call in list(self._alive):
            self.cancel(call)
        if self._pool is not None:
            self._pool.close()

    def _start_thread(
        self, loop: asyncio.AbstractEventLoop, attempt: Attempt, call: StepCall, context: Context, info: StepInfo
    ) -> None:
        def run() -> Any:
            body.started = self._monotonic()
            try:
                if self.around is None:
                    result = call.fn(*call.args, **call.kwargs)
                else:
                    with self.around():
                        result = call.fn(*call.args, **call.kwargs)
            except BaseException as problem:
                if forks.in_child:
                    forks.leave(problem)
                raise
            if forks.in_child:
                forks.leave(None)
            if inspect.isawaitable(result):
                raise TypeError(f"step {call.name} is a plain function that returned an awaitable; make it `async def`")
            return result

        call.body = body = ThreadBody(info.cancelled)
        body.future = self._submit(lambda: context.run(run))

        def done(future: ThreadFuture[Any]) -> None:
            try:
                loop.call_soon_threadsafe(self._thread_done, attempt, call, body, future)
            except RuntimeError:
                # The loop has closed: the worker is gone, and so is its lease.
                logger.debug("step %s ended after its worker", call.step_id)

        body.future.add_done_callback(done)

    def _submit(self, work: Callable[[], Any]) -> ThreadFuture[Any]:
        if self._threads == 0:
            # On virtual time there are no threads: the body runs here and now, and no time passes.
            future: ThreadFuture[Any] = ThreadFuture()
            try:
                future.set_result(work())
            except BaseException as error:
                future.set_exception(error)
            return future
        if self._pool is None:
            self._pool = Threads(self._threads)
        return self._pool.submit(work)

    async def _run(self, attempt: Attempt, call: StepCall, info: StepInfo) -> None:
        """The task of a body. It does not tell of its end itself, because from there the workflow goes on, which must
        not happen inside a task: one callback tells of all that end in the same turn of the loop."""
        current_step.set(info)
        body = call.body
        result: Any = None
        error: BaseException | None = None
        try:
            result = await call.fn(*call.args, **call.kwargs)
        except BaseException as problem:
            # Everything, as in a thread: a task would pass SystemExit and KeyboardInterrupt on, and end the worker with
            # all the other runs it holds; of others nobody would hear until the step's timeout.
            if attempt.loop.is_closed():
                raise  # GeneratorExit, because the task is collected: there is nobody left to be told
            error = problem
        if forks.in_child:
            forks.leave(error)
        if not self._ended:
            attempt.loop.call_soon(self._tell_ended)
        self._ended.append((attempt, call, body, result, error))

    def _tell_ended(self) -> None:
        ended, self._ended = self._ended, []
        for attempt, call, body, result, error in ended:
            try:
                self._tell(attempt, call, body, result, error)
            except Exception as problem:
                attempt.broke(problem)

    def _never_begun(self, attempt: Attempt, call: StepCall, body: asyncio.Task[None]) -> None:
        """Notes the end of a task that was cancelled before its first turn, and so never came to `_run`."""
        self._tell(attempt, call, body, None, asyncio.CancelledError())

    def _tell(self, attempt: Attempt, call: StepCall, body: Any, result: Any, error: BaseException | None) -> None:
        if call.body is not body or not self._take(call):
            return  # it was given up
        if error is None:
            attempt.step_returned(call, result)
        elif call.body_timed_out:
            attempt.step_raised(call, timeout_error(call))
        elif not isinstance(error, asyncio.CancelledError):
            attempt.step_raised(call, error)
        elif attempt.wants(call):
            attempt.step_raised(call, asyncio.CancelledError(f"step {call.step_id} cancelled itself"))
        else:
            attempt.body_ended(call)

    def _thread_done(self, attempt: Attempt, call: StepCall, body: ThreadBody, future: ThreadFuture[Any]) -> None:
        if call.body is not body or not self._take(call):
            return
        try:
            if future.cancelled():
                attempt.body_ended(call)
            elif (error := future.exception()) is not None:
                attempt.step_raised(call, error)
            else:
                attempt.step_returned(call, future.result())
        except Exception as problem:
            attempt.broke(problem)

    def _take(self, call: StepCall) -> bool:
        if self._ending:
            self._ending.pop(call, None)
        return self._alive.pop(call, None) is not None

    def _sweep(self) -> None:
        now = self._monotonic()
        self._sweeper = None
        for call, (attempt, submitted) in list(self._alive.items()):
            if now - submitted < SHOW_AFTER:
                break  # the rest is younger
            if attempt.gone or call in self._waiting:
                continue  # its bodies have been told to stop
            if not attempt.lease_holds():
                # This process was suspended, or cut off from the engine. Whoever has the run now runs this body, too.
                attempt.abandon("its lease ended before it could be renewed")
                continue
            started = submitted
            if isinstance(call.body, ThreadBody):
                if call.body.started is None:
                    continue  # waits for a thread; its time has not begun
                started = call.body.started
            age = now - started
            if age >= SHOW_AFTER and not call.shown and call not in self._ending:
                call.started_at += started - submitted
                attempt.show(call)
            if call.timeout is not None and age >= call.timeout and not call.body_timed_out:
                self._time_out(attempt, call)
        for call, until in list(self._ending.items()):
            if now >= until:
                self._give_up(call)
        if self._alive:
            self._sweeper = asyncio.get_running_loop().call_later(_SWEEP_EVERY, self._sweep)

    def _time_out(self, attempt: Attempt, call: StepCall) -> None:
        call.body_timed_out = True
        if not isinstance(call.body, asyncio.Task):
            # Nothing ends a thread from outside. The attempt has failed; what the thread still does is not waited for.
            call.body.cancelled.set()
            self._forsake(call)
            attempt.step_raised(call, timeout_error(call))
        else:
            self.cancel(call)

    def _give_up(self, call: StepCall) -> None:
        attempt, _ = self._alive[call]
        about = attempt.about() | {"step_id": call.step_id, "attempt": call.attempt}
        words = "step %s of run %s does not end although it was cancelled"
        logger.warning(words, call.step_id, attempt.run_id, extra=about)
        self._forsake(call)
        if call.body_timed_out:
            attempt.step_raised(call, timeout_error(call))
        else:
            attempt.body_ended(call)

    def _forsake(self, call: StepCall) -> None:
        """Goes on without the end of this body."""
        self._take(call)
        if self._pool is not None and isinstance(call.body, ThreadBody):
            self._pool.give_up(call.body.future)


def _attributes(info: StepInfo) -> dict[str, str | int]:
    return {"kagzi.run_id": info.run_id, "kagzi.step_id": info.step_id, "kagzi.attempt": info.attempt}


def _is_async(fn: Callable[..., Any]) -> bool:
    code = getattr(fn, "__code__", None)
    if code is not None and code.co_flags & _CO_COROUTINE:
        return True
    return inspect.iscoroutinefunction(fn)


class ThreadBody:
    __slots__ = ("cancelled", "future", "started")

    def __init__(self, cancelled: threading.Event | None) -> None:
        self.future: ThreadFuture[Any]
        self.started: Span | None = None  # when a thread took it
        self.cancelled = cancelled or threading.Event()


def timeout_error(call: StepCall) -> StepTimeout:
    seconds = (call.timeout or 0) / SECOND
    return StepTimeout(f"step {call.step_id} ran longer than its timeout of {seconds:g} s")
