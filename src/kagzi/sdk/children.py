"""Children: runs that a workflow starts and may wait for.

    receipt = await receipt_flow.run(order.id)                                 # a run of its own, awaited
    child = await render.options(queue="pages", on_parent_end="abandon").spawn(page)
    pages = await child.result(timeout="2h", default=None)

A child is spawned once, whatever crashes, because its id follows from the run and the step that spawns it. Its outcome
comes to the parent in the transaction that ends it.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Coroutine
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, overload
from weakref import WeakKeyDictionary

from msgspec.structs import replace

from kagzi.api.operations import ChildStart
from kagzi.core.conflict import OnConflict
from kagzi.core.duration import Duration, parse_duration
from kagzi.core.family import ParentPolicy
from kagzi.core.instant import SECOND, Span
from kagzi.core.limits import check_name
from kagzi.core.run import CANCEL_GRACE
from kagzi.core.step import escape
from kagzi.errors import InvalidRequest
from kagzi.sdk.ambient import current
from kagzi.sdk.debounce import Debounce
from kagzi.sdk.foreign import refuse_foreign
from kagzi.sdk.limits import limit_of
from kagzi.sdk.moments import instant_of
from kagzi.sdk.replay.calls import call_step, child_call, of_one_wait, outcome_of, spawn
from kagzi.sdk.replay.execution import Execution
from kagzi.sdk.replay.loop import place_of_call
from kagzi.sdk.replay.threaded import in_turn
from kagzi.sdk.replay.unawaited import Made
from kagzi.sdk.replay.waits import ChildWait
from kagzi.sdk.signal_values import encode_signal
from kagzi.sdk.signature import Signature

if TYPE_CHECKING:
    from kagzi.sdk.definitions import Call, Registrar, Workflow, WorkflowOptions

R = TypeVar("R", covariant=True)
D = TypeVar("D")

_MISSING: Final[Any] = object()
_CALL_TIMEOUT: Final[Span] = 60 * SECOND  # of a call of the engine, each attempt


class ChildRun(Generic[R]):
    """A run that this workflow has started. `id` is Kagzi's id of it."""

    __slots__ = ("_app", "_parent", "_wait", "id")

    def __init__(self, app: Registrar, parent: str, wait: ChildWait) -> None:
        self.id = wait.start.run_id
        self._app = app
        self._parent = parent
        self._wait = wait

    def __repr__(self) -> str:
        return f"ChildRun({self.id!r})"

    @overload
    def result(self, timeout: Duration | None = None) -> Call[R]: ...
    @overload
    def result(self, timeout: Duration | None = None, *, default: D) -> Call[R | D]: ...
    def result(self, timeout: Duration | None = None, *, default: Any = _MISSING) -> Any:
        """Wait for the child and return what it has returned.

        Raises WorkflowFailed, WorkflowCancelled or WorkflowTimedOut if it ended otherwise, and Conflict if it could not
        be started because another run has its id. While this waits the run is parked. After `timeout` it gives
        `default`, or TimeoutError if there is none; the child goes on.
        """
        execution = self._inside("result")
        span = None if timeout is None else parse_duration(timeout, "timeout")
        if span is None and default is not _MISSING:
            raise InvalidRequest(
                f"the result of {self._wait.workflow} has a default and no timeout, so it would never give it; say how "
                f'long it waits: timeout="1h" (at {place_of_call()})'
            )
        unawaited = execution.loop.unawaited
        if unawaited.dropped:
            unawaited.refuse_dropped()
        made = Made()
        waiting = _result(execution, made, self._wait, span, default)
        return in_turn(unawaited.add(waiting, made, f"the result of {self._wait.workflow}", sys._getframe(1)))

    def cancel(self) -> Call[bool]:
        """Ask the child to end; False if it had finished before. It may clean up: await `result()` for its end."""
        execution = self._inside("cancel")
        return in_turn(_cancel(execution, self._app, self._wait, sys._getframe(1)))

    def signal(self, name: str, value: Any = None) -> Call[None]:
        """Tell the child something, exactly once. Raises Conflict if it has finished."""
        execution = self._inside("signal")
        check_name(name, "signal name")
        text = encode_signal(name, value, None, None).decode()
        return in_turn(_call(execution, self._app, self._wait, "signal", (self.id, name, text), sys._getframe(1)))

    def _inside(self, method: str) -> Execution:
        execution = current(f"{self._wait.workflow}.{method}()")
        if execution is None or execution.run_id != self._parent:
            raise InvalidRequest(
                f"this child belongs to the workflow that has spawned it (run {self._parent}), and its {method}() was "
                f"called outside of it; use `app.handle({self.id!r})` there"
            )
        return execution


def run_child(workflow: Workflow[Any, Any], execution: Execution, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What `workflow.run(...)` does in another workflow."""
    wait = _new_child(workflow, execution, args, kwargs)
    running: Any = _run(execution, workflow._app, wait)
    running.__name__ = running.__qualname__ = workflow.name  # what a task of it is named by
    return in_turn(execution.loop.unawaited.add(running, wait, f"{workflow.name}.run", sys._getframe(2)))


def spawn_child(
    workflow: Workflow[Any, Any], execution: Execution, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """What `workflow.spawn(...)` does."""
    wait = _new_child(workflow, execution, args, kwargs)
    spawning: Any = _spawn(execution, workflow._app, wait)
    spawning.__name__ = spawning.__qualname__ = workflow.name
    return in_turn(execution.loop.unawaited.add(spawning, wait, f"{workflow.name}.spawn", sys._getframe(2)))


@of_one_wait
async def _spawn(execution: Execution, app: Registrar, wait: ChildWait) -> ChildRun[Any]:
    spawn(execution, wait)
    return ChildRun(app, execution.run_id, wait)


@of_one_wait
async def _run(execution: Execution, app: Registrar, wait: ChildWait) -> Any:
    spawn(execution, wait)
    try:
        return await outcome_of(execution, wait)
    except asyncio.CancelledError:
        if not execution.loop.evicting:
            await _end(execution, app, wait)
        raise
    finally:
        del execution, app, wait  # as in `calls.awaiting`


async def _end(execution: Execution, app: Registrar, wait: ChildWait) -> None:
    """Cancels a child and waits for its end for as long as it may clean up: a refund must not run beside its charge."""
    with contextlib.suppress(Exception):
        await _cancel(execution, app, wait, sys._getframe())
        async with asyncio.timeout(CANCEL_GRACE / SECOND):
            await outcome_of(execution, wait)


async def _result(execution: Execution, made: Made, wait: ChildWait, span: Span | None, default: Any) -> Any:
    execution.loop.unawaited.strike(made)
    if span is None:
        return await outcome_of(execution, wait)
    try:
        async with asyncio.timeout(span / SECOND):
            return await outcome_of(execution, wait)
    except TimeoutError:
        if default is _MISSING:
            raise TimeoutError(
                f"{wait.workflow} {wait.start.run_id} has not finished within {span / SECOND:g} s; it goes on"
            ) from None
        return default


def _cancel(execution: Execution, app: Registrar, wait: ChildWait, caller: FrameType) -> Coroutine[Any, Any, bool]:
    return _call(execution, app, wait, "cancel", (wait.start.run_id,), caller)


def _call(
    execution: Execution, app: Registrar, wait: ChildWait, what: str, args: tuple[Any, ...], caller: FrameType
) -> Coroutine[Any, Any, Any]:
    """Tells a child something, as a step. Repeats are harmless, so the child is told once."""
    execution.children.tell(wait)
    fn = app.cancel_child if what == "cancel" else app.signal_child
    known = _signatures.setdefault(app, {})
    if what not in known:
        known[what] = Signature(fn, name=f"child.{what}", codec=app._codec)
    return call_step(
        execution,
        name=escape(f"{wait.workflow}.{what}"),
        fn=fn,
        codec=known[what],
        policy=None,
        timeout=_CALL_TIMEOUT,
        args=args,
        kwargs={},
        child=wait.start.run_id,
        caller=caller,
    )


_signatures: WeakKeyDictionary[Registrar, dict[str, Signature]] = WeakKeyDictionary()


def _new_child(
    workflow: Workflow[Any, Any], execution: Execution, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> ChildWait:
    refuse_foreign(workflow.name, workflow.fn, workflow._app, execution)
    options = workflow._options
    name = workflow.name if options.key is None else check_name(f"{workflow.name}[{options.key}]", "name and key")
    wait = child_call(
        execution,
        name=escape(name),
        workflow=workflow.name,
        codec=workflow.signature,
        args=args,
        kwargs=kwargs,
        start=_start_of(workflow, options, execution),
    )
    if workflow.limits is not None or options.limit_key is not None:
        try:
            limit_key = limit_of(workflow, options, args, kwargs)[1]
        except Exception:
            execution.loop.unawaited.excuse()
            raise
        wait.start = replace(wait.start, limit_key=limit_key or None)
    return wait


def _start_of(workflow: Workflow[Any, Any], options: WorkflowOptions, execution: Execution) -> ChildStart:
    if options.namespace is not None:
        raise InvalidRequest(
            f"{workflow.name} has namespace={options.namespace!r:.100}, and a child runs in the namespace of its "
            f"parent; start it in a step to have it elsewhere (at {place_of_call()})"
        )
    if isinstance(options.debounce, Debounce):
        raise InvalidRequest(
            f"debounce= is for {workflow.name}.start(...): a child belongs to its parent, and is not shared by starts "
            f"(at {place_of_call()})"
        )
    if options.signal is not None:
        raise InvalidRequest(
            f"signal= is for {workflow.name}.start(...); tell a child something with `await child.signal(...)` "
            f"(at {place_of_call()})"
        )
    if options.on_conflict == "return":
        raise InvalidRequest(
            f'{workflow.name} has on_conflict="return", and the run that has the id would not be a child of this one; '
            f'give "fail" (the default of children), "restart_finished" or "restart_failed" (at {place_of_call()})'
        )
    if options.on_conflict is not None and options.id is None:
        raise InvalidRequest(
            f"on_conflict is for a child with an id: {workflow.name}.options(id=..., on_conflict=...) "
            f"(at {place_of_call()})"
        )
    timeout = options.timeout if options.timeout is not None else workflow.timeout
    handler = options.on_failure or workflow.on_failure
    return ChildStart(
        run_id="",
        workflow_type=workflow.name,
        # Without a queue of its own it waits where its parent did: a worker of that queue has the code of both.
        task_queue=options.queue or workflow.queue or execution.queue,
        version=options.version or workflow.version,
        external_id=options.id,
        priority=options.priority,
        delay=0 if options.delay is None else parse_duration(options.delay, "delay"),
        start_at=None if options.start_at is None else instant_of(options.start_at, "start_at"),
        timeout=None if timeout is None else parse_duration(timeout, "timeout"),
        deadline_at=None if options.deadline is None else instant_of(options.deadline, "deadline"),
        retry_policy=None if options.retry is None else options.retry.encode(),
        on_failure=None if handler is None else handler.name,
        on_failure_queue=None if handler is None else handler.queue,
        policy=ParentPolicy(options.on_parent_end or "cancel"),
        trace_context=execution.run.trace_context,
        tags=options.tags,
        on_conflict=OnConflict(options.on_conflict or "fail"),
    )
