"""`@app.resource`: what the steps of a worker share, such as a pool of connections or an HTTP client.

Opened once when a worker starts, before it takes runs, and closed when it has drained. Workers in one process share
them.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, AsyncExitStack
from typing import Any, Final, Generic, TypeVar

from kagzi.errors import InvalidRequest
from kagzi.sdk.replay.loop import place_of_call

T = TypeVar("T")

_CLOSED: Final = object()


class Resource(Generic[T]):
    """A resource of an app. Calling it gives what is open: `async with pool().acquire() as connection: ...`."""

    def __init__(self, fn: Callable[[], Any], name: str) -> None:
        self.__doc__ = fn.__doc__
        self.fn = fn
        self.name = name
        self._make = _as_block(fn, name)
        self._value: Any = _CLOSED

    def __call__(self) -> T:
        if self._value is _CLOSED:
            raise InvalidRequest(
                f"the resource {self.name} is not open (at {place_of_call()}): a worker opens it for its steps; "
                "elsewhere use it inside `async with app.resources():`"
            )
        value: T = self._value
        return value

    async def open(self, stack: AsyncExitStack) -> None:
        block = self._make()
        if isinstance(block, AbstractAsyncContextManager):
            self._value = await stack.enter_async_context(block)
        else:
            self._value = stack.enter_context(block)
        stack.callback(self._close)

    def _close(self) -> None:
        self._value = _CLOSED

    def __repr__(self) -> str:
        return f"<resource {self.name}>"


class Resources:
    """All resources of an app, open while anybody needs them."""

    def __init__(self) -> None:
        self._known: dict[str, Resource[Any]] = {}
        self._users = 0
        self._stack: AsyncExitStack | None = None

    def add(self, fn: Callable[[], Any]) -> Resource[Any]:
        name = getattr(fn, "__name__", None)
        if not isinstance(name, str):
            raise InvalidRequest(f"@app.resource is for a function, not {fn!r:.100}")
        if name in self._known:
            raise InvalidRequest(f"there is a resource {name!r} already; give this one another name")
        if inspect.signature(fn).parameters:
            raise InvalidRequest(f"the resource {name} takes no parameters: a worker opens it by itself")
        made: Resource[Any] = Resource(fn, name)
        self._known[name] = made
        return made

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Opens the resources in the order in which they were defined, so that one may use another, unless they are
        open; the last who leaves closes them in the opposite order."""
        self._users += 1
        try:
            if self._users == 1 and self._known:
                async with AsyncExitStack() as stack:
                    for resource in self._known.values():
                        await resource.open(stack)
                    self._stack = stack.pop_all()
            yield
        finally:
            self._users -= 1
            if not self._users and self._stack is not None:
                stack, self._stack = self._stack, None
                await stack.aclose()


def _as_block(
    fn: Callable[[], Any], name: str
) -> Callable[[], AbstractAsyncContextManager[Any] | AbstractContextManager[Any]]:
    if inspect.isasyncgenfunction(fn):
        return contextlib.asynccontextmanager(fn)
    if inspect.isgeneratorfunction(fn):
        return contextlib.contextmanager(fn)
    if inspect.iscoroutinefunction(fn):
        raise InvalidRequest(f"the resource {name} has to `yield` what it opens, once, and close it afterwards")

    def made() -> AbstractAsyncContextManager[Any] | AbstractContextManager[Any]:
        block = fn()
        if not isinstance(block, (AbstractAsyncContextManager, AbstractContextManager)):
            raise InvalidRequest(
                f"the resource {name} has to `yield` what it opens, or return something for `async with`, not "
                f"{block!r:.100}"
            )
        return block

    return made


Opens = Callable[[], AsyncIterator[T]] | Callable[[], Iterator[T]] | Callable[[], AbstractAsyncContextManager[T]]
