"""The deterministic event loop that workflow code runs on.

It is a queue of ready callbacks and a heap of timers, and nothing else: no sockets, no threads, no clock of its own.
Time is the recorded time of the last event delivered to the run, so it stands still while workflow code runs. Given
the same events in the same order, the same callbacks run in the same order, on the first execution and on every replay.

Three things about asyncio make this less obvious than it sounds.

* `asyncio.wait` and friends keep tasks in sets, whose order follows their hashes. Tasks here are hashed by their
  creation number, salted with the run (asyncio keeps all tasks of the process in one WeakSet, where equal hashes of
  different runs would pile up).
* A suspended coroutine that is dropped runs its `finally:` blocks whenever the garbage collector gets to it, wherever
  that is. So nothing is ever dropped: `evict` ends every coroutine while this loop is set as running and refuses to
  create futures, timers or tasks, so that a `finally: await refund()` ends at its first durable call.
* Async generators are finalised through hooks of the thread; during each drain they are ours. When the collector finds
  a generator that was left half-way differs from run to run, so the loop holds on to each until it is exhausted, and
  ends the others with the run. Whoever wants the `finally:` of a generator to run earlier uses `contextlib.aclosing`.

The loop must be driven from a plain callback of the host's loop, never from inside one of its tasks: from Python 3.14
on a thread can be inside one task only.
"""

from __future__ import annotations

import asyncio
import builtins
import io
import logging
import sys
import sysconfig
from asyncio import _get_running_loop, _set_running_loop
from collections import deque
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Generator, Mapping, Set
from contextvars import Context, copy_context
from heapq import heapify, heappop, heappush
from operator import methodcaller
from pathlib import Path
from sys import get_asyncgen_hooks, set_asyncgen_hooks
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeAlias, cast

from kagzi.core.instant import NEVER, SECOND, Instant, Span
from kagzi.errors import NonDeterminismError
from kagzi.sdk.replay.scope import Scope
from kagzi.sdk.replay.tasks import Handle, Timer, WorkflowTask
from kagzi.sdk.replay.unawaited import Unawaited, left, unstarted
from kagzi.sdk.replay.unwinding import Evicted, close_unstarted, untie, unwind, unwind_generator

if TYPE_CHECKING:
    from kagzi.sdk.replay.execution import Execution
    from kagzi.sdk.replay.waits import Wait

logger = logging.getLogger("kagzi.workflow")

# `open` as it is found by name, and by pathlib.
_BUILTINS: dict[str, Any] = vars(builtins)
_IO: dict[str, Any] = vars(io)
_plain_open = open

_current_task = asyncio.current_task
_Future = asyncio.Future
_FEW = 1024  # lists of this length are not worth looking through for what has ended
# A coroutine that catches every BaseException and goes on is refused this many durable calls; then it may wait.
_MOST_REFUSALS = 1_000
# A workflow that runs so many callbacks without waiting for anything never will.
_CALLBACKS_BETWEEN_LOOKS = range(1_000)
_MOST_LOOKS = 1_000
_is_done = methodcaller("done")


# What becomes of a call of workflow code that blocks.
BlockingCalls: TypeAlias = Literal["warn", "error", "off"]


class _Gone:
    """In place of an execution that was let go of: whatever is asked of it raises Evicted."""

    def __getattr__(self, name: str) -> NoReturn:
        raise Evicted


_GONE = _Gone()


class WorkflowLoop(asyncio.AbstractEventLoop):
    __slots__ = (
        "_cancelled_limit",
        "_cancelled_timers",
        "_created",
        "_generator_limit",
        "_generators",
        "_host",
        "_ordered",
        "_ready",
        "_refused",
        "_salt",
        "_task_limit",
        "_tasks",
        "blocking_calls",
        "evicting",
        "execution",
        "failed_at",
        "late",
        "mistake",
        "now",
        "root",
        "timers",
        "unawaited",
        "watched_open",
    )

    def __init__(self, execution: Execution, *, salt: int, now: Instant) -> None:
        self.execution = execution
        self.now = now
        self.root = Scope(None, "")
        self.unawaited = Unawaited(self)
        self._ready: deque[Handle] = deque()
        self.timers: list[Timer] = []  # a heap, the first of which was not cancelled
        self._tasks: list[WorkflowTask] = []
        self._generators: list[AsyncGenerator[Any, Any]] = []
        self._host: list[tuple[asyncio.AbstractEventLoop | None, Any]] = []  # what was running when this was entered
        self._ordered: dict[int, WorkflowTask] = {}
        self._salt = salt
        self.blocking_calls: BlockingCalls = "off"
        self.late: Span = 0  # how much later than `now` timers that are set now begin to run
        self.evicting = False
        self.failed_at = -1  # the newest task or timer there was when the last call failed
        self.mistake: Exception | None = None  # fails the run, even if its code never hears of it
        self._task_limit = self._generator_limit = self._cancelled_limit = _FEW
        self._cancelled_timers = self._refused = self._created = 0
        self.watched_open: Callable[..., Any] | None = None  # takes the place of `open` while workflow code runs

    @property
    def newest(self) -> int:
        """The number of the newest task or timer, as tasks are hashed."""
        return self._salt + self._created

    def release(self) -> None:
        """Forgets the execution, which holds this loop."""
        self.execution = cast("Execution", _GONE)

    # Driving.

    def __enter__(self) -> None:
        """Makes this the running loop, in place of the host's."""
        self._host.append((_get_running_loop(), get_asyncgen_hooks()))
        _set_running_loop(self)
        set_asyncgen_hooks(self._remember_generator, _discard)
        # Only now, and only if nobody else has one there: outside of workflow code `open` is the one that everybody
        # knows, without a frame of ours in its tracebacks. What another thread opens meanwhile is let pass by it.
        if self.watched_open is not None and _BUILTINS["open"] is _plain_open:
            _BUILTINS["open"] = _IO["open"] = self.watched_open

    def __exit__(self, *_: object) -> None:
        host, hooks = self._host.pop()
        _set_running_loop(host)
        set_asyncgen_hooks(*hooks)
        if host is not self and self.watched_open is not None and _BUILTINS["open"] is self.watched_open:
            _BUILTINS["open"] = _IO["open"] = _plain_open

    def drain(self) -> None:
        """Runs callbacks until none is ready."""
        host = _get_running_loop()
        if host is self:
            self._run_ready()
            return
        # As __enter__ and __exit__ do, written out because it happens for every event.
        started, dropped = get_asyncgen_hooks()
        _set_running_loop(self)
        set_asyncgen_hooks(self._remember_generator, _discard)
        watched = self.watched_open
        if watched is not None and _BUILTINS["open"] is _plain_open:
            _BUILTINS["open"] = _IO["open"] = watched
        try:
            self._run_ready()
        finally:
            _set_running_loop(host)
            set_asyncgen_hooks(started, dropped)
            if watched is not None and _BUILTINS["open"] is watched:
                _BUILTINS["open"] = _IO["open"] = _plain_open

    def _run_ready(self) -> None:
        ready = self._ready
        began: Instant | None = None
        looks = 0
        while ready:
            for _ in _CALLBACKS_BETWEEN_LOOKS:
                if not ready:
                    return
                handle = ready.popleft()
                if not handle._cancelled:
                    try:
                        handle.context.run(handle.callback, *handle.args)
                    except (SystemExit, KeyboardInterrupt) as error:
                        # Raised in a task, it has failed that task, and the run will most likely fail with it. It must
                        # not end the worker, nor the next one that takes the run over.
                        if not self.execution.replaying:
                            logger.warning("workflow %s raised %r", self.execution.describe(), error)
                    except BaseException as error:
                        self.call_exception_handler({"message": "a callback failed", "exception": error})
                del handle  # tracebacks of tasks refer to this frame, which must not refer to the task
            looks += 1
            began = self.execution.turn_goes_on(began, looks >= _MOST_LOOKS)

    def spinner(self) -> str:
        """Returns file and line at which the task stands that is to go on next."""
        task = getattr(self._ready[0].callback, "__self__", None) if self._ready else None
        return place_of_task(task) if isinstance(task, WorkflowTask) else "an unknown place"

    def next_due(self) -> Instant | None:
        """Returns when the earliest live timer is due."""
        timers = self.timers
        return timers[0].due_at if timers else None

    def first_due(self, now: Instant) -> Timer | None:
        """Returns the first timer that is due by `now`."""
        timers = self.timers
        return timers[0] if timers and timers[0].due_at <= now else None

    def fire_due(self, by: Instant) -> None:
        """Makes all timers that are due by then ready, in the order of (due time, creation)."""
        while (timer := self.first_due(by)) is not None:
            heappop(self.timers)
            self._drop_cancelled()
            self._ready.append(timer)

    def _drop_cancelled(self) -> None:
        """Drops cancelled timers from the front, so that the first one is always live."""
        timers = self.timers
        while timers and timers[0]._cancelled:
            heappop(timers)

    def evict(self) -> None:
        """Ends every coroutine of the run without running any of its effects, and breaks all reference cycles."""
        self.evicting = True
        self.unawaited.close()
        self.mistake = None
        if self._generators or not all(map(_is_done, self._tasks)):
            with self:
                self._unwind()
        self._ready.clear()
        self.timers.clear()
        self._tasks.clear()
        self._generators.clear()

    def _unwind(self) -> None:
        set_asyncgen_hooks(_discard, _discard)
        for generator in self._generators:
            close_unstarted(generator)
        left = [task for task in self._tasks if not task.done()]
        for task in left:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            # As the current task, so that `async with asyncio.timeout(…)` in a `finally:` gets as far as usual.
            asyncio.tasks._enter_task(self, task)
            try:
                unwind(task.get_coro())
            finally:
                asyncio.tasks._leave_task(self, task)
        for generator in self._generators:
            unwind_generator(generator)
        for task in left:
            # A task and what it waits for hold each other: each run that is parked would be left to the collector.
            for future in (task, getattr(task, "_fut_waiter", None)):
                if future is not None:
                    untie(future)

    def refuse(self) -> None:
        """Refuses a durable call that is made while the run is let go of."""
        self._refused += 1
        if self._refused <= _MOST_REFUSALS:
            raise Evicted

    def timer_cancelled(self) -> None:
        self._drop_cancelled()
        self._cancelled_timers += 1
        if self._cancelled_timers > self._cancelled_limit:
            # A timeout around each step of a long run leaves as many cancelled timers behind.
            self.timers = [timer for timer in self.timers if not timer._cancelled]
            heapify(self.timers)
            self._cancelled_timers = 0
            self._cancelled_limit = max(_FEW, len(self.timers))

    def report_unseen_errors(self) -> None:
        """Logs the errors of tasks that nobody has asked for, when the run ends."""
        for task in self._tasks:
            if task.done() and task._log_traceback:
                self.call_exception_handler(
                    {"message": f"task {task.get_name()} failed and nobody looked", "exception": task.exception()}
                )

    def refuse_mistakes(self, waiting: Mapping[str, Wait]) -> None:
        """Raises, when the workflow function has returned, if what it did must not be taken for success: a durable call
        was never awaited, or made on another thread. `waiting`: what tasks still wait for, beside timers."""
        if self.mistake is not None:
            raise self.mistake
        unawaited = self.unawaited
        if waiting or self.timers:
            durable: set[object] = {wait.future for wait in waiting.values()}
            durable.update(*[getattr(wait, "waiters", ()) for wait in waiting.values()])
            durable.update(each for timer in self.timers for each in timer.args if isinstance(each, _Future))
            found = unawaited.find_left(self._tasks, durable, self.failed_at)
            if found is not None:
                raise left(found, place_of_task(found))
        if unawaited.calls or unawaited.dropped:
            held = [task.get_coro() for task in self._tasks if not task.done()]
            held += [coroutine for holder in held for coroutine in unstarted(holder)]
            unawaited.refuse_at_end({id(coroutine) for coroutine in held})

    # What asyncio asks of a loop.

    def time(self) -> float:
        return self.now / SECOND

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Handle:
        handle = Handle(callback, args, copy_context() if context is None else context)
        self._ready.append(handle)
        return handle

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Handle:
        """As `call_soon` in workflow code, where libraries prefer this. From elsewhere nobody would know of it when the
        run is executed again."""
        if _get_running_loop() is self:
            return self.call_soon(callback, *args, context=context)
        raise NonDeterminismError(
            "what steps and threads tell the event loop of a workflow is not recorded; return it from the step "
            f"(loop.call_soon_threadsafe was called at {place_of_call()})"
        )

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
        if when != when:
            raise ValueError("a timer cannot be due at NaN")
        if self.evicting:
            self.refuse()
        self._created += 1
        step_id = self.current_scope().identity("@" + name)
        due_at = when * SECOND + self.late
        timer = Timer(
            callback,
            args,
            copy_context() if context is None else context,
            loop=self,
            _when=when,
            due_at=round(due_at) if due_at < NEVER else NEVER,
            number=self._created,
            step_id=step_id,
            created_at=self.now,
        )
        heappush(self.timers, timer)
        return timer

    def future(self) -> asyncio.Future[Any]:
        """Makes a future for calls of ours."""
        if self.evicting:
            self.refuse()
        return _Future(loop=self)

    def create_future(self) -> asyncio.Future[Any]:
        caller = sys._getframe(1)
        if caller.f_code in _WAITS:
            for task in caller.f_locals.get("fs", (caller.f_locals.get("inner"),)):
                if type(task) is WorkflowTask:
                    task.waited_for = True
        elif caller.f_code is _WRAP_FUTURE and not self.evicting:
            # What the thread has done would come by call_soon_threadsafe, and the run wait for ever.
            raise NonDeterminismError(
                f"a thread belongs in a step (asyncio.wrap_future was called at {place_of_call()})"
            )
        return self.future()

    def create_task(
        self,
        coro: Coroutine[Any, Any, Any] | Generator[Any, Any, Any],
        *,
        name: object = None,
        context: Context | None = None,
        eager_start: bool | None = None,  # noqa: ARG002  a task never starts inside its creator here: one order for all
    ) -> WorkflowTask:
        if not asyncio.iscoroutine(coro):
            raise TypeError(f"a coroutine was expected, got {coro!r}")
        if self.evicting:
            coro.close()
            self.refuse()
        caller = sys._getframe(1)
        if caller.f_code in _ENSURES and (shuffled := _shuffled(caller)) is not None:
            return self._create_in_order(coro, shuffled)
        return self._create(coro, name, context)

    def _create(self, coro: Coroutine[Any, Any, Any], name: object, context: Context | None) -> WorkflowTask:
        label = str(name) if name is not None else getattr(coro, "__name__", None) or type(coro).__name__
        scope = self.current_scope().child(label)
        self._created += 1
        task = WorkflowTask(coro, self, scope, self._salt + self._created, context)
        self.unawaited.become_task(task, coro)
        self._remember(task)
        return task

    def _create_in_order(self, coro: Coroutine[Any, Any, Any], shuffled: object) -> WorkflowTask:
        """Makes a task for as_completed, which asks for them in the order of a set of coroutines, that of their ids.

        They are made all at once, in the order in which the user has listed them.
        """
        if id(coro) not in self._ordered:
            if not isinstance(shuffled, Collection) or isinstance(shuffled, Set):
                for other in shuffled if isinstance(shuffled, Set) else [coro]:
                    if asyncio.iscoroutine(other):
                        other.close()
                raise NonDeterminismError(
                    "asyncio.as_completed would start these coroutines in an order that differs from run to run; "
                    f"pass it a list (at {place_of_call()})"
                )
            for other in shuffled:
                if asyncio.iscoroutine(other) and id(other) not in self._ordered:
                    self._ordered[id(other)] = self._create(other, None, None)
        return self._ordered.pop(id(coro))

    def create_branch(self, coro: Coroutine[Any, Any, Any], scope: Scope, context: Context) -> WorkflowTask:
        """Makes a task whose scope is given: a branch of a group."""
        if self.evicting:
            coro.close()
            self.refuse()
        self._created += 1
        task = WorkflowTask(coro, self, scope, self._salt + self._created, context)
        self.unawaited.become_task(task, coro)
        self._remember(task)
        return task

    def start(self, coro: Coroutine[Any, Any, Any], context: Context | None) -> WorkflowTask:
        """Makes the task of the workflow function itself; its scope is the root."""
        task = WorkflowTask(coro, self, self.root, self._salt, context)
        self._remember(task)
        return task

    def waiting_above(self) -> list[FrameType]:
        """Returns where the tasks wait that have started the one that is running, the nearest first."""
        frames: list[FrameType] = []
        scope = self.current_scope().parent
        while scope is not None:
            for task in self._tasks:
                if task.scope is scope and not task.done():
                    frames += _suspended(task.get_coro())
            scope = scope.parent
        return frames

    def current_scope(self) -> Scope:
        task = _current_task(self)
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
        self._tasks.append(task)
        if len(self._tasks) > self._task_limit:
            # A run of many steps makes many tasks; keep the live ones, and those whose error nobody has seen.
            self._tasks = [task for task in self._tasks if not task.done() or task._log_traceback]
            self._task_limit = max(_FEW, 2 * len(self._tasks))

    def _remember_generator(self, generator: AsyncGenerator[Any, Any]) -> None:
        self._generators.append(generator)
        if len(self._generators) > self._generator_limit:
            self._generators = [
                one
                for one in self._generators
                if one.ag_frame is not None  # type: ignore[attr-defined]
            ]
            self._generator_limit = max(_FEW, 2 * len(self._generators))


def _discard(_generator: AsyncGenerator[Any, Any]) -> None:
    pass


_WAITS = {asyncio.tasks._wait.__code__, asyncio.shield.__code__}  # type: ignore[attr-defined]
_WRAP_FUTURE = asyncio.wrap_future.__code__
_ENSURES = {
    function.__code__
    for function in (asyncio.ensure_future, getattr(asyncio.tasks, "_ensure_future", None))
    if function is not None
}


def _shuffled(caller: FrameType) -> object | None:
    """Returns what was passed to asyncio.as_completed, if that makes this task."""
    frame: FrameType | None = caller
    while frame is not None and frame.f_globals is asyncio.tasks.__dict__:
        if frame.f_code.co_qualname in ("as_completed", "_AsCompletedIterator.__init__"):
            return frame.f_locals.get("fs", frame.f_locals.get("aws"))
        frame = frame.f_back
    return None


_OURS = str(Path(__file__).parents[2])
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def place_of_call() -> str:
    """Returns file and line of the user's code that led here: the nearest frame that is no library's, if there is one.
    A library may have started a task of its own; then it is where the user's code waits for that."""
    frames = _stack(sys._getframe(1))
    loop = _get_running_loop()
    if isinstance(loop, WorkflowLoop) and not any(_is_users(frame) for frame in frames):
        frames += loop.waiting_above()
    place = next((frame for frame in frames if _is_users(frame)), None) or next(filter(_is_telling, frames), None)
    return (
        "an unknown place"
        if place is None
        else f"{place.f_code.co_filename}:{place.f_lineno} in {place.f_code.co_name}"
    )


def _stack(frame: FrameType | None) -> list[FrameType]:
    """Yields this frame and those that called it, up to the loop."""
    frames = []
    while frame is not None and frame.f_code is not WorkflowLoop._run_ready.__code__:
        frames.append(frame)
        frame = frame.f_back
    return frames


def _suspended(awaited: Any) -> list[FrameType]:
    """Yields the frames of a coroutine that waits, the innermost first."""
    frames: list[FrameType] = []
    while awaited is not None:
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
        if frame is not None:
            frames.append(frame)
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)
    return frames[::-1]


def _is_telling(frame: FrameType) -> bool:
    """Returns whether a frame tells something: it is not of the code that every call passes through."""
    return frame.f_globals.get("__name__", "").partition(".")[0] not in ("asyncio", "kagzi", "concurrent", "anyio")


def _is_users(frame: FrameType) -> bool:
    return _is_telling(frame) and not frame.f_code.co_filename.startswith(_LIBRARIES)


def place_of_task(task: WorkflowTask) -> str:
    """Returns file and line of the user's code at which a task waits."""
    place = "an unknown place"
    coroutine: Any = task.get_coro()
    while (frame := getattr(coroutine, "cr_frame", None)) is not None:
        if not frame.f_code.co_filename.startswith((*_LIBRARIES, _OURS)):
            place = f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
        coroutine = coroutine.cr_await
    return place


def _forbid(method: str, what: str) -> Callable[..., NoReturn]:
    def forbidden(self: WorkflowLoop, *args: Any, **kwargs: Any) -> NoReturn:  # noqa: ARG001
        raise NonDeterminismError(f"{what} belongs in a step (loop.{method} was called at {place_of_call()})")

    forbidden.__name__ = method
    return forbidden


_FORBIDDEN = {
    "a thread": ("run_in_executor", "set_default_executor", "shutdown_default_executor"),
    "network I/O": (
        *("getaddrinfo", "getnameinfo", "create_connection", "create_server", "start_tls", "sendfile"),
        *("create_unix_connection", "create_unix_server", "create_datagram_endpoint", "connect_accepted_socket"),
        *("sock_recv", "sock_recv_into", "sock_recvfrom", "sock_recvfrom_into", "sock_sendall", "sock_sendto"),
        *("sock_connect", "sock_accept", "sock_sendfile"),
        *("add_reader", "remove_reader", "add_writer", "remove_writer"),
    ),
    "a subprocess": ("subprocess_shell", "subprocess_exec", "connect_read_pipe", "connect_write_pipe"),
    "a signal handler": ("add_signal_handler", "remove_signal_handler"),
    "running a loop": ("run_forever", "run_until_complete", "stop", "close", "shutdown_asyncgens"),
}
for _what, _methods in _FORBIDDEN.items():
    for _method in _methods:
        setattr(WorkflowLoop, _method, _forbid(_method, _what))
WorkflowLoop.__abstractmethods__ = frozenset()  # type: ignore[attr-defined]
