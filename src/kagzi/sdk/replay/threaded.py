"""`def` workflows: a plain function that runs in a thread, and waits there for its steps.

The thread and the workflow loop take turns. While the function computes, the loop's thread stands still; when the
function calls something durable, it hands over a coroutine and stands still itself until the loop has awaited it. So
at every moment exactly one of the two runs, as with an `await`, and all rules of replay hold unchanged: to the loop a
`def` workflow is a coroutine like any other (`run_in_thread`).

When the run is let go of, the function is unwound: its blocking call raises `Suspended`, and so does every durable call
it makes on the way out. Threads are used again by later runs.
"""

from __future__ import annotations

import logging
import threading
from _thread import allocate_lock
from asyncio import _get_running_loop, _set_running_loop
from collections.abc import Callable, Coroutine, Mapping
from contextvars import copy_context
from typing import Any, TypeVar

from kagzi.sdk.replay.loop import WorkflowLoop
from kagzi.sdk.replay.side_threads import EngineThread
from kagzi.sdk.replay.unwinding import Evicted

logger = logging.getLogger("kagzi.workflow")

T = TypeVar("T")

# A function that catches every BaseException is refused this many durable calls; then its thread is given up.
_MOST_REFUSALS = 1_000


class _Local(threading.local):
    bridge: Bridge | None = None  # every durable call asks, and an attribute that is missing is slow to be missed


_local = _Local()


class Suspended(Evicted):
    """Raised in the thread of a `def` workflow when its run is let go of."""


def current_bridge() -> Bridge | None:
    """Returns the bridge to its loop, for the workflow function that runs in this thread."""
    return _local.bridge


def in_turn(coroutine: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
    """Returns what a durable call gives to workflow code: something to await; in the thread of a `def` workflow, the
    result.

    A type cannot say that, so it says what nearly all workflows see; `Step.call` has the other one.
    """
    bridge = _local.bridge
    if bridge is not None:
        result: Any = bridge.call(coroutine)
        return result  # type: ignore[no-any-return]
    return coroutine


async def run_in_thread(fn: Callable[..., T], args: tuple[Any, ...], kwargs: Mapping[str, Any], threads: Threads) -> T:
    """Runs a plain function as a workflow. To be awaited on a workflow loop."""
    loop = _get_running_loop()
    assert isinstance(loop, WorkflowLoop)
    context = copy_context()
    bridge = Bridge(loop, lambda: context.run(fn, *args, **kwargs), threads)
    bridge.start()
    while (coroutine := bridge.request) is not None:
        try:
            value = await coroutine
        except (Evicted, GeneratorExit):
            bridge.unwind()
            raise
        except BaseException as error:
            bridge.answer(None, error)
        else:
            bridge.answer(value, None)
    if bridge.error is not None:
        try:
            raise bridge.error
        finally:
            bridge.error = None
    result: T = bridge.value
    return result


class Bridge:
    """Between one workflow function in its thread and the loop it belongs to: control is on one side only."""

    def __init__(self, loop: WorkflowLoop, function: Callable[[], Any], threads: Threads) -> None:
        self.request: Coroutine[Any, Any, Any] | None = None  # what the function waits for; None when it has ended
        # The answer to the request, or how the function ended.
        self.value: Any = None
        self.error: BaseException | None = None
        self._loop = loop
        self._function = function
        self._threads = threads
        self._suspended = False
        self._refused = 0
        self._thread_may_go_on = allocate_lock()
        self._loop_may_go_on = allocate_lock()
        self._thread_may_go_on.acquire()
        self._loop_may_go_on.acquire()

    # On the loop's side. Each returns when the function waits again or has ended.

    def start(self) -> None:
        self._threads.run(self)
        self._loop_may_go_on.acquire()

    def answer(self, value: Any, error: BaseException | None) -> None:
        self.request, self.value, self.error = None, value, error
        self._thread_may_go_on.release()
        self._loop_may_go_on.acquire()

    def unwind(self) -> None:
        self._suspended = True
        self.answer(None, Suspended())
        self.value = self.error = None

    # On the thread's side.

    def run(self, done: Callable[[], None]) -> None:
        _local.bridge = self
        _set_running_loop(self._loop)
        try:
            value, error = self._function(), None
        except BaseException as raised:
            value, error = None, raised
        _set_running_loop(None)
        _local.bridge = None
        self.request, self.value, self.error = None, value, error
        del value, error
        done()
        self._loop_may_go_on.release()

    def call(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        if self._suspended:
            coroutine.close()
            self._refuse()
        self.request = coroutine
        del coroutine
        self._loop_may_go_on.release()
        self._thread_may_go_on.acquire()
        value, error, self.value, self.error = self.value, self.error, None, None
        if error is not None:
            try:
                raise error
            finally:
                del error
        return value

    def _refuse(self) -> None:
        self._refused += 1
        if self._refused <= _MOST_REFUSALS:
            raise Suspended
        logger.warning("%r does not end when its run is let go of; its thread is given up", self._function)
        self.request = None
        self._loop_may_go_on.release()
        while True:
            self._thread_may_go_on.acquire()


class Threads:
    """Threads for workflow functions, one for each that runs; up to `idle` of them wait for the next one."""

    def __init__(self, idle: int = 32) -> None:
        self._most_idle = idle
        self._idle: list[_Thread] = []
        self._closed = False

    def run(self, bridge: Bridge) -> None:
        try:
            thread = self._idle.pop()
        except IndexError:
            thread = _Thread(self)
        thread.run(bridge)

    def close(self) -> None:
        """Ends the idle threads now, and the others when they become idle."""
        self._closed = True
        while self._idle:
            self._idle.pop().run(None)

    def give_back(self, thread: _Thread) -> bool:
        """Called in the thread just before it hands control back; returns whether the thread is kept."""
        if self._closed or len(self._idle) >= self._most_idle:
            return False
        self._idle.append(thread)
        return True


class _Thread:
    def __init__(self, pool: Threads) -> None:
        self._pool = pool
        self._bridge: Bridge | None = None
        self._work = allocate_lock()
        self._work.acquire()
        self._kept = True
        EngineThread(target=self._main, name="kagzi-workflow", daemon=True).start()

    def run(self, bridge: Bridge | None) -> None:
        self._bridge = bridge
        self._work.release()

    def _main(self) -> None:
        while self._kept:
            self._work.acquire()
            bridge, self._bridge = self._bridge, None
            if bridge is None:
                return
            bridge.run(self._done)
            del bridge

    def _done(self) -> None:
        self._kept = self._pool.give_back(self)
