"""Hosts workers in a process: tells them settings, passes signals on, brings them to their end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from typing import Any

from kagzi.core.limits import check_name
from kagzi.errors import InvalidRequest
from kagzi.process import fewer_collections, new_event_loop
from kagzi.sdk.blocking import Portal
from kagzi.sdk.context import SilentWhileReplaying
from kagzi.sdk.worker import forks
from kagzi.sdk.worker.ctrl_c import ctrl_c_calls
from kagzi.sdk.worker.member import Member
from kagzi.sdk.worker.threads import DaemonExecutor
from kagzi.sdk.worker.worker import Worker

logger = logging.getLogger("kagzi")

MOST_AT_ONCE = 10_000
_STOPS = (signal.SIGTERM, signal.SIGINT)
_LAST_WORDS_SECONDS = 5.0  # after a second signal


class HostedWorker:
    """A worker that a thread is given to: `app.run_worker()`, until a signal, an operator or the app ends it."""

    def __init__(
        self,
        hosted: Callable[[], contextlib.AbstractAsyncContextManager[Worker]],
        *,
        app: contextlib.AbstractAsyncContextManager[object],
        open_already: bool,
        portal: Portal,
        stops: dict[threading.Thread, Callable[[], object]],
        ours: Member | None,
    ) -> None:
        """`stops` holds, by thread, a function that ends this worker for as long as it lasts; `ours` is this process as
        one of several."""
        self._hosted = hosted
        self._app = app
        self._portal = portal
        self._stops = stops
        self._ours = ours
        self._thread = threading.current_thread()
        self._signalled = self._thread is threading.main_thread()
        # Blocking code of this process uses the app, too, or may begin to at any moment.
        self._shared = open_already or not self._signalled
        self._signals = 0
        self._workers: list[Worker] = []
        self._receivers: list[Callable[[int], object]] = []  # of signals, once there is a loop
        self._task: asyncio.Task[Any] | None = None
        self._loop: asyncio.AbstractEventLoop
        self._stop: asyncio.Event

    def run(self) -> None:
        if self._signalled:
            forks.keep_from_children(_STOPS)
        if self._shared:
            with _signals_go_to(self._receivers) if self._signalled else contextlib.nullcontext():
                self._portal.run("app.run_worker()", "`async with app.worker():`", self._main)
            return
        if self._signalled:
            gc.freeze()  # what the program has loaded by now stays
        with contextlib.suppress(asyncio.CancelledError):
            _run(self._main())

    async def _main(self) -> None:
        self._stop = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._stops[self._thread] = lambda: self._loop.call_soon_threadsafe(self._stop.set)
        try:
            await self._work()
        finally:
            del self._stops[self._thread]

    async def _work(self) -> None:
        self._receivers.append(lambda number: self._loop.call_soon_threadsafe(self._on_signal, number))
        for number in _STOPS if self._signalled and not self._shared else ():
            with contextlib.suppress(NotImplementedError):  # Windows: Ctrl-C raises KeyboardInterrupt instead
                self._loop.add_signal_handler(number, self._on_signal, number)
        if self._ours is not None:
            self._loop.add_reader(self._ours.channel.fileno(), self._parent_gone, self._ours.channel.fileno())
        async with contextlib.AsyncExitStack() as stack:
            if not self._shared:
                await stack.enter_async_context(self._app)
            worker = await stack.enter_async_context(self._hosted())
            self._workers.append(worker)
            told = self._loop.create_task(_when_told(worker.told_to_stop, self._stop))
            await self._stop.wait()
            told.cancel()
            if worker.refusal is not None:
                if self._ours is not None:
                    self._ours.tell_refused()
                raise worker.refusal

    def _on_signal(self, number: int) -> None:
        self._signals += 1
        for worker in self._workers:
            worker.shortcut = f"{'Ctrl-C' if number == signal.SIGINT else signal.Signals(number).name} again"
        self._stop.set()
        if self._signals == 2:
            logger.warning("%s again: stopping now", signal.Signals(number).name)
            for worker in self._workers:
                worker.hurry()
            if self._task is not None:
                self._loop.call_later(_LAST_WORDS_SECONDS, self._task.cancel)
        elif self._signals > 2 and self._task is not None:
            self._task.cancel()

    def _parent_gone(self, channel: int) -> None:
        logger.warning("the process that has started this worker is gone: draining")
        self._loop.remove_reader(channel)
        self._stop.set()


@contextlib.asynccontextmanager
async def executing(worker: Worker) -> AsyncIterator[Worker]:
    """Runs a worker for as long as the block lasts; then drains it."""
    silent = SilentWhileReplaying()
    handlers = list(logging.getLogger().handlers)
    for handler in handlers:
        handler.addFilter(silent)
    try:
        with fewer_collections():
            await worker.start()
            try:
                yield worker
            finally:
                with ctrl_c_calls(worker.hurry) as shortcut:
                    worker.shortcut = worker.shortcut or shortcut
                    await worker.stop()
    finally:
        for handler in handlers:
            handler.removeFilter(silent)


def checked_queues(queues: object) -> tuple[str, ...]:
    if isinstance(queues, str):
        raise InvalidRequest(f"queues must be a list of names, for example queues=[{queues!r:.100}]")
    if not isinstance(queues, Iterable):
        raise InvalidRequest(f'queues must be a list of names, for example queues=["default"], not {queues!r:.100}')
    names = tuple(check_name(queue, "queue") for queue in queues)
    if not names:
        raise InvalidRequest("a worker needs at least one queue")
    return names


def check_count(value: object, field: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_AT_ONCE:
        raise InvalidRequest(f"{field} must be a whole number from 1 to {MOST_AT_ONCE:,}, not {value!r:.100}")


@contextlib.contextmanager
def _signals_go_to(receivers: Sequence[Callable[[int], object]]) -> Iterator[None]:
    """Has signals that ask this process to stop told to the event loop of another thread."""

    def forward(number: int, _: object) -> None:
        if not receivers:
            raise KeyboardInterrupt
        for tell in receivers:
            tell(number)

    before = {number: signal.signal(number, forward) for number in _STOPS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


async def _when_told(told: asyncio.Event, stop: asyncio.Event) -> None:
    await told.wait()
    stop.set()


def _run(main: Coroutine[Any, Any, None]) -> None:
    """Runs as asyncio.run does, on our event loop; but a step that will not end, as a task that swallows its
    cancellation or in a thread, does not keep the process alive."""
    runner = asyncio.Runner(loop_factory=new_event_loop)
    loop = runner.get_loop()
    loop.set_default_executor(DaemonExecutor())
    try:
        runner.run(main)
    finally:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.wait(left, timeout=1.0))
        if stubborn := [task for task in left if not task.done()]:
            logger.warning("%d tasks do not end although they were cancelled; leaving without them", len(stubborn))
        else:
            runner.close()
