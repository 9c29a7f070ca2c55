"""Durable calls outside of workflows, where they are ordinary ones: in unit tests, in scripts, in the bodies of steps.

`async def` code gets something to await, as in a workflow. `def` code cannot await and gets results: a sleep sleeps.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import time
from asyncio import _get_running_loop
from collections.abc import Callable, Coroutine, Mapping
from contextvars import ContextVar
from typing import Any, Literal

from kagzi.core.instant import SECOND, Span
from kagzi.errors import InvalidRequest
from kagzi.sdk.replay.loop import place_of_call
from kagzi.sdk.worker.bodies import current_step

Kind = Literal["async def workflow", "def workflow", "def step"]

# Set while a function of Kagzi's is called as what it is. An `async def` workflow (`workflow.fn`) awaits every step, so
# there, and only there, calling a `def` step gives something to await. `def` code awaits nothing; it is known by the
# task it was called in, because an event loop that it starts itself is for others, which may await.
_called: ContextVar[tuple[Kind, asyncio.Task[Any] | None] | None] = ContextVar("kagzi_called", default=None)


def called_from() -> Kind | None:
    """Returns what kind of function this is called from, if it is a plain call of one of Kagzi's."""
    called = _called.get()
    if called is None or (called[0] != "async def workflow" and called[1] is not _task()):
        return None
    return called[0]


def _task() -> asyncio.Task[Any] | None:
    loop = _get_running_loop()
    return None if loop is None else asyncio.current_task(loop)


def _as(kind: Kind, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    token = _called.set((kind, _task()))
    try:
        return fn(*args, **kwargs)
    finally:
        _called.reset(token)


def as_plain_workflow(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the function of a workflow, for calls without any durability."""
    if not inspect.iscoroutinefunction(fn):

        @functools.wraps(fn)
        def plain(*args: Any, **kwargs: Any) -> Any:
            return _as("def workflow", fn, args, kwargs)

        return plain

    @functools.wraps(fn)
    async def awaited(*args: Any, **kwargs: Any) -> Any:
        token = _called.set(("async def workflow", None))
        try:
            return await fn(*args, **kwargs)
        finally:
            _called.reset(token)

    return awaited


def call_function(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Calls the function of a step, which is what a step does outside of workflows."""
    return fn(*args, **kwargs) if inspect.iscoroutinefunction(fn) else _as("def step", fn, args, kwargs)


async def await_function(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Calls the function of a step, `def` or not, for code that awaits."""
    token = _called.set(None)
    try:
        result = call_function(fn, args, kwargs)
        return await result if inspect.isawaitable(result) else result
    finally:
        _called.reset(token)


def result_of(name: str, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Returns the result of a function, `async def` or not, for code that cannot await."""
    if not inspect.iscoroutinefunction(fn):
        return call_function(fn, args, kwargs)
    if _get_running_loop() is not None:
        raise InvalidRequest(
            f"{name} is an `async def` function, and an event loop runs in this thread: write `await {name}(...)` "
            f"(at {place_of_call()})"
        )
    return asyncio.run(await_function(fn, args, kwargs))


def run(name: str, coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Returns the result of a coroutine of Kagzi's, which awaits calls of steps, for code that cannot await."""
    if _get_running_loop() is not None:
        coroutine.close()
        raise InvalidRequest(
            f"{name}(...) has to be awaited, and `def` code beside an event loop cannot (at {place_of_call()})"
        )
    token = _called.set(("async def workflow", None))
    try:
        return asyncio.run(coroutine)
    finally:
        _called.reset(token)


def cannot_await() -> bool:
    """Returns whether the code that calls is `def` code: on a thread without an event loop, called plainly, or in the
    body of a `def` step that has no thread of its own, as on virtual time."""
    if _get_running_loop() is None or called_from() in ("def workflow", "def step"):
        return True
    step = current_step.get(None)
    return step is not None and step.cancelled is not None and _task() is None


def sleep(span: Span) -> Coroutine[Any, Any, None] | None:
    """Sleeps in the ordinary way, for code that awaits and for code that cannot."""
    if not cannot_await():
        return asyncio.sleep(span / SECOND)
    # A loop on virtual time carries its clock.
    clock = getattr(_get_running_loop(), "clock", None)
    if clock is not None:
        clock.advance(span)
        return None
    step = current_step.get(None)
    if step is None or step.cancelled is None:
        time.sleep(span / SECOND)
    elif step.cancelled.wait(span / SECOND):
        raise asyncio.CancelledError(f"step {step.step_id} was cancelled while it slept")
    return None
