"""What workflow code and step bodies can ask for: time, chance, sleep, and which run they are part of.

Inside a workflow every answer is the same on each replay. Outside of one (a unit test that calls the function itself,
a script) the same names do the ordinary thing.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from asyncio import _get_running_loop
from collections.abc import Awaitable, Callable, Coroutine
from datetime import datetime
from random import Random
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar, cast, overload
from uuid import UUID
from zoneinfo import ZoneInfo

from msgspec import Struct

from kagzi.clock import Clock, SystemClock
from kagzi.core.duration import Duration, parse_duration
from kagzi.core.instant import SECOND, Instant, Span, from_datetime, to_datetime
from kagzi.core.step import escape
from kagzi.errors import InvalidRequest
from kagzi.ids import fresh_random, seeded_random
from kagzi.sdk import plainly
from kagzi.sdk.definitions import Call, run_step
from kagzi.sdk.replay.execution import Execution
from kagzi.sdk.replay.loop import WorkflowLoop, place_of_call
from kagzi.sdk.replay.side_threads import refuse_beside_workflow
from kagzi.sdk.replay.threaded import in_turn
from kagzi.sdk.replay.unawaited import Made
from kagzi.sdk.worker.bodies import current_step

T = TypeVar("T")

_clock = SystemClock()


class RunInfo(Struct, frozen=True):
    """What is running here: in a workflow, its run; in a step body, also the step and which attempt this is."""

    run_id: str
    workflow: str
    step_id: str | None = None
    attempt: int = 0
    namespace: str = "default"


def _execution() -> Execution | None:
    loop = _get_running_loop()
    return loop.execution if isinstance(loop, WorkflowLoop) else None


def current() -> RunInfo:
    """The run (and step) this code belongs to. Raises InvalidRequest outside of Kagzi."""
    execution = _execution()
    if execution is None:
        refuse_beside_workflow("kagzi.current()")
    else:
        return RunInfo(execution.run_id, execution.workflow, namespace=execution.run.namespace)
    step = current_step.get(None)
    if step is None:
        raise InvalidRequest("kagzi.current() was called outside of a workflow and outside of a step")
    return RunInfo(step.run_id, step.workflow, step.step_id, step.attempt, step.namespace)


def attempt() -> int:
    """In a step body: which attempt this is, from 1. Outside of Kagzi it is the first and only one."""
    if _execution() is not None:
        raise InvalidRequest(f"kagzi.attempt() is for steps, and was called in a workflow (at {place_of_call()})")
    step = current_step.get(None)
    return 1 if step is None else step.attempt


def cancelled() -> bool:
    """In a step: whether its result is no longer wanted. Look at it now and then in the long loops of a `def` step, and
    return; an `async def` step gets a CancelledError besides."""
    if _execution() is not None:
        raise InvalidRequest(
            "kagzi.cancelled() is for steps: in a workflow a cancellation is a CancelledError where it waits "
            f"(at {place_of_call()})"
        )
    step = current_step.get(None)
    if step is None:
        return False
    if step.cancelled is not None:
        return step.cancelled.is_set()
    task = asyncio.current_task() if _get_running_loop() is not None else None
    return task is not None and task.cancelling() > 0


def now() -> datetime:
    """The time of the last event this workflow has seen; outside of a workflow, the time."""
    return to_datetime(_now())


def _now() -> Instant:
    loop = _get_running_loop()
    if isinstance(loop, WorkflowLoop):
        return loop.now
    refuse_beside_workflow("kagzi.now()")
    # A loop on virtual time carries its clock, so that tests see one time inside and outside of workflows.
    clock = getattr(loop, "clock", None)
    return clock.now() if isinstance(clock, Clock) else _clock.now()


def scheduled_for() -> datetime | None:
    """In a workflow: the moment its schedule fired it for, however late it began, in the zone of the schedule; None if
    no schedule did.

    Of a run that somebody has triggered it is the moment of the trigger. A retry and a backfill are for the same moment
    as what they repeat. Give it to steps as an argument.
    """
    execution = _execution()
    if execution is None:
        refuse_beside_workflow("kagzi.scheduled_for()")
        if current_step.get(None) is not None:
            raise InvalidRequest(
                "kagzi.scheduled_for() is for workflows; give what it returns to the step as an argument"
            )
        return None
    if (moment := execution.run.scheduled_for) is None:
        return None
    zone = execution.run.timezone
    return to_datetime(moment) if zone is None else to_datetime(moment).astimezone(ZoneInfo(zone))


def events() -> int:
    """In a workflow: how many events it has seen since it began, or began anew: steps that ended, timers, signals. A
    history that grows long is a reason to `continue_as_new`."""
    execution = _execution()
    if execution is None:
        refuse_beside_workflow("kagzi.events()")
        if current_step.get(None) is not None:
            raise InvalidRequest("kagzi.events() is for workflows; give what it returns to the step as an argument")
        return 0
    return execution.events


def random() -> Random:
    """A source of chance that gives the same numbers on each replay: `kagzi.random().choice(...)`."""
    execution = _execution()
    if execution is None:
        refuse_beside_workflow("kagzi.random()")
        return fresh_random()
    if execution.random is None:
        execution.random = seeded_random(execution.seed)
    return execution.random


def uuid4() -> UUID:
    """A random UUID that is the same on each replay."""
    return UUID(int=random().getrandbits(128), version=4)


class Pause(Coroutine[object, None, None]):
    """What a sleep gives to await; in `def` code it is None. A class of its own, because type checkers take a coroutine
    that nobody awaits for a mistake, which it is not in `def` code (and in a workflow that should await it, it is found
    when it runs)."""


@overload
def sleep(duration: Duration, /) -> Pause: ...
@overload
def sleep(name: str, duration: Duration, /) -> Pause: ...
def sleep(first: Duration, second: Duration | None = None, /) -> Pause:
    """Sleep durably, for a second or a year: `kagzi.sleep("1 day")`, or `kagzi.sleep("wait-a-day", "1 day")`.

    A run that sleeps for longer than a moment holds no worker, no connection and no memory. The name is for people.
    Outside of a workflow, in a step too, it is an ordinary sleep. `async def` code awaits it; in `def` code it returns
    when it is over.
    """
    name, duration = ("sleep", first) if second is None else (str(first), second)
    span = parse_duration(duration, "duration")
    loop = _get_running_loop()
    if not isinstance(loop, WorkflowLoop):
        return _sleep_outside(span)
    return _sleeping("kagzi.sleep", loop, _sleep, name, span, sys._getframe(1))


@overload
def sleep_until(moment: datetime, /) -> Pause: ...
@overload
def sleep_until(name: str, moment: datetime, /) -> Pause: ...
def sleep_until(first: str | datetime, second: datetime | None = None, /) -> Pause:
    """Sleep durably until a moment, given as an aware datetime. A moment that has passed returns at once."""
    name, moment = ("sleep", first) if second is None else (str(first), second)
    if not isinstance(moment, datetime):
        raise InvalidRequest(f"sleep_until needs a datetime, not {type(moment).__name__}")
    try:
        due_at = from_datetime(moment)
    except ValueError as error:
        raise InvalidRequest(f"sleep_until: {error}") from None
    loop = _get_running_loop()
    if not isinstance(loop, WorkflowLoop):
        return _sleep_outside(max(0, due_at - _now()))
    return _sleeping("kagzi.sleep_until", loop, _sleep_to, name, due_at, sys._getframe(1))


def _sleep_outside(span: Span) -> Pause:
    refuse_beside_workflow("kagzi.sleep()")
    return cast("Pause", plainly.sleep(span))


def _sleeping(
    what: str,
    loop: WorkflowLoop,
    sleep: Callable[[WorkflowLoop, Made, str, int], Call[None]],
    name: str,
    time: int,
    caller: FrameType,
) -> Pause:
    if loop.unawaited.dropped:
        loop.unawaited.refuse_dropped()
    call = Made()
    return cast("Pause", in_turn(loop.unawaited.add(sleep(loop, call, name, time), call, what, caller)))


# A task of one of these is named after the function, and so is what is recorded of it.


async def _sleep(loop: WorkflowLoop, call: Made, name: str, span: Span) -> None:
    loop.unawaited.strike(call)
    await _sleep_until(loop, name, loop.now + span)


async def _sleep_to(loop: WorkflowLoop, call: Made, name: str, due_at: Instant) -> None:
    loop.unawaited.strike(call)
    await _sleep_until(loop, name, due_at - loop.late)


async def _sleep_until(loop: WorkflowLoop, name: str, due_at: Instant) -> None:
    future = loop.create_future()
    timer = loop.call_at(due_at / SECOND, _wake, future, name=escape(name))
    try:
        await future
    finally:
        timer.cancel()


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class Context:
    """For those who prefer it explicit: annotate a workflow's first parameter with `kagzi.Context`.

    >>> @app.workflow
    ... async def checkout(ctx: kagzi.Context, order: Order) -> str:
    ...     return await ctx.step("charge", charge_card, order)
    """

    __slots__ = ("run_id", "workflow")

    def __init__(self, run_id: str, workflow: str) -> None:
        self.run_id = run_id
        self.workflow = workflow

    if TYPE_CHECKING:

        @overload
        def step(self, name: str, fn: Callable[..., Awaitable[T]], /, *args: Any, **kwargs: Any) -> Call[T]: ...
        @overload
        def step(self, name: str, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Call[T]: ...
        def step(self, name: str, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
            """Run `fn` as a step of this name."""

        def sleep(self, name: str, duration: Duration) -> Pause: ...
        def sleep_until(self, name: str, moment: datetime) -> Pause: ...

    else:
        # The same functions, so that their caller is the workflow's code: errors name its line.
        step = staticmethod(run_step)
        sleep = staticmethod(sleep)
        sleep_until = staticmethod(sleep_until)

    def now(self) -> datetime:
        return now()

    def random(self) -> Random:
        return random()

    def uuid4(self) -> UUID:
        return uuid4()

    @property
    def logger(self) -> logging.Logger:
        return logger


class _WorkflowLogger(logging.Logger):
    """A logger that is silent while a workflow is being replayed: what it says was said the first time."""

    def isEnabledFor(self, level: int) -> bool:
        execution = _execution()
        return (execution is None or not execution.replaying) and super().isEnabledFor(level)


class SilentWhileReplaying(logging.Filter):
    """For handlers: drops what ordinary loggers say from workflow code that is being replayed.

    What Kagzi itself says meanwhile passes: it is about the replay, as that a step is called with other arguments.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        execution = _execution()
        return execution is None or not execution.replaying or record.name.partition(".")[0] == "kagzi"


def _make_logger() -> logging.Logger:
    made = _WorkflowLogger("kagzi.workflow.user")
    made.parent = logging.getLogger("kagzi")
    return made


logger = _make_logger()
"""Log from workflow code with this: `kagzi.logger.info(...)`."""
