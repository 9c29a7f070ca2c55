"""The calls that workflow code makes. Their identity is fixed when they are made, in the scope of the caller; they
happen when they are awaited."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from contextvars import Context
from functools import partial
from inspect import CORO_CREATED, getcoroutinestate, iscoroutine
from types import CodeType, FrameType
from typing import Any, TypeVar

from msgspec.structs import replace

from kagzi.api.operations import ChildStart
from kagzi.core.instant import Span
from kagzi.core.lineage import PayloadKind
from kagzi.core.retry import Retry
from kagzi.core.step import escape
from kagzi.errors import PayloadTooLarge
from kagzi.sdk.ambient import CallCodec
from kagzi.sdk.replay.execution import Execution
from kagzi.sdk.replay.waits import ChildWait, SignalWait, StepCall, Wait

C = TypeVar("C", bound=Callable[..., Any])
_OF_ONE_WAIT: set[CodeType] = set()


def of_one_wait(function: C) -> C:
    """Marks a coroutine function whose calls stand for the wait that is its argument `wait`: until it begins, the wait
    may be given another identity (`kagzi.parallel`)."""
    _OF_ONE_WAIT.add(function.__code__)
    return function


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
    rooted: bool = False,
    child: str | None = None,
    context: Context | None = None,
    caller: FrameType | None = None,
) -> Coroutine[Any, Any, Any]:
    """Makes a call of a step. `name` is escaped already. `rooted`: it is known by its name in the run, whichever task
    calls it. `child`: which it tells something. `caller`: who has made the call, if that is not the one who has called
    our caller."""
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
        step_id=(loop.root if rooted else loop.current_scope()).identity(name),
        name=name,
        fn=fn,
        codec=codec,
        policy=policy or execution.default_retry,
        timeout=timeout,
        args=args,
        kwargs=kwargs,
        input=data,
        stored=data if codec.seal is None else None,
        input_hash=input_hash,
        rooted=rooted,
        child=child,
        context=context,
    )
    return unawaited.add(awaiting(execution, call), call, name, caller or sys._getframe(2))


def call_inline(execution: Execution, name: str, begin: Callable[..., Coroutine[Any, Any, Any]], *args: Any) -> Any:
    """Makes a call of another workflow, whose coroutine `begin(*args)` makes, to be awaited as part of this run."""
    unawaited = execution.loop.unawaited
    if unawaited.dropped:
        unawaited.refuse_dropped()
    return unawaited.watch(begin(*args), name, sys._getframe(2))


def wait_signal(
    execution: Execution, name: str, decode: Callable[[bytes], Any], default_after: Span | None = None
) -> Coroutine[Any, Any, Any]:
    """Waits for a signal of this name; its value is what `decode` makes of it. The caller takes a default
    `default_after` from now."""
    loop = execution.loop
    if loop.evicting:
        loop.refuse()
    step_id = loop.current_scope().identity("@@" + escape(name))
    default_at = None if default_after is None else loop.now + default_after + loop.late  # when its timer is due
    wait = SignalWait(step_id=step_id, name=name, decode=decode, since=loop.now, default_at=default_at)
    return awaiting(execution, wait)


def child_call(
    execution: Execution,
    *,
    name: str,
    workflow: str,
    codec: CallCodec,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    start: ChildStart,
) -> ChildWait:
    """Fixes the identity of a child run that is to be spawned. `name` is escaped already."""
    loop = execution.loop
    if loop.evicting:
        loop.refuse()
    unawaited = loop.unawaited
    if unawaited.dropped:
        unawaited.refuse_dropped()
    try:
        data, input_hash = codec.encode_input_strictly(args, kwargs)
        depth = execution.children.child_depth(workflow)
        _check_input(execution, workflow, data)
    except Exception:
        unawaited.excuse()
        raise
    return ChildWait(
        step_id=loop.current_scope().identity(name),
        name=name,
        workflow=workflow,
        start=replace(start, depth=depth),
        input=data,
        input_hash=input_hash,
        decode=codec.decode_result,
        seal=codec.seal,
    )


def spawn(execution: Execution, wait: ChildWait) -> None:
    """Starts a child: its call is being awaited."""
    loop = execution.loop
    loop.unawaited.strike(wait)
    if loop.evicting:
        loop.refuse()
    else:
        seal = None if wait.seal is None else partial(_sealed_input, execution, wait)
        execution.children.spawn(wait, loop.now, seal)
        if seal is not None:
            context = execution.lineage.of_child(wait.start.run_id, PayloadKind.OUTPUT)
            wait.decode = partial(wait.decode, context=context)


def _sealed_input(execution: Execution, wait: ChildWait, run_id: str) -> bytes:
    assert wait.seal is not None
    data = wait.seal(wait.input, execution.lineage.of_child(run_id, PayloadKind.INPUT))
    _check_input(execution, wait.workflow, data)
    return data


def _check_input(execution: Execution, workflow: str, data: bytes) -> None:
    if len(data) > execution.payload_limit:
        raise PayloadTooLarge(
            f"the input of {workflow} is {len(data):,} bytes; at most {execution.payload_limit:,} are stored. Keep "
            f"large data elsewhere and pass a reference to it"
        )


async def outcome_of(execution: Execution, wait: ChildWait) -> Any:
    """Waits for a child that was spawned and returns what it has returned."""
    if wait.outcome is not None:
        return wait.result()
    loop = execution.loop
    future = loop.future()
    wait.waiters.append(future)
    if len(wait.waiters) == 1:
        execution.request(wait)
    try:
        return await future
    except asyncio.CancelledError:
        if future.cancelled() and not loop.evicting and future in wait.waiters:
            wait.waiters.remove(future)
            if not wait.waiters:
                execution.withdraw(wait)
        raise
    finally:
        del execution, loop, future, wait  # as in `awaiting`


@of_one_wait
async def awaiting(execution: Execution, wait: Wait) -> Any:
    """Asks for what a call is about and waits until it has happened."""
    loop = execution.loop
    loop.unawaited.strike(wait)
    future = wait.future = loop.future()
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
    if not iscoroutine(call) or call.cr_code not in _OF_ONE_WAIT or call.cr_frame is None:
        return None
    wait: Wait | None = call.cr_frame.f_locals["wait"] if getcoroutinestate(call) == CORO_CREATED else None
    return wait
