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
from collections.abc import Callable
from concurrent.futures import Future as ThreadFuture
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context, ContextVar, copy_context
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from kagzi.core.instant import SECOND, Span
from kagzi.errors import StepTimeout
from kagzi.sdk.replay.execution import StepCall

if TYPE_CHECKING:
    from kagzi.sdk.worker.attempt import Attempt

logger = logging.getLogger("kagzi.worker")

SHOW_AFTER: Span = 100_000
CANCEL_GRACE: Span = 5 * SECOND
_SWEEP_EVERY = 0.05


class StepInfo(Struct, frozen=True):
    """What a step body can know about itself."""

    run_id: str
    step_id: str
    attempt: int
    workflow: str
    cancelled: threading.Event | None  # set when a body in a thread should stop; None for async bodies


current_step: ContextVar[StepInfo] = ContextVar("kagzi_step")


class Bodies:
    """All bodies running in a worker."""

    def __init__(self, *, monotonic: Callable[[], Span], threads: int) -> None:
        self._monotonic = monotonic
        self._threads = threads
        self._pool: ThreadPoolExecutor | None = None
        self._alive: dict[StepCall, tuple[Attempt, Span]] = {}  # in order of start
        self._ending: dict[StepCall, Span] = {}  # cancelled or timed out: until when it may take
        self._sweeper: asyncio.TimerHandle | None = None
        self._is_async: dict[Callable[..., Any], bool] = {}
        self._context = copy_context()

    def start(self, attempt: Attempt, call: StepCall) -> None:
        is_async = self._is_async.get(call.fn)
        if is_async is None:
            is_async = self._is_async[call.fn] = inspect.iscoroutinefunction(call.fn)
        info = StepInfo(
            attempt.run_id, call.step_id, call.attempt, attempt.workflow, None if is_async else threading.Event()
        )
        context = self._context.copy()
        context.run(current_step.set, info)
        loop = asyncio.get_running_loop()
        if is_async:
            task = loop.create_task(call.fn(*call.args, **call.kwargs), context=context)
            call.body = task
            task.add_done_callback(lambda task: self._task_done(attempt, call, task))
        else:
            self._start_thread(loop, attempt, call, context, info)
        self._alive[call] = (attempt, self._monotonic())
        if self._sweeper is None:
            self._sweeper = loop.call_later(_SWEEP_EVERY, self._sweep)

    def cancel(self, call: StepCall) -> None:
        """Ask a body to stop. Async ones get CancelledError, threads a flag; then `body_ended` within the grace time."""
        if call not in self._alive:
            return
        self._ending[call] = self._monotonic() + CANCEL_GRACE
        body = call.body
        if isinstance(body, asyncio.Task):
            body.cancel()
        else:
            body.cancelled.set()

    def close(self) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        for call in list(self._alive):
            self.cancel(call)
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _start_thread(
        self, loop: asyncio.AbstractEventLoop, attempt: Attempt, call: StepCall, context: Context, info: StepInfo
    ) -> None:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="kagzi-step")

        def run() -> Any:
            result = call.fn(*call.args, **call.kwargs)
            if inspect.isawaitable(result):
                raise TypeError(
                    f"step {call.name} is a plain function that returned an awaitable; make it `async def`"
                )
            return result

        body = ThreadBody(self._pool.submit(context.run, run), info.cancelled)
        call.body = body

        def done(future: ThreadFuture[Any]) -> None:
            try:
                loop.call_soon_threadsafe(self._thread_done, attempt, call, body, future)
            except RuntimeError:
                # The loop has closed: the worker is gone, and so is its lease.
                logger.debug("step %s ended after its worker", call.step_id)

        body.future.add_done_callback(done)

    def _task_done(self, attempt: Attempt, call: StepCall, task: asyncio.Task[Any]) -> None:
        if call.body is not task or not self._take(call):
            if not task.cancelled():
                task.exception()  # seen, so that asyncio does not complain
            return
        if task.cancelled():
            if call.body_timed_out:
                attempt.step_raised(call, timeout_error(call))
            elif attempt.wants(call):
                attempt.step_raised(call, asyncio.CancelledError(f"step {call.step_id} cancelled itself"))
            else:
                attempt.body_ended(call)
        elif (error := task.exception()) is not None:
            attempt.step_raised(call, timeout_error(call) if call.body_timed_out else error)
        else:
            attempt.step_returned(call, task.result())

    def _thread_done(self, attempt: Attempt, call: StepCall, body: ThreadBody, future: ThreadFuture[Any]) -> None:
        if call.body is not body or not self._take(call):
            return
        if future.cancelled():
            attempt.body_ended(call)
        elif (error := future.exception()) is not None:
            attempt.step_raised(call, error)
        else:
            attempt.step_returned(call, future.result())

    def _take(self, call: StepCall) -> bool:
        self._ending.pop(call, None)
        return self._alive.pop(call, None) is not None

    def _sweep(self) -> None:
        now = self._monotonic()
        self._sweeper = None
        for call, (attempt, started) in list(self._alive.items()):
            age = now - started
            if age < SHOW_AFTER:
                break  # the rest is younger
            if not call.shown and call not in self._ending:
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
            self._take(call)
            attempt.step_raised(call, timeout_error(call))
        else:
            self.cancel(call)

    def _give_up(self, call: StepCall) -> None:
        attempt, _ = self._alive[call]
        logger.warning("step %s of run %s does not end although it was cancelled", call.step_id, attempt.run_id)
        self._take(call)
        if call.body_timed_out:
            attempt.step_raised(call, timeout_error(call))
        else:
            attempt.body_ended(call)


class ThreadBody:
    __slots__ = ("cancelled", "future")

    def __init__(self, future: ThreadFuture[Any], cancelled: threading.Event | None) -> None:
        self.future = future
        self.cancelled = cancelled or threading.Event()


def timeout_error(call: StepCall) -> StepTimeout:
    seconds = (call.timeout or 0) / SECOND
    return StepTimeout(f"step {call.step_id} ran longer than its timeout of {seconds:g} s")
