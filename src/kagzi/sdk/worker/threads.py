"""A bounded pool of threads for step bodies that do not keep a process alive.

Python waits at its end for the threads of a ThreadPoolExecutor, however long their work takes: a step that hangs would
keep a drained worker from ending. These are daemons. And a thread whose work has been given up (nothing ends a thread
from outside) gets a substitute, so that bodies that hang do not eat up the pool.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any


class Threads:
    def __init__(self, most: int) -> None:
        self._most = most
        self._work: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._guard = threading.Lock()
        self._alive = 0
        self._given_up: set[Future[Any]] = set()

    def submit(self, work: Callable[[], Any]) -> Future[Any]:
        future: Future[Any] = Future()
        self._work.put((future, work))
        self._want_thread()
        return future

    def give_up(self, future: Future[Any]) -> None:
        """Gives up on a call that may never end: another thread may take its place meanwhile."""
        with self._guard:
            if future.running() and future not in self._given_up:
                self._given_up.add(future)
                self._most += 1
        if not self._work.empty():
            self._want_thread()

    def close(self) -> None:
        """No more work. Threads that are at work end with it, or with the process."""
        with self._guard:
            for _ in range(self._alive):
                self._work.put(None)

    def _want_thread(self) -> None:
        if self._idle.acquire(blocking=False):
            return
        with self._guard:
            if self._alive >= self._most:
                return
            self._alive += 1
            number = self._alive
        threading.Thread(target=self._run, name=f"kagzi-step-{number}", daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                item = self._work.get_nowait()
            except Empty:
                self._idle.release()
                item = self._work.get()
            if item is None:
                return
            future, work = item
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(work())
                except BaseException as error:
                    future.set_exception(error)
            with self._guard:
                if future in self._given_up:
                    self._given_up.discard(future)
                    self._most -= 1
                    if self._alive > self._most:
                        self._alive -= 1
                        return
            del item, future, work  # an idle thread holds on to nothing


class DaemonExecutor(ThreadPoolExecutor):
    """For `asyncio.to_thread` in step bodies of a worker process: the same, in the only class that event loops take."""

    def __init__(self, most: int = 32) -> None:
        super().__init__(1)  # never used
        self._daemons = Threads(most)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        return self._daemons.submit(partial(fn, *args, **kwargs))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002
        self._daemons.close()
