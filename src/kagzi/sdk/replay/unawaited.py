"""Durable calls that workflow code has made and not awaited: a forgotten `await` fails the run.

Such a call does nothing, and without this the run would go on as if it had. A call is noted when it is made, and struck
off when it is awaited or becomes a task. One that is dropped before that was forgotten: the next durable call raises,
so that nothing is done on the strength of what never happened, and a workflow function that returns has failed. A call
that is dropped because its task was cancelled or raised was not forgotten, nor was one that a task still holds when the
run ends.

A task that was made and that nobody waits for is told, too, if something durable is under way in it when the workflow
function returns: it ends there, whatever it was about to do. Not one that was cancelled, waited for once (as the losers
of `asyncio.wait` are) or looked after by a callback, nor one whose maker was cut short.

Code that handles an exception may go on: it cleans up, and the call may have been dropped by that very exception.

`asyncio.sleep()` is not ours to note. What Python tells of a coroutine that was never awaited is heard for it.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import warnings
from asyncio import Task, _get_running_loop, current_task
from collections import deque
from collections.abc import Callable, Collection, Coroutine
from traceback import walk_tb
from types import CodeType, CoroutineType, FrameType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from weakref import ref

from kagzi.errors import NotAwaited

if TYPE_CHECKING:
    from kagzi.sdk.replay.loop import WorkflowLoop
    from kagzi.sdk.replay.tasks import WorkflowTask

C = TypeVar("C", bound=Coroutine[Any, Any, Any])


class Holder(Protocol):
    """What a call's coroutine is given, to strike the call off with when it begins."""

    made: Any


class Made:
    """A `Holder` for calls that have no object of their own."""

    __slots__ = ("made",)

    made: Any


# What was called, and where: the code and the instruction in it. A line is looked up when somebody wants to know it.
_Call = tuple[str, CodeType, int]


class Unawaited:
    """The calls of one run."""

    def __init__(self, loop: WorkflowLoop) -> None:
        calls: dict[ref[Any], _Call] = {}
        dropped: list[tuple[_Call, Task[Any] | None]] = []

        def drop(made: ref[Any]) -> None:
            call = calls.pop(made, None)
            if call is not None:
                dropped.append((call, current_task(loop)))

        self.calls = calls
        self.dropped = dropped  # with the task in whose turn it happened
        self._drop: Callable[[ref[Any]], None] = drop

    def add(self, coroutine: C, holder: Holder, what: str, caller: FrameType) -> C:
        """Notes a call that `caller` has made."""
        made = holder.made = ref(coroutine, self._drop)
        self.calls[made] = (what, caller.f_code, caller.f_lasti)
        return coroutine

    def watch(self, coroutine: Coroutine[Any, Any, Any], what: str, caller: FrameType) -> Coroutine[Any, Any, Any]:
        """Notes a call whose coroutine does not strike itself off; returns one to await in its place."""
        call = Made()
        watched: Any = _begin(self, call, coroutine)
        watched.__name__ = getattr(coroutine, "__name__", what)  # what a task of it is named by
        return self.add(watched, call, what, caller)

    def drop_sleep(self, dropper: FrameType) -> None:
        """Notes that an `asyncio.sleep()` was dropped before it began. Who has made it is not known: mostly `dropper`
        itself, else the function in which the task was then."""
        task = current_task()
        code, instruction = dropper.f_code, dropper.f_lasti
        own = getattr(task.get_coro(), "cr_code", None) if task is not None else None
        if dropper.f_globals.get("__name__", "").partition(".")[0] in ("asyncio", "kagzi") and own is not None:
            code, instruction = own, -1
        self.dropped.append((("asyncio.sleep", code, instruction), task))

    def strike(self, holder: Holder) -> None:
        """Strikes off a call that is being awaited."""
        self.calls.pop(holder.made, None)
        holder.made = None  # so that nobody is told when the coroutine ends

    def become_task(self, task: WorkflowTask, coroutine: object) -> None:
        """Notes that a task was made of a call, or of something that a call may have been given to."""
        if self.calls and type(coroutine) is CoroutineType:
            call = self.calls.pop(ref(coroutine), None)
            if call is None:
                task.add_done_callback(self._excuse_held)
            else:
                task.call = call

    def _excuse_held(self, task: Task[Any]) -> None:
        """Excuses calls that a task which was cut short did not come to: its error holds its frames, and these hold the
        calls."""
        if self.calls and _cut_short(task):
            for error in gc.get_referents(task):
                if isinstance(error, BaseException):
                    for frame, _ in walk_tb(error.__traceback__):
                        for coroutine in unstarted(frame):
                            self.calls.pop(ref(coroutine), None)

    def excuse(self) -> None:
        """Excuses a call that was refused for its arguments, and those that are written beside it, as in a `gather`."""
        self.calls.clear()

    def refuse_dropped(self) -> None:
        """Raises NotAwaited in a workflow that goes on although one of its calls was forgotten."""
        if sys.exc_info()[1] is None:
            self._raise_for_dropped()

    def refuse_at_end(self, held: Collection[int]) -> None:
        """Raises NotAwaited if a call was forgotten. `held`: ids of the coroutines that unfinished tasks hold."""
        self._raise_for_dropped()
        for made, call in self.calls.items():
            coroutine = made()
            if coroutine is not None and coroutine.cr_frame is not None and id(coroutine) not in held:
                raise _error(call)

    def find_left(
        self, tasks: Collection[WorkflowTask], durable: Collection[object], failed_at: int
    ) -> WorkflowTask | None:
        """Returns an unfinished task that nobody waits for, while it or a task below it waits for one of the `durable`;
        None if there is none. What made it may have been cut short before it came to wait, by a timeout or by an error
        of something that it waited for (`failed_at`: the newest task there was then); then it was not forgotten."""
        of_scope = {task.scope: task for task in tasks}
        if any(task.done() and not task.cancelled() and task._exception is not None for task in tasks):
            return None
        for task in tasks:
            if task.done() or getattr(task, "_fut_waiter", None) not in durable:
                continue
            above = [found for scope in task.scope.path() if (found := of_scope.get(scope)) is not None]
            for place, each in enumerate(above):
                excused = each.done() or each.cancelling() or self._is_waited_for(each)
                made = hash(each)
                if not excused and made > failed_at and all(made > maker.cut_at for maker in above[place + 1 :]):
                    return each
        return None

    def _is_waited_for(self, future: asyncio.Future[Any]) -> bool:
        waited = getattr(future, "waited_for", False)
        for callback, _ in future._callbacks or ():
            within = getattr(callback, "__qualname__", "").partition(".")[0]
            if within in ("gather", "shield") and getattr(callback, "__module__", None) == "asyncio.tasks":
                # What these return is to be awaited in its place.
                cells = dict(zip(callback.__code__.co_freevars, callback.__closure__ or (), strict=True))
                outer = cells["outer"].cell_contents if "outer" in cells else None
                if outer is not None and (outer.done() or self._is_waited_for(outer)):
                    return True
                waited = False
            elif callback != self._excuse_held and not isinstance(getattr(callback, "__self__", None), _HOLDS):
                return True
        return bool(waited)

    def close(self) -> None:
        """Notes that the run is let go of: what is dropped from now on was not forgotten."""
        self.calls.clear()
        self.dropped.clear()
        self._drop = _ignore

    def _raise_for_dropped(self) -> None:
        for call, task in self.dropped:
            if task is None or not _cut_short(task):
                raise _error(call)


_warn = getattr(warnings, "_warn_unawaited_coroutine", None)


def _hear(coroutine: Any) -> None:
    """Called by Python for each coroutine that was dropped before it began."""
    loop: Any = _get_running_loop()
    if isinstance(getattr(loop, "unawaited", None), Unawaited):
        if loop.evicting:
            return  # what a `finally:` has made while its run is let go of
        if coroutine.cr_code is asyncio.sleep.__code__:
            loop.unawaited.drop_sleep(sys._getframe(1))
    assert _warn is not None
    _warn(coroutine)


if _warn is not None:
    warnings._warn_unawaited_coroutine = _hear  # type: ignore[attr-defined]


async def _begin(unawaited: Unawaited, call: Made, coroutine: Coroutine[Any, Any, Any]) -> Any:
    unawaited.strike(call)
    return await coroutine


def unstarted(holder: Any) -> list[Any]:
    """Yields the coroutines that a frame or a suspended coroutine, or those it awaits, have made and not awaited
    yet."""
    # All that a frame holds is what the collector sees of it, temporary values included.
    todo, seen = [holder], {id(holder)}
    found = []
    while todo:
        held = gc.get_referents(todo.pop())
        if not _HOLDERS.isdisjoint(map(type, held)):
            held += gc.get_referents(*[value for value in held if type(value) in _HOLDERS])
        if CoroutineType not in map(type, held):
            continue
        for value in held:
            if type(value) is CoroutineType and id(value) not in seen:
                seen.add(id(value))
                if value.cr_suspended:
                    todo.append(value)
                elif value.cr_frame is not None and not value.cr_running:
                    found.append(value)
    return found


_HOLDS = (set, list, dict, deque)  # `task.add_done_callback(tasks.discard)` looks after no task
_HOLDERS = frozenset(
    {list, tuple, set, dict, type(iter([])), type(iter(())), type({}.values()), type(iter({}.values()))}
)


def _ignore(_made: ref[Any]) -> None:
    pass


def _cut_short(task: Task[Any]) -> bool:
    return task.done() and (task.cancelled() or task._exception is not None)


def _error(call: _Call) -> NotAwaited:
    place = _place(call)
    return NotAwaited(f"{call[0]} was called at {place} and never awaited, so it did nothing; write `await` before it")


def _place(call: _Call) -> str:
    _, code, instruction = call
    line = next((line for begin, end, line in code.co_lines() if begin <= instruction < end), None)
    return f"{code.co_filename}:{line or code.co_firstlineno} in {code.co_name}"


def left(task: WorkflowTask, place: str) -> NotAwaited:
    """Returns what to raise for a task that was found left. `place`: where it waits."""
    where = f"waited at {place}" if task.call is None else f"was called at {_place(task.call)}"
    what = task.scope.prefix[:-1] if task.call is None else task.call[0]
    return NotAwaited(
        f"{what} {where}, in a task that nobody waits for, and was not over when the workflow returned, so it was cut "
        f"off; await the task or the asyncio.gather(...) that it is in, or cancel it with task.cancel()"
    )
