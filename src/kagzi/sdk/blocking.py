"""Blocking code in front of an app: each call goes to the event loop in which the app is open, and the thread that
calls waits for its answer. Nothing is written twice: `start_sync = blocking(start)` is all there is to a method.

If an app is open already, as in a worker or in a web server, its own loop is used. Else the first call opens it, in a
loop on a thread of its own that lasts until the end of `with app:`, or of the program.
"""

from __future__ import annotations

import asyncio
import atexit
import ctypes
import functools
import gc
import os
import threading
from _thread import allocate_lock
from asyncio import _get_running_loop
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager, suppress
from contextvars import copy_context
from functools import partial
from typing import Any, Concatenate, Final, Generic, NoReturn, ParamSpec, Protocol, Self, TypeVar, overload
from weakref import WeakSet

from kagzi.api.engine import Engine
from kagzi.errors import InvalidRequest, NonDeterminismError
from kagzi.process import new_event_loop
from kagzi.sdk.opening import Opening
from kagzi.sdk.replay.loop import WorkflowLoop, place_of_call
from kagzi.sdk.worker.threads import DaemonExecutor

S = TypeVar("S", bound="Reaching")
A = ParamSpec("A")
V = TypeVar("V")
E = TypeVar("E")

_LOOK_SECONDS: Final = 1.0  # how often a call that waits looks whether the loop it waits for still runs
_CLOSING_SECONDS: Final = 5.0  # at the end of the program


class Opened(Protocol):
    """An app, as its portal knows it."""

    @property
    def engine(self) -> Engine: ...

    def audited(self, name: str, service: E) -> E:
        """Returns the service of this name, whose changes are audited if the app has the database itself."""
        ...

    @property
    def opening(self) -> Opening | None:
        """Where the app is open; None if it is not."""
        ...

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    def stop_workers(self, *, wait: bool = False) -> None: ...

    def forget(self) -> object:
        """Makes the app as if it had never been opened; returns what was open, which belongs to another process."""
        ...


class Portal:
    """The ways to an app's engine: `portal()` for code in the app's event loop, `portal.wait(...)` for others."""

    def __init__(self, app: Opened) -> None:
        self._app = app
        self._guard = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None  # of the thread that is ours
        self._thread: threading.Thread | None = None
        self._entered = 0  # how many `with app:` there are
        self._blocks: dict[asyncio.Task[Any], asyncio.Event] = {}  # of `hold`, and what makes them leave
        _portals.add(self)

    def __call__(self) -> Engine:
        return self._app.engine

    def audited(self, name: str, service: E) -> E:
        """Returns the service, whose changes are audited if the app has the database itself."""
        return self._app.audited(name, service)

    def wait(self, name: str, instead: str, begin: Callable[[], Coroutine[Any, Any, V]]) -> V:
        """Returns what this coroutine returns, once the app's loop has run it. `name` is what users have called,
        `instead` what they write in an event loop."""
        self._check_blocking(name, instead)
        return _wait(self._place(), begin)

    def run(self, name: str, instead: str, main: Callable[[], Coroutine[Any, Any, V]]) -> V:
        """Runs a worker, for whose end the app waits when it is closed."""

        async def kept() -> V:
            task = asyncio.current_task()
            assert task is not None
            self._blocks[task] = asyncio.Event()
            try:
                return await main()
            finally:
                del self._blocks[task]

        return self.wait(name, instead, kept)

    @contextmanager
    def hold(self, name: str, instead: str, block: AbstractAsyncContextManager[V]) -> Iterator[V]:
        """An `async with` block in the app's loop for as long as a `with` block here lasts, or until the app closes."""
        self._check_blocking(name, instead)
        loop = self._place()
        entered, left = _Answer(), _Answer()
        leave = asyncio.Event()

        async def keep() -> None:
            task = asyncio.current_task()
            assert task is not None
            self._blocks[task] = leave
            try:
                async with block as value:
                    entered.give(value)
                    await leave.wait()
            except BaseException as error:
                entered.fail(error)  # has no effect if the block was entered
                left.fail(error)
            finally:
                self._blocks.pop(task, None)
                left.give(None)

        begun = _begin(loop, keep)
        try:
            yield entered.get(loop, begun)
        finally:
            with suppress(RuntimeError, _LoopEnded):  # then the block has been left
                loop.call_soon_threadsafe(leave.set)
                left.get(loop, begun)

    def enter(self) -> None:
        """Begins a `with app:` block."""
        self._check_blocking("with app:", "`async with app:`")
        with self._guard:
            self._entered += 1
        try:
            self._place()
        except BaseException:
            self.leave()
            raise

    def leave(self) -> None:
        """Ends a `with app:` block. The last one closes what blocking code has opened."""
        with self._guard:
            self._entered = max(0, self._entered - 1)
            if not self._entered:
                self._close()

    def end(self) -> None:
        """Closes what is open, at the end of the program."""
        self._app.stop_workers(wait=True)
        with self._guard:
            self._close(_CLOSING_SECONDS)

    def forget(self) -> None:
        """Makes the portal as if nothing were open, in a forked process, where only the thread that has forked goes
        on."""
        opening, loop = self._app.opening, self._loop
        theirs = (self._app.forget(), opening, loop, self._thread, self._blocks)
        self._guard = threading.Lock()  # another thread may have held it
        self._loop = self._thread = None
        self._entered = 0
        self._blocks = {}
        if opening is not None or loop is not None:
            # Connections that were copied are still the other process's: to close one here, as Python does when it
            # frees it, could break it there, as SQLite and epoll warn. So they are never freed, nor is what was garbage
            # in the other process already.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(theirs))
            gc.freeze()

    def _close(self, within: float | None = None) -> None:
        """Closes the app, if blocking code has opened it, after its workers have drained."""
        loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            return
        self._loop = self._thread = None
        self._app.stop_workers()
        try:
            with suppress(_LoopEnded):
                _wait(loop, self._close_here)
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(within)

    async def _close_here(self) -> None:
        for leave in self._blocks.values():
            leave.set()
        if self._blocks:
            await asyncio.wait(tuple(self._blocks))
        await self._app.close()

    def _place(self) -> asyncio.AbstractEventLoop:
        """Returns the loop in which the app is open; opens it if need be."""
        opening = self._app.opening
        if opening is None:
            with self._guard:
                opening = self._app.opening  # another thread may have opened it meanwhile
                if opening is None:
                    return self._open()
        if not opening.loop.is_running():
            raise InvalidRequest(
                f"this app was opened at {opening.place} in an event loop that does not run now, so blocking calls "
                "would wait for ever. Leave `async with app:` out, and blocking calls open it themselves, or close it"
            )
        return opening.loop

    def _open(self) -> asyncio.AbstractEventLoop:
        loop = new_event_loop()
        running = threading.Event()
        loop.call_soon(running.set)
        thread = threading.Thread(target=_run, args=(loop,), name="kagzi-portal", daemon=True)
        thread.start()
        running.wait()
        try:
            _wait(loop, self._app.open)
        except BaseException:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            raise
        if (opening := self._app.opening) is not None:
            opening.place, opening.blocking = place_of_call(), True
        self._loop, self._thread = loop, thread
        return loop

    def _check_blocking(self, name: str, instead: str) -> None:
        loop = _get_running_loop()
        if loop is not None:
            refuse_blocking(loop, name, instead)


class Reaching(Protocol):
    """What has blocking methods: it knows the portal of its app."""

    @property
    def portal(self) -> Portal: ...


class blocking(Generic[S, A, V]):
    """The blocking form of a method: `start_sync = blocking(start)`."""

    def __init__(
        self, method: Callable[Concatenate[S, A], Coroutine[Any, Any, V]], *, unless: Callable[[S], Any] | None = None
    ) -> None:
        """`unless` gives what to call instead, on the thread of the caller, or None."""
        self._method = method
        self._unless = unless
        self._name = ""
        self._plain = getattr(method, "__name__", "")
        self.__doc__ = (
            f"`{self._plain}`, for code that cannot await: it waits until that is done. Of any thread.\n\n"
            + (method.__doc__ or "")
        )

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name
        self.__qualname__ = f"{owner.__name__}.{name}"

    @overload
    def __get__(self, instance: None, owner: type[S]) -> Self: ...
    @overload
    def __get__(self, instance: S, owner: type[S]) -> Callable[A, V]: ...
    def __get__(self, instance: Any, owner: Any) -> Any:
        if instance is None:
            return self
        if self._unless is not None and (own := self._unless(instance)) is not None:
            return own

        @functools.wraps(self._method)
        def call(*args: Any, **kwargs: Any) -> Any:
            return instance.portal.wait(
                f"{self.__qualname__}()",
                f"`await ….{self._plain}(...)`",
                functools.partial(self._method, instance, *args, **kwargs),
            )

        call.__name__, call.__qualname__, call.__doc__ = self._name, self.__qualname__, self.__doc__
        return call


class blocking_iteration(Generic[S, A, V]):
    """The blocking form of a method for `async for`: `search_sync = blocking_iteration(search)`."""

    def __init__(self, method: Callable[Concatenate[S, A], AsyncIterator[V]]) -> None:
        self._method = method
        self.__doc__ = f"`{getattr(method, '__name__', '')}`, for a plain `for`.\n\n{method.__doc__ or ''}"

    def __set_name__(self, owner: type, name: str) -> None:
        self.__qualname__ = f"{owner.__name__}.{name}"

    @overload
    def __get__(self, instance: None, owner: type[S]) -> Self: ...
    @overload
    def __get__(self, instance: S, owner: type[S]) -> Callable[A, Iterator[V]]: ...
    def __get__(self, instance: Any, owner: Any) -> Any:
        if instance is None:
            return self

        def iterate(*args: Any, **kwargs: Any) -> Iterator[Any]:
            name, found = f"{self.__qualname__}()", self._method(instance, *args, **kwargs)
            return _each(partial(instance.portal.wait, name, "`async for` and the method without _sync"), found)

        iterate.__doc__ = self.__doc__
        return iterate


class blocking_block(Generic[S, A, V]):
    """The blocking form of a method of an app for `async with`: `worker_sync = blocking_block(worker)`."""

    def __init__(self, method: Callable[Concatenate[S, A], AbstractAsyncContextManager[V]]) -> None:
        self._method = method
        self._name = ""
        self._plain = getattr(method, "__name__", "")
        self.__doc__ = f"`{self._plain}`, for a plain `with`.\n\n{method.__doc__ or ''}"

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type[S]) -> Self: ...
    @overload
    def __get__(self, instance: S, owner: type[S]) -> Callable[A, AbstractContextManager[V]]: ...
    def __get__(self, instance: Any, owner: Any) -> Any:
        if instance is None:
            return self

        def hold(*args: Any, **kwargs: Any) -> AbstractContextManager[Any]:
            portal: Portal = instance.portal
            block = self._method(instance, *args, **kwargs)
            return portal.hold(f"app.{self._name}()", f"`async with app.{self._plain}():`", block)

        hold.__doc__ = self.__doc__
        return hold


def _each(wait: Callable[[Callable[[], Any]], V], found: AsyncIterator[V]) -> Iterator[V]:
    with suppress(StopAsyncIteration):
        while True:
            yield wait(found.__anext__)


class _LoopEnded(InvalidRequest):
    """The loop that should have answered runs no more."""


class _Answer:
    """The outcome of a coroutine in another thread; given once."""

    __slots__ = ("_error", "_given", "_value")

    def __init__(self) -> None:
        self._value: Any = None
        self._error: BaseException | None = None
        self._given = allocate_lock()  # released when there is an answer
        self._given.acquire()

    def give(self, value: Any) -> None:
        if self._given.locked():
            self._value = value
            self._given.release()

    def fail(self, error: BaseException) -> None:
        if self._given.locked():
            self._error = error
            self._given.release()

    def get(self, loop: asyncio.AbstractEventLoop, task: list[asyncio.Task[None]]) -> Any:
        try:
            while not self._given.acquire(timeout=_LOOK_SECONDS):
                if not loop.is_running() and not self._given.acquire(timeout=_LOOK_SECONDS):
                    raise _ended()
        except BaseException:  # Ctrl-C: what was begun for this thread is not wanted any more
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(_cancel, task)
            raise
        if isinstance(self._error, asyncio.CancelledError):
            raise _ended() from None
        if self._error is not None:
            try:
                raise self._error
            finally:
                self._error = None  # or it would hold on to itself through its traceback
        return self._value


def _wait(loop: asyncio.AbstractEventLoop, begin: Callable[[], Coroutine[Any, Any, V]]) -> V:
    answer = _Answer()

    async def run() -> None:
        try:
            answer.give(await begin())
        except BaseException as error:  # all of them, or the caller would wait for ever
            answer.fail(error)

    value: V = answer.get(loop, _begin(loop, run))
    return value


def _begin(loop: asyncio.AbstractEventLoop, run: Callable[[], Coroutine[Any, Any, None]]) -> list[asyncio.Task[None]]:
    """Has the loop run this coroutine, in the context of the code that calls: a start belongs to the caller's trace."""
    task: list[asyncio.Task[None]] = []  # here the loop puts it

    def begin() -> None:
        task.append(loop.create_task(run()))

    try:
        loop.call_soon_threadsafe(begin, context=copy_context())
    except RuntimeError:
        raise _ended() from None
    return task


def _cancel(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()


def _ended() -> _LoopEnded:
    return _LoopEnded(f"the app was closed while this call waited for it (at {place_of_call()})")


def refuse_blocking(loop: asyncio.AbstractEventLoop, name: str, instead: str) -> NoReturn:
    here = place_of_call()
    if isinstance(loop, WorkflowLoop):
        raise NonDeterminismError(f"{name} belongs in a step (it is called in a workflow at {here})")
    raise InvalidRequest(
        f"{name} would block the event loop that runs in this thread, and everything that waits in it; write "
        f"{instead} (at {here})"
    )


def _run(loop: asyncio.AbstractEventLoop) -> None:
    """Runs the thread of a portal."""
    asyncio.set_event_loop(loop)
    loop.set_default_executor(DaemonExecutor())  # the program's end does not wait for what step bodies left there
    try:
        loop.run_forever()
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.wait(left, timeout=_CLOSING_SECONDS))
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        asyncio.set_event_loop(None)
        loop.close()


_portals: WeakSet[Portal] = WeakSet()


def _forget_all() -> None:
    for portal in list(_portals):
        portal.forget()


def _end_all() -> None:
    for portal in list(_portals):
        with suppress(Exception):
            portal.end()


atexit.register(_end_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
