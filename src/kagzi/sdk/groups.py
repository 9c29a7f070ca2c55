"""Groups: several things at once, waited for together.

    a, b = await kagzi.parallel(charge(order), reserve(sku), name="book")
    pages = await kagzi.map(render, urls, limit=20, key=str)
    first = await kagzi.race(quick(x), slow(x))

A group is a scope: what its branches record is named by it (`book/charge`, `map[u-7]/render`), so rows of a group lie
together and stay the same when other calls around it change. Nothing is recorded for the group itself. Which branch
ended first follows from the order of events, on replay as in the first execution.

Outside of a workflow the same names do the same with ordinary asyncio tasks.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from asyncio import _get_running_loop
from collections.abc import Awaitable, Callable, Collection, Coroutine, ItemsView, Iterable, KeysView, Set, ValuesView
from contextvars import Context, copy_context
from inspect import isawaitable, iscoroutine
from typing import Any, Final, Literal, TypeAlias, TypeVar, cast, overload

from kagzi.core.limits import check_name
from kagzi.core.options import names_its_options
from kagzi.errors import InvalidRequest, NonDeterminismError
from kagzi.sdk import plainly
from kagzi.sdk.definitions import Call, Step, Workflow
from kagzi.sdk.replay.calls import unstarted_wait
from kagzi.sdk.replay.loop import WorkflowLoop, place_of_call
from kagzi.sdk.replay.scope import Scope
from kagzi.sdk.replay.threaded import in_turn

T = TypeVar("T")
T1 = TypeVar("T1")
T2 = TypeVar("T2")
T3 = TypeVar("T3")
T4 = TypeVar("T4")
T5 = TypeVar("T5")
Item = TypeVar("Item")

OnError: TypeAlias = Literal["fail_fast", "collect_all"]
First: TypeAlias = Literal["done", "success"]
_Task: TypeAlias = "asyncio.Task[Any]"

MOST_BRANCHES: Final = 10_000
_GRACE_SECONDS: Final = 30.0  # how long a group waits for branches that it has cancelled

log = logging.getLogger("kagzi.workflow")


@overload
def parallel(*calls: Awaitable[T], on_error: Literal["collect_all"], name: str = ...) -> Call[list[T | Exception]]: ...
@overload
def parallel(a: Awaitable[T1], /, *, on_error: Literal["fail_fast"] = ..., name: str = ...) -> Call[tuple[T1]]: ...
@overload
def parallel(
    a: Awaitable[T1], b: Awaitable[T2], /, *, on_error: Literal["fail_fast"] = ..., name: str = ...
) -> Call[tuple[T1, T2]]: ...
@overload
def parallel(
    a: Awaitable[T1], b: Awaitable[T2], c: Awaitable[T3], /, *, on_error: Literal["fail_fast"] = ..., name: str = ...
) -> Call[tuple[T1, T2, T3]]: ...
@overload
def parallel(
    a: Awaitable[T1],
    b: Awaitable[T2],
    c: Awaitable[T3],
    d: Awaitable[T4],
    /,
    *,
    on_error: Literal["fail_fast"] = ...,
    name: str = ...,
) -> Call[tuple[T1, T2, T3, T4]]: ...
@overload
def parallel(
    a: Awaitable[T1],
    b: Awaitable[T2],
    c: Awaitable[T3],
    d: Awaitable[T4],
    e: Awaitable[T5],
    /,
    *,
    on_error: Literal["fail_fast"] = ...,
    name: str = ...,
) -> Call[tuple[T1, T2, T3, T4, T5]]: ...
@overload
def parallel(*calls: Awaitable[T], on_error: Literal["fail_fast"] = ..., name: str = ...) -> Call[tuple[T, ...]]: ...
@names_its_options
def parallel(*calls: Awaitable[Any], on_error: OnError = "fail_fast", name: str = "parallel") -> Any:
    """Do several things at once: `a, b = await kagzi.parallel(charge(order), reserve(sku))`.

    Returns their results in the order of the calls. With `on_error="fail_fast"` the first error is raised, after the
    other branches were cancelled and have ended. With `"collect_all"` every branch runs to its end, and a list of
    results and exceptions is returned. `name` is the scope of what the branches record.
    """
    _check_choice(on_error, "on_error", ("fail_fast", "collect_all"))
    group = _Group("parallel", name, _as_branches("parallel", calls, _scope(name)))
    return _given("kagzi.parallel", group.parallel(fail_fast=on_error == "fail_fast"))


@names_its_options
def race(*calls: Awaitable[T], first: First = "done", name: str = "race") -> Call[T]:
    """Do several things at once until one has ended: `await kagzi.race(quick(x), slow(x))`.

    Returns the result of the first branch that ends, or raises its error; with `first="success"`, of the first that
    succeeds, or an ExceptionGroup if none does. The other branches are cancelled, and have ended when this returns.
    """
    _check_choice(first, "first", ("done", "success"))
    if not calls:
        raise InvalidRequest("race() needs at least one call: kagzi.race(quick(x), slow(x))")
    group = _Group("race", name, _as_branches("race", calls, _scope(name)))
    return cast("Call[T]", _given("kagzi.race", group.race(success=first == "success")))


@overload
def map(
    fn: Callable[[Item], Awaitable[T]],
    items: Collection[Item],
    *,
    on_error: Literal["collect_all"],
    limit: int | None = ...,
    key: Callable[[Item], str] | None = ...,
    name: str = ...,
) -> Call[list[T | Exception]]: ...
@overload
def map(
    fn: Callable[[Item], Awaitable[T]],
    items: Collection[Item],
    *,
    on_error: Literal["fail_fast"] = ...,
    limit: int | None = ...,
    key: Callable[[Item], str] | None = ...,
    name: str = ...,
) -> Call[list[T]]: ...
@names_its_options
def map(
    fn: Callable[[Any], Awaitable[Any]],
    items: Collection[Any],
    *,
    limit: int | None = None,
    key: Callable[[Any], str] | None = None,
    on_error: OnError = "fail_fast",
    name: str = "map",
) -> Any:
    """Do one thing for each item: `pages = await kagzi.map(render, urls, limit=20, key=str)`.

    `fn` is a step, a workflow or any function that gives something to await. At most `limit` branches run at once, and
    they start in the order of the items. `key` names the branch of an item (`map[u-7]/render`), so that its results are
    found again when items are added or reordered under a live run; items of one key are numbered (`map[u-7]#2`), as
    calls with `.options(key=)` are. Returns the results in the order of the items.
    """
    _check_choice(on_error, "on_error", ("fail_fast", "collect_all"))
    if not callable(fn):
        raise InvalidRequest(f"map() needs a function and a list: kagzi.map(render, urls); {fn!r:.100} is no function")
    _check_limit(limit)
    check_name(name, "name")
    listed = _in_order(items)
    group = _Group("map", name, _item_branches(fn, listed, key, name), limit)
    return _given("kagzi.map", _listed(group, fail_fast=on_error == "fail_fast"))


def _given(what: str, coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Returns what a call of a group gives: something to await; in `def` code, the result."""
    loop = _get_running_loop()
    if isinstance(loop, WorkflowLoop):
        return in_turn(loop.unawaited.watch(coroutine, what, sys._getframe(3)))
    return plainly.run(what, coroutine) if plainly.cannot_await() else coroutine


async def _listed(group: _Group, *, fail_fast: bool) -> list[Any]:
    return list(await group.parallel(fail_fast=fail_fast))


class _Branch:
    """One branch of a group: what it does, and the scope of what it records (None outside of a workflow)."""

    __slots__ = ("begin", "scope")

    def __init__(self, begin: Callable[[], Coroutine[Any, Any, Any]], scope: Scope | None) -> None:
        self.begin = begin
        self.scope = scope


class _Group:
    """Branches under way. They start in order, at most `limit` at a time, and their ends are noted in order."""

    def __init__(self, kind: str, name: str, branches: list[_Branch], limit: int | None = None) -> None:
        self._what = kind if kind == name else f"{kind} {name!r}"
        self._branches = branches
        self._limit = len(branches) if limit is None else limit
        self._tasks: list[_Task] = []
        self._ended: list[_Task] = []
        self._stop_at: Callable[[_Task], bool] = _never
        self._latch: asyncio.Future[None] | None = None
        self._loop: asyncio.AbstractEventLoop
        self._context: Context

    async def parallel(self, *, fail_fast: bool) -> tuple[Any, ...] | list[Any]:
        await self._run(_has_failed if fail_fast else _never)
        if fail_fast:
            failed = next((task for task in self._ended if _has_failed(task)), None)
            if failed is not None:
                failed.result()
            return tuple(task.result() for task in self._tasks)
        return [_outcome(task) for task in self._tasks]

    async def race(self, *, success: bool) -> Any:
        await self._run(_has_succeeded if success else _always)
        if not success:
            return self._ended[0].result()
        winner = next((task for task in self._ended if _has_succeeded(task)), None)
        if winner is not None:
            return winner.result()
        errors = [_outcome(task) for task in self._tasks]
        raise BaseExceptionGroup("no branch of the race has succeeded", errors)

    async def _run(self, stop_at: Callable[[_Task], bool]) -> None:
        """Runs the branches until all have ended, or one at which the group stops; then ends the others."""
        self._loop = asyncio.get_running_loop()
        self._context = copy_context()
        self._stop_at = stop_at
        self._latch = self._loop.create_future()
        try:
            for _ in range(min(self._limit, len(self._branches))):
                self._start_next()
            if self._branches:
                await self._latch
        finally:
            self._latch = None  # nothing starts any more
            await self._end_others()

    def _start_next(self) -> None:
        branch = self._branches[len(self._tasks)]
        if branch.scope is not None:
            assert isinstance(self._loop, WorkflowLoop)
            task: _Task = self._loop.create_branch(branch.begin(), branch.scope, self._context.copy())
        else:
            task = self._loop.create_task(branch.begin(), context=self._context.copy())
        self._tasks.append(task)
        task.add_done_callback(self._note_end)

    def _note_end(self, task: _Task) -> None:
        self._ended.append(task)
        latch = self._latch
        if latch is None or latch.done():
            return
        if self._stop_at(task) or len(self._ended) == len(self._branches):
            latch.set_result(None)
        elif len(self._tasks) < len(self._branches):
            self._start_next()

    async def _end_others(self) -> None:
        """Cancels the branches that still run and waits for their end, as long as clean-up usually takes."""
        others = [task for task in self._tasks if not task.done()]
        for task in others:
            task.cancel()
        if others:
            _, stubborn = await asyncio.wait(others, timeout=_GRACE_SECONDS)
            if stubborn and not _is_replaying(self._loop):
                log.warning(
                    "%d branches of %s were cancelled and still run after %d s; the workflow goes on without them",
                    len(stubborn),
                    self._what,
                    _GRACE_SECONDS,
                )


def _is_replaying(loop: asyncio.AbstractEventLoop) -> bool:
    return isinstance(loop, WorkflowLoop) and loop.execution.replaying


# Making branches.


def _as_branches(kind: str, calls: tuple[Any, ...], group: Scope | None) -> list[_Branch]:
    """Makes branches of what was passed to `parallel` or `race`."""
    _check_count(calls)
    for call in calls:
        if not isawaitable(call):
            raise InvalidRequest(
                f"{kind}() needs calls to await, not {call!r:.100} (at {place_of_call()}). In a `def` workflow a step "
                "has run when it is passed on: use kagzi.map(step, items) there"
            )
    if group is not None:
        _move_into(group, calls)
    return [_Branch(_beginning(call), _branch_scope(call, group)) for call in calls]


def _item_branches(
    fn: Callable[[Any], Any], items: list[Any], key: Callable[[Any], str] | None, name: str
) -> list[_Branch]:
    """Makes a branch for each item that was passed to `map`."""
    where = _current_scope()
    keys = None if key is None else _keys(items, key)
    group = None if where is None or keys is not None else where.child(name)
    branches = []
    for number, item in enumerate(items):
        scope = None
        if where is not None:
            if keys is not None:
                scope = where.child(f"{name}[{keys[number]}]")
            else:
                assert group is not None
                # A step or a child is named in the group itself; anything else may call several, so it has a scope of
                # its own.
                scope = group if _is_one_call(fn) else group.child(getattr(fn, "__name__", "call"))
        branches.append(_Branch(_calling(fn, item), scope))
    return branches


def _is_one_call(fn: Any) -> bool:
    """Returns whether a call of this is a step or a child run: `charge`, `render.run`."""
    return isinstance(fn, Step) or isinstance(getattr(fn, "__self__", None), Workflow)


def _keys(items: list[Any], key: Callable[[Any], str]) -> list[str]:
    return [check_name(key(item), "key of an item") for item in items]


def _beginning(call: Any) -> Callable[[], Coroutine[Any, Any, Any]]:
    return (lambda: call) if iscoroutine(call) else (lambda: _awaiting(call))


async def _awaiting(call: Awaitable[Any]) -> Any:
    return await call


def _calling(fn: Callable[[Any], Any], item: Any) -> Callable[[], Coroutine[Any, Any, Any]]:
    async def call() -> Any:
        called = fn(item)
        if not isawaitable(called):
            raise InvalidRequest(f"map() needs a function whose calls can be awaited; {fn!r:.100} returned a value")
        return await called

    return call


def _move_into(group: Scope, calls: tuple[Any, ...]) -> None:
    """Names steps in the group: called in the argument list, they were named in the scope around it."""
    where = _current_scope()
    waits = [wait for call in calls if (wait := unstarted_wait(call)) is not None]
    made = [step for step in waits if not getattr(step, "rooted", False)]
    # The last one first: a number can be given back only while it is the last that was taken.
    moved = {id(step) for step in reversed(made) if where is not None and where.give_back(step.step_id)}
    for step in made:
        if id(step) in moved:
            step.step_id = group.identity(step.name)


def _branch_scope(call: Any, group: Scope | None) -> Scope | None:
    if group is None or unstarted_wait(call) is not None:
        return group  # a step has its name already
    return group.child(getattr(call, "__name__", type(call).__name__))


def _scope(name: str) -> Scope | None:
    check_name(name, "name")
    where = _current_scope()
    return None if where is None else where.child(name)


def _current_scope() -> Scope | None:
    loop = _get_running_loop()
    return loop.current_scope() if isinstance(loop, WorkflowLoop) else None


def _in_order(items: Iterable[Any]) -> list[Any]:
    """Returns the items as a list, if their order is the same on every replay."""
    ordered = isinstance(items, (KeysView, ValuesView, ItemsView)) or not isinstance(items, Set)
    if not isinstance(items, Collection) or not ordered:
        raise NonDeterminismError(
            f"map() would go through this {type(items).__name__} in an order that may differ from run to run; pass it "
            f"a list (at {place_of_call()})"
        )
    listed = list(items)
    _check_count(listed)
    return listed


def _check_count(branches: Collection[Any]) -> None:
    if len(branches) > MOST_BRANCHES:
        raise InvalidRequest(f"a group has at most {MOST_BRANCHES:,} branches, not {len(branches):,}")


def _check_limit(limit: object) -> None:
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise InvalidRequest(f"limit must be a whole number from 1 on, not {limit!r:.100}")


def _check_choice(value: object, field: str, words: tuple[str, str]) -> None:
    if value not in words:
        raise InvalidRequest(f'{field} must be "{words[0]}" or "{words[1]}", not {value!r:.100}')


# How a branch ended.


def _never(_task: _Task) -> bool:
    return False


def _always(_task: _Task) -> bool:
    return True


def _has_failed(task: _Task) -> bool:
    return task.cancelled() or task.exception() is not None


def _has_succeeded(task: _Task) -> bool:
    return not _has_failed(task)


def _outcome(task: _Task) -> Any:
    if task.cancelled():
        return asyncio.CancelledError("this branch was cancelled from within itself")
    error = task.exception()
    return task.result() if error is None else error
