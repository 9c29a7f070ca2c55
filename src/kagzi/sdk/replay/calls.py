"""Calls that workflow code makes: their identity is fixed when they are made, in the scope of the caller, and they
happen when they are awaited."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from inspect import CORO_CREATED, getcoroutinestate, iscoroutine
from typing import Any

from kagzi.core.instant import Span
from kagzi.core.retry import Retry
from kagzi.core.step import escape
from kagzi.sdk.ambient import CallCodec
from kagzi.sdk.replay.execution import Execution
from kagzi.sdk.replay.waits import SignalWait, StepCall, Wait


def call_step(
    execution: Execution,
    *,
    name: str,
    fn: Callable[..., Any],
    codec: CallCodec,
    policy: Retry | None,
    timeout: Span | None,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Coroutine[Any, Any, Any]:
    """Makes a call of a step. `name` is escaped already."""
    loop = execution.loop
    if loop.evicting:
        loop.refuse()
    unawaited = loop.unawaited
    if unawaited.dropped:
        unawaited.refuse_dropped()
    # The body gets copies: it must not change the workflow's state behind its back. They are made on replay too:
    # arguments that cannot be read back raise here, every time.
    try:
        data, input_hash, args, kwargs = codec.settle_input(args, kwargs)
    except Exception:
        unawaited.excuse()
        raise
    call = StepCall(
        step_id=loop.current_scope().identity(name),
        name=name,
        fn=fn,
        codec=codec,
        policy=policy or execution.default_retry,
        timeout=timeout,
        args=args,
        kwargs=kwargs,
        input=data,
        input_hash=input_hash,
    )
    return unawaited.add(awaiting(execution, call), call, name, sys._getframe(2))


def call_inline(execution: Execution, name: str, begin: Callable[..., Coroutine[Any, Any, Any]], *args: Any) -> Any:
    """Makes a call of another workflow, whose coroutine `begin(*args)` makes, to be awaited as part of this run."""
    unawaited = execution.loop.unawaited
    if unawaited.dropped:
        unawaited.refuse_dropped()
    return unawaited.watch(begin(*args), name, sys._getframe(2))


def wait_signal(execution: Execution, name: str, decode: Callable[[bytes], Any]) -> Coroutine[Any, Any, Any]:
    """Waits for a signal of this name; its value is what `decode` makes of it."""
    loop = execution.loop
    if loop.evicting:
        loop.refuse()
    step_id = loop.current_scope().identity("@@" + escape(name))
    return awaiting(execution, SignalWait(step_id=step_id, name=name, decode=decode, since=loop.now))


async def awaiting(execution: Execution, wait: Wait) -> Any:
    """Asks for what a call is about and waits until it has happened."""
    loop = execution.loop
    loop.unawaited.strike(wait)
    future = wait.future = loop.create_future()
    execution.request(wait)
    try:
        return await future
    except asyncio.CancelledError:
        if future.cancelled() and not loop.evicting:
            execution.withdraw(wait)
        raise
    finally:
        # The exception's traceback refers to this frame, and this frame to the call: break the cycle. What asyncio
        # makes of the traceback (`timeout` keeps its task, which keeps the error) must not keep the whole run.
        del execution, loop, future, wait


def unstarted_wait(call: Any) -> Wait | None:
    """Returns the wait of a call that was made and is not awaited yet; None for anything else."""
    if not iscoroutine(call) or call.cr_code is not awaiting.__code__ or call.cr_frame is None:
        return None
    wait: Wait | None = call.cr_frame.f_locals["wait"] if getcoroutinestate(call) == CORO_CREATED else None
    return wait
