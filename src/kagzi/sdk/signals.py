"""Signals, as workflow code waits for them and as others send them.

    approved = await kagzi.wait_signal("approved", bool, timeout="3d", default=False)
    async for item in kagzi.signals("added", Item, timeout="1h"): ...

A signal that was sent before the workflow waits for it is kept: waits take signals in the order of their arrival.
"""

from __future__ import annotations

import asyncio
import sys
from asyncio import _get_running_loop
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from types import FrameType
from typing import Any, Final, Generic, TypeVar, overload

from kagzi.core.duration import Duration, parse_duration
from kagzi.core.instant import SECOND, Span
from kagzi.core.limits import check_name
from kagzi.core.lineage import PayloadKind
from kagzi.errors import InvalidRequest
from kagzi.sdk.ambient import payload_codec
from kagzi.sdk.definitions import Call
from kagzi.sdk.replay import calls
from kagzi.sdk.replay.execution import Execution
from kagzi.sdk.replay.loop import WorkflowLoop, place_of_call
from kagzi.sdk.replay.side_threads import refuse_beside_workflow
from kagzi.sdk.replay.threaded import in_turn
from kagzi.sdk.replay.unawaited import Made
from kagzi.sdk.signal_values import value_codec
from kagzi.sdk.signature import Signature

T = TypeVar("T")
D = TypeVar("D")

_MISSING: Final[Any] = object()


@overload
def wait_signal(name: str, *, timeout: Duration | None = None) -> Call[Any]: ...
@overload
def wait_signal(name: str, type: type[T], *, timeout: Duration | None = None) -> Call[T]: ...
@overload
def wait_signal(name: str, type: type[T], *, timeout: Duration | None = None, default: D) -> Call[T | D]: ...
@overload
def wait_signal(name: str, type: Any = ..., *, timeout: Duration | None = None, default: Any = ...) -> Call[Any]: ...
def wait_signal(name: str, type: Any = Any, *, timeout: Duration | None = None, default: Any = _MISSING) -> Any:
    """Wait for a signal of this name and return its value: `await kagzi.wait_signal("approved", bool)`.

    One that was sent before is taken at once, the oldest first; each signal is taken by one wait. While it waits, the
    run is parked: it holds no worker and no memory. After `timeout` it gets `default`, or TimeoutError if there is
    none. A value that does not fit `type` is an error here, and the signal is taken all the same.
    """
    return _waiting(name, type, timeout, default, sys._getframe(1))


def _waiting(name: str, type: Any, timeout: Duration | None, default: Any, caller: FrameType) -> Any:
    check_name(name, "signal name")
    span = None if timeout is None else parse_duration(timeout, "timeout")
    loop = _get_running_loop()
    if not isinstance(loop, WorkflowLoop):
        refuse_beside_workflow("kagzi.wait_signal()")
        raise InvalidRequest(f"kagzi.wait_signal({name!r}) was called outside of a workflow")
    if loop.unawaited.dropped:
        loop.unawaited.refuse_dropped()
    if span is None and default is not _MISSING and default is not _MISSING_VALUE:
        raise InvalidRequest(
            f"kagzi.wait_signal({name!r}) has a default and no timeout, so it would never give it; say how long it "
            f'waits: timeout="1h" (at {place_of_call()})'
        )
    call = Made()
    waiting = _wait(loop, call, name, _reader(loop.execution, name, type), span, default)
    return in_turn(loop.unawaited.add(waiting, call, "kagzi.wait_signal", caller))


async def _wait(loop: WorkflowLoop, call: Made, name: str, reader: Signature, span: Span | None, default: Any) -> Any:
    loop.unawaited.strike(call)
    told = span if default is not _MISSING and default is not _MISSING_VALUE else None
    decode: Callable[[bytes], Any] = reader.decode_result
    if reader.seal is not None:
        decode = partial(reader.decode_result, context=loop.execution.lineage.of(PayloadKind.SIGNAL, name))
    signal = calls.wait_signal(loop.execution, name, decode, told)
    if span is None:
        return await signal
    try:
        async with asyncio.timeout(span / SECOND):
            return await signal
    except TimeoutError:
        if default is _MISSING:
            raise TimeoutError(f"no signal {name!r} has come within {span / SECOND:g} s") from None
        return default


@overload
def signals(name: str, *, timeout: Duration | None = None) -> Signals[Any]: ...
@overload
def signals(name: str, type: type[T], *, timeout: Duration | None = None) -> Signals[T]: ...
def signals(name: str, type: Any = Any, *, timeout: Duration | None = None) -> Signals[Any]:
    """One signal of this name after the other: `async for item in kagzi.signals("added", Item, timeout="1h")`.

    Ends when none has come for as long as `timeout`; without one it never does. In a `def` workflow, `for` does the
    same.
    """
    check_name(name, "signal name")
    return Signals(name, type, timeout)


class Signals(Generic[T]):
    """The signals of one name, one after the other."""

    __slots__ = ("_name", "_timeout", "_type")

    def __init__(self, name: str, type: Any, timeout: Duration | None) -> None:
        self._name = name
        self._type = type
        self._timeout = timeout

    def __aiter__(self) -> AsyncIterator[T]:
        return self

    async def __anext__(self) -> T:
        value = await _waiting(self._name, self._type, self._timeout, _MISSING_VALUE, sys._getframe(1))
        if value is _MISSING_VALUE:
            raise StopAsyncIteration
        result: T = value
        return result

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        value = _waiting(self._name, self._type, self._timeout, _MISSING_VALUE, sys._getframe(1))
        if asyncio.iscoroutine(value):
            value.close()
            raise InvalidRequest("write `async for … in kagzi.signals(…)`: plain `for` is for `def` workflows")
        if value is _MISSING_VALUE:
            raise StopIteration
        result: T = value
        return result


_MISSING_VALUE: Final[Any] = object()


def _reader(execution: Execution, name: str, annotation: Any) -> Signature:
    return value_codec(annotation, f"signal {name!r}", payload_codec(execution))
