"""A process of the simulated world: an event loop of its own on the world's time, which can die, stop and go on.

All processes share one real loop, the host, and so one order of events. But each has a loop object of its own through
which everything it does is scheduled, so a crash is nothing but not running its callbacks any more: no `finally`, no
last message, memory lost, as after kill -9. A pause holds callbacks back and lets them run later, in order, as SIGSTOP
and a long garbage collection do; the clock goes on meanwhile.
"""

from __future__ import annotations

import asyncio
from asyncio import _set_running_loop
from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Any

from kagzi.core.instant import Instant, Span
from kagzi.testing.clock import VirtualClock
from kagzi.testing.virtual import VirtualLoop

if TYPE_CHECKING:
    from kagzi.testing.simulation.world import World


class Crash(BaseException):
    """Raised by whatever kills the process it runs in. Never caught by workflow or product code."""


class _Handle:
    __slots__ = ("_cancelled", "args", "callback", "hosted")

    def __init__(self, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        self.callback = callback
        self.args = args
        self._cancelled = False
        self.hosted: asyncio.Handle | None = None

    def cancel(self) -> None:
        if not self._cancelled:
            self._cancelled = True
            if self.hosted is not None:
                self.hosted.cancel()

    def cancelled(self) -> bool:
        return self._cancelled


class ProcessLoop(asyncio.AbstractEventLoop):
    """What the code of a process sees as its event loop."""

    def __init__(self, host: VirtualLoop, process: Process) -> None:
        self.process = process
        self.alive = True
        self._host = host
        self._held: list[tuple[_Handle, Context]] | None = None
        self._tasks: list[asyncio.Task[Any]] = []

    # Dying and pausing.

    def kill(self) -> None:
        self.alive = False

    @property
    def paused(self) -> bool:
        return self._held is not None

    def pause(self) -> None:
        if self._held is None:
            self._held = []

    def resume(self) -> None:
        held, self._held = self._held, None
        for handle, context in held or ():
            self._host.call_soon(self._run, handle, context=context)

    def bury(self) -> None:
        """Close what the process left behind, so that nothing of it comes to life in a garbage collection."""
        self.alive = False
        _set_running_loop(self)
        try:
            for task in self._tasks:
                if not task.done():
                    task._log_destroy_pending = False  # type: ignore[attr-defined]
                    _close(task.get_coro())
        finally:
            _set_running_loop(None)
            self._tasks.clear()

    def _run(self, handle: _Handle) -> None:
        if handle._cancelled or not self.alive:
            return
        if self._held is not None:
            self._held.append((handle, copy_context()))
            return
        _set_running_loop(self)
        try:
            handle.callback(*handle.args)
        except Crash:
            self.kill()
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            self.process.trouble(error)
        finally:
            _set_running_loop(self._host)

    # What asyncio asks of a loop.

    def time(self) -> float:
        return self._host.time()

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> _Handle:
        handle = _Handle(callback, args)
        handle.hosted = self._host.call_soon(self._run, handle, context=context)
        return handle

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> _Handle:
        return self.call_soon(callback, *args, context=context)

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> _Handle:
        return self.call_at(self._host.time() + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> _Handle:
        handle = _Handle(callback, args)
        handle.hosted = self._host.call_at(when, self._run, handle, context=context)
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]
        self,
        coro: Coroutine[Any, Any, Any],
        *,
        name: str | None = None,
        context: Context | None = None,
    ) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name=name or "task", context=context)
        tasks = self._tasks
        tasks.append(task)
        if len(tasks) & 255 == 0:
            self._tasks = [task for task in tasks if not task.done()]
        return task

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return self.alive

    def is_closed(self) -> bool:
        return False

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.call_exception_handler(context)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if self.alive:
            self.process.trouble(context.get("exception") or RuntimeError(context.get("message")))


ProcessLoop.__abstractmethods__ = frozenset()  # type: ignore[attr-defined]


class SkewedClock:
    """A process's own idea of the time of day, and its own count of the time since some moment. Lengths it measures as
    everybody does."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self.skew: Span = 0
        self.origin: Span = 0

    def now(self) -> Instant:
        return self._clock.now() + self.skew

    def monotonic(self) -> Span:
        return self._clock.monotonic() + self.origin


class Process:
    """Something that can be killed. What it does is up to `main`, which is called anew at each start."""

    world: World  # said by the world when it makes the process

    def __init__(self, name: str, host: VirtualLoop, on_trouble: Callable[[Process, BaseException], None]) -> None:
        self.name = name
        self.clock = SkewedClock(host.clock)
        self.cut_off = False  # from the store and from all other processes
        self.lives = 0
        self.resumed_at: float = -1.0
        self.loop = ProcessLoop(host, self)  # type: ignore[abstract]
        self.loop.alive = False
        self.beside = self.loop  # the loop of the thread that sends heartbeats
        self._host = host
        self._on_trouble = on_trouble
        self._graves: list[ProcessLoop] = []
        self._spawned: list[Coroutine[Any, Any, Any]] = []

    @property
    def alive(self) -> bool:
        return self.loop.alive

    def start(self, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.lives += 1
        self.loop = ProcessLoop(self._host, self)  # type: ignore[abstract]
        self.beside = ProcessLoop(self._host, self)  # type: ignore[abstract]
        self._graves += (self.loop, self.beside)
        self.spawn(main())

    def spawn(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        """Begin a task in this process."""
        self._begin(self.loop, coroutine)

    def spawn_beside(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        """Begin a task that goes on while the loop of this process is blocked."""
        self._begin(self.beside, coroutine)

    def _begin(self, loop: ProcessLoop, coroutine: Coroutine[Any, Any, Any]) -> None:
        self._spawned.append(coroutine)
        loop.call_soon(lambda: loop.create_task(coroutine).add_done_callback(self._ended))

    def _ended(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.trouble(error)

    def crash(self) -> None:
        """kill -9. Called from within the process itself, the caller should raise `Crash` next."""
        self.loop.kill()
        self.beside.kill()

    def pause(self) -> None:
        """SIGSTOP: nothing of it goes on."""
        self.loop.pause()
        self.beside.pause()

    def block(self) -> None:
        """A body keeps the event loop to itself. What runs beside it goes on."""
        self.loop.pause()

    def resume(self) -> None:
        self.resumed_at = self._host.time()
        self.loop.resume()
        self.beside.resume()

    def bury(self) -> None:
        for loop in self._graves:
            loop.bury()
        self._graves.clear()
        for coroutine in self._spawned:
            _close(coroutine)
        self._spawned.clear()

    def trouble(self, error: BaseException) -> None:
        self._on_trouble(self, error)


def _close(coroutine: Any) -> None:
    for _ in range(8):
        try:
            coroutine.close()
        except RuntimeError:
            continue  # it awaits in a `finally`
        except BaseException:
            return
        else:
            return
