"""Threads that workflow code starts, and work that it hands to a pool: steps are refused there.

On such a thread a step would be the plain function: not recorded, and done again at every replay. A thread does not
know who started it, so a process with a worker notes that where threads begin: in `threading.Thread.start`, in
`_thread.start_new_thread` and, because threads of a pool may be there already, in `ThreadPoolExecutor.submit`. What is
started and handed over elsewhere, in the bodies of steps above all, is left as it is.
"""

from __future__ import annotations

import _thread
import threading
from asyncio import _get_running_loop
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures.thread import _worker as _POOL_WORK
from functools import partial, wraps
from typing import Any, NoReturn
from weakref import ref

from kagzi.errors import NonDeterminismError
from kagzi.sdk.replay.blocking_calls import notice
from kagzi.sdk.replay.loop import WorkflowLoop, place_of_call


class EngineThread(threading.Thread):
    """A thread of Kagzi's own: it works for many runs, whichever of them was the first to need it."""


class _Origin:
    """The workflow that a thread works for, and the line in it that started the thread."""

    def __init__(self, loop: WorkflowLoop) -> None:
        self._loop = ref(loop)
        self._run = loop.execution.describe()
        self._place = place_of_call()

    def refuse(self, what: str) -> NoReturn:
        error = NonDeterminismError(
            f"{what} was called on a thread that the workflow {self._run} started at {self._place}; there it would "
            "neither be recorded nor known at a replay. Call it in the workflow itself (an `async def` workflow has "
            "asyncio.gather for many at once), or start the thread in a step"
        )
        loop = self._loop()
        if loop is not None:
            loop.mistake = error  # for a workflow that never looks at what became of its thread
        raise error


class _Here(threading.local):
    origin: _Origin | None = None


_here = _Here()
_watching = threading.Lock()


def refuse_beside_workflow(what: str) -> None:
    """Refuses a durable call on a thread that workflow code has started."""
    if _here.origin is not None:
        _here.origin.refuse(what)


def watch_threads() -> None:
    """Notes from now on which threads of this process work for a workflow. Once is enough."""
    if _watching.acquire(blocking=False):
        threading.Thread.start = _watched_start(threading.Thread.start)  # type: ignore[method-assign, assignment]
        _thread.start_new_thread = _watched_raw_start(_thread.start_new_thread)
        ThreadPoolExecutor.submit = _watched_submit(ThreadPoolExecutor.submit)  # type: ignore[method-assign]


def _watched_start(start: Callable[[threading.Thread], None]) -> Callable[[threading.Thread], None]:
    @wraps(start)
    def watched(thread: threading.Thread) -> None:
        origin = _origin()
        if origin is not None and _belongs_to_anyio(thread):
            # Its result would come by call_soon_threadsafe, which is refused on that thread, where nobody hears of it:
            # the run would wait for ever.
            raise NonDeterminismError(f"a thread belongs in a step (anyio was to start one at {place_of_call()})")
        if not isinstance(thread, EngineThread):
            _notice_thread()
        # A thread of a pool serves others, too: each piece of its work says for itself where it comes from.
        if origin is not None and not isinstance(thread, EngineThread) and _target(thread) is not _POOL_WORK:
            thread.run = partial(_run, origin, thread.run)  # type: ignore[method-assign]
        start(thread)

    return watched


def _watched_raw_start(start: Callable[..., int]) -> Callable[..., int]:
    @wraps(start)
    def watched(function: Callable[..., object], *args: Any) -> int:
        origin = _origin()
        _notice_thread()
        return start(function if origin is None else partial(_run, origin, function), *args)

    return watched


def _watched_submit(submit: Callable[..., Future[Any]]) -> Callable[..., Future[Any]]:
    @wraps(submit)
    def watched(self: ThreadPoolExecutor, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        origin = _origin()
        return submit(self, fn if origin is None else partial(_run, origin, fn), *args, **kwargs)

    return watched


def _origin() -> _Origin | None:
    loop = _get_running_loop()
    return _Origin(loop) if isinstance(loop, WorkflowLoop) else _here.origin


def _notice_thread() -> None:
    loop = _get_running_loop()
    if isinstance(loop, WorkflowLoop):
        notice("a thread of its own", loop)


def _belongs_to_anyio(thread: threading.Thread) -> bool:
    return type(thread).__module__.startswith("anyio.") and isinstance(_get_running_loop(), WorkflowLoop)


def _target(thread: threading.Thread) -> object:
    return getattr(thread, "_target", None)


def _run(origin: _Origin, work: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    before, _here.origin = _here.origin, origin
    try:
        return work(*args, **kwargs)
    finally:
        _here.origin = before
