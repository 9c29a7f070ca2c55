"""The deterministic event loop that workflow code runs on.

It is a queue of ready callbacks and a heap of timers, and nothing else: no sockets, no threads, no clock of its own.
Time is the recorded time of the last event delivered to the run, so it stands still while workflow code runs. Given
the same events in the same order, the same callbacks run in the same order, on the first execution and on every replay.

Three things about asyncio make this less obvious than it sounds.

* `asyncio.wait` and friends keep tasks in sets, whose order follows their hashes. Tasks here are hashed by their
  creation number, salted with the run (asyncio keeps all tasks of the process in one WeakSet, where equal hashes of
  different runs would pile up).
* A suspended coroutine that is dropped runs its `finally:` blocks whenever the garbage collector gets to it, wherever
  that is. So nothing is ever dropped: `evict` closes every coroutine while this loop is set as running and refuses to
  create futures, timers or tasks, so that a `finally: await refund()` ends at its first durable call.
* Async generators are finalised through hooks of the thread; during each drain they are ours.

The loop must be driven from a plain callback of the host's loop, never from inside one of its tasks: from Python 3.14
on a thread can be inside one task only.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from asyncio import _get_running_loop, _set_running_loop
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextvars import Context, copy_context
from heapq import heappop, heappush
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from kagzi.core.instant import SECOND, Instant
from kagzi.errors import NonDeterminismError
from kagzi.sdk.replay.scope import Scope

if TYPE_CHECKING:
    from kagzi.sdk.replay.execution import Execution

logger = logging.getLogger("kagzi.workflow")


class Evicted(BaseException):
    """Raised by every durable call while a run is being let go of. Never recorded, never shown."""


class Handle:
    """A callback that is ready to run."""

    __slots__ = ("_cancelled", "args", "callback", "context")

    def __init__(self, callback: Callable[..., object], args: tuple[Any, ...], context: Context | None) -> None:
        self.callback = callback
        self.args = args
        self.context = copy_context() if context is None else context
        self._cancelled = False

    def cancel(self) -> None:
        self._cancelled = True

    def cancelled(self) -> bool:
        return self._cancelled


class Timer(Handle):
    """A callback that is due at an instant. Costs nothing unless the run has nothing else to do."""

    __slots__ = ("_when", "created_at", "due_at", "number", "step_id")

    def __init__(
        self,
        when: float,
        number: int,
        step_id: str,
        created_at: Instant,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: Context | None,
    ) -> None:
        super().__init__(callback, args, context)
        self._when = when
        # Due times are compared in whole microseconds: floats near 2e9 are that coarse, and the store counts so too.
        self.due_at = round(when * SECOND)
        self.number = number
        self.step_id = step_id
        self.created_at = created_at

    def when(self) -> float:
        return self._when

    def __lt__(self, other: Timer) -> bool:
        return (self.due_at, self.number) < (other.due_at, other.number)


class WorkflowTask(asyncio.Task[Any]):
    """A task of a workflow: hashed by its creation number, with the scope its steps are counted in."""

    def __init__(
        self, coro: Coroutine[Any, Any, Any], loop: WorkflowLoop, scope: Scope, number: int, context: Context | None
    ) -> None:
        # Before super().__init__, which puts the task into a WeakSet and so hashes it.
        self._hash = number
        self.scope = scope
        super().__init__(coro, loop=loop, name=scope.prefix[:-1] or "workflow", context=context)

    def __hash__(self) -> int:
        return self._hash

    def set_name(self, value: object) -> None:
        self.scope.rename(str(value))
        super().set_name(value)


class WorkflowLoop(asyncio.AbstractEventLoop):
    def __init__(self, execution: Execution, *, salt: int, now: Instant) -> None:
        self.execution = execution
        self.now = now
        self.root = Scope(None, "")
        self.evicting = False
        self._ready: deque[Handle] = deque()
        self._timers: list[Timer] = []
        self._tasks: list[WorkflowTask] = []
        self._generators: list[AsyncGenerator[Any, Any]] = []
        self._salt = salt
        self._created = 0

    # Driving.

    def drain(self) -> None:
        """Run callbacks until none is ready."""
        ready = self._ready
        host = _get_running_loop()
        hooks = sys.get_asyncgen_hooks()
        _set_running_loop(self)
        sys.set_asyncgen_hooks(self._generators.append, self._collected)
        try:
            while ready:
                handle = ready.popleft()
                if not handle._cancelled:
                    try:
                        handle.context.run(handle.callback, *handle.args)
                    except (SystemExit, KeyboardInterrupt):
                        raise
                    except BaseException as error:
                        self.call_exception_handler({"message": "callback failed", "exception": error})
        finally:
            _set_running_loop(host)
            sys.set_asyncgen_hooks(*hooks)

    def next_due(self) -> Instant | None:
        """When the earliest live timer is due."""
        timers = self._timers
        while timers and timers[0]._cancelled:
            heappop(timers)
        return timers[0].due_at if timers else None

    def first_due(self, now: Instant) -> Timer | None:
        """The first timer that is due by `now`."""
        due_at = self.next_due()
        return self._timers[0] if due_at is not None and due_at <= now else None

    def fire_due(self) -> None:
        """Make all timers that are due by the loop's time ready, in the order of (due time, creation)."""
        while (timer := self.first_due(self.now)) is not None:
            heappop(self._timers)
            self._ready.append(timer)

    def evict(self) -> None:
        """Close every coroutine of the run without running any of its effects, and break all reference cycles."""
        self.evicting = True
        host = _get_running_loop()
        hooks = sys.get_asyncgen_hooks()
        _set_running_loop(self)
        sys.set_asyncgen_hooks(lambda _: None, lambda _: None)
        try:
            for task in self._tasks:
                if not task.done():
                    task._log_destroy_pending = False  # type: ignore[attr-defined]
                    coroutine = task.get_coro()
                    if coroutine is not None:
                        _close(coroutine)
            for generator in self._generators:
                _close_generator(generator)
        finally:
            _set_running_loop(host)
            sys.set_asyncgen_hooks(*hooks)
            self._ready.clear()
            self._timers.clear()
            self._tasks.clear()
            self._generators.clear()

    def _collected(self, generator: AsyncGenerator[Any, Any]) -> None:
        # Called when a generator that was not exhausted is garbage collected. Only a collection that follows from
        # this run's own code happens at the same point on replay; any other is ignored, and the frame is discarded.
        if _get_running_loop() is self and not self.evicting:
            self.create_task(generator.aclose(), name="aclose")

    # What asyncio asks of a loop.

    def time(self) -> float:
        return self.now / SECOND

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Handle:
        handle = Handle(callback, args, context)
        self._ready.append(handle)
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Handle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
        name: str = "sleep",
    ) -> Timer:
        if self.evicting:
            raise Evicted
        self._created += 1
        step_id = self.current_scope().identity("@" + name)
        timer = Timer(when, self._created, step_id, self.now, callback, args, context)
        heappush(self._timers, timer)
        return timer

    def create_future(self) -> asyncio.Future[Any]:
        if self.evicting:
            raise Evicted
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]
        self,
        coro: Coroutine[Any, Any, Any] | Generator[Any, Any, Any],
        *,
        name: object = None,
        context: Context | None = None,
        eager_start: bool | None = None,  # noqa: ARG002  a task never starts inside its creator here: one order for all
    ) -> WorkflowTask:
        assert asyncio.iscoroutine(coro)
        if self.evicting:
            coro.close()
            raise Evicted
        label = str(name) if name is not None else getattr(coro, "__name__", type(coro).__name__)
        scope = self.current_scope().child(label)
        self._created += 1
        task = WorkflowTask(coro, self, scope, self._salt + self._created, context)
        self._remember(task)
        return task

    def start(self, coro: Coroutine[Any, Any, Any], context: Context | None) -> WorkflowTask:
        """The task of the workflow function itself; its scope is the root."""
        task = WorkflowTask(coro, self, self.root, self._salt, context)
        self._remember(task)
        return task

    def current_scope(self) -> Scope:
        task = asyncio.current_task(self)
        return task.scope if type(task) is WorkflowTask else self.root

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return _get_running_loop() is self

    def is_closed(self) -> bool:
        return False

    def get_exception_handler(self) -> None:
        return None

    def get_task_factory(self) -> None:
        return None

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.call_exception_handler(context)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if self.evicting or self.execution.replaying:
            return
        logger.error(
            "in workflow %s: %s",
            self.execution.describe(),
            context.get("message"),
            exc_info=context.get("exception"),
        )

    def _remember(self, task: WorkflowTask) -> None:
        tasks = self._tasks
        tasks.append(task)
        if len(tasks) & 1023 == 0:
            # A run of many steps makes many tasks; keep the live ones only.
            self._tasks = [task for task in tasks if not task.done()]


def _close(coroutine: Any) -> None:
    # A coroutine may swallow GeneratorExit and go on to another await; a few rounds end all but the pathological.
    for _ in range(8):
        try:
            coroutine.close()
        except RuntimeError as error:
            if "ignored GeneratorExit" in str(error):
                continue
            return
        except BaseException:
            return
        else:
            return
    logger.warning("a coroutine refuses to end when its run is let go of; it is abandoned: %r", coroutine)


def _close_generator(generator: AsyncGenerator[Any, Any]) -> None:
    closing = generator.aclose()
    try:
        closing.send(None)  # type: ignore[attr-defined]
    except BaseException:
        return
    _close(closing)


def place_of_call() -> str:
    """File and line of the user's code that led here: the first frame outside asyncio and Kagzi."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module.partition(".")[0] not in ("asyncio", "kagzi", "concurrent", "anyio"):
            return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
        frame = frame.f_back
    return "an unknown place"


def _forbid(method: str, what: str) -> Callable[..., NoReturn]:
    def forbidden(self: WorkflowLoop, *args: Any, **kwargs: Any) -> NoReturn:  # noqa: ARG001
        raise NonDeterminismError(f"{what} belongs in a step (loop.{method} was called at {place_of_call()})")

    forbidden.__name__ = method
    return forbidden


_FORBIDDEN = {
    "a thread": ("run_in_executor", "set_default_executor", "call_soon_threadsafe", "shutdown_default_executor"),
    "network I/O": (
        "getaddrinfo getnameinfo create_connection create_server start_tls sendfile create_unix_connection "
        "create_unix_server create_datagram_endpoint connect_accepted_socket sock_recv sock_recv_into sock_recvfrom "
        "sock_recvfrom_into sock_sendall sock_sendto sock_connect sock_accept sock_sendfile add_reader remove_reader "
        "add_writer remove_writer"
    ).split(),
    "a subprocess": ("subprocess_shell", "subprocess_exec", "connect_read_pipe", "connect_write_pipe"),
    "a signal handler": ("add_signal_handler", "remove_signal_handler"),
    "running a loop": ("run_forever", "run_until_complete", "stop", "close", "shutdown_asyncgens"),
}
for _what, _methods in _FORBIDDEN.items():
    for _method in _methods:
        setattr(WorkflowLoop, _method, _forbid(_method, _what))
WorkflowLoop.__abstractmethods__ = frozenset()  # type: ignore[attr-defined]
