"""What many callers in one process want to say to a server, said in few calls.

While a call is under way the next one fills; there is no timer and no added delay. A single item goes out at once: with
whatever else is submitted in the same turn of the event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from kagzi.errors import KagziError, Unavailable
from kagzi.rpc.limits import CALL_BYTES, CALL_ITEMS

T = TypeVar("T")
A = TypeVar("A")

Send = Callable[[str, list[T]], Awaitable["list[A | KagziError]"]]

_MOST_WAITING = 100_000


class Outbox(Generic[T, A]):
    """`send` makes one call for many items of a namespace, and answers each of them in order."""

    def __init__(self, send: Send[T, A], *, parallel: int) -> None:
        self._send = send
        self._parallel = parallel
        self._loop = asyncio.get_running_loop()
        self._lanes: dict[str, _Lane[T, A]] = {}
        self._closed = False

    def submit(self, namespace: str, item: T, weight: int) -> asyncio.Future[A]:
        future: asyncio.Future[A] = self._loop.create_future()
        lane = self._lanes.get(namespace)
        if lane is None:
            lane = self._lanes[namespace] = _Lane(namespace)
        if self._closed or len(lane.waiting) >= _MOST_WAITING:
            reason = "the engine is closed" if self._closed else "too much is waiting to be sent to the server"
            fail(future, Unavailable(f"{reason}; nothing was written"))
            return future
        lane.waiting.append((item, weight, future))
        if lane.calls < self._parallel and not lane.scheduled:
            lane.scheduled = True
            self._loop.call_soon(self._flush, lane)
        return future

    async def close(self) -> None:
        """Refuse new items and wait for those already here."""
        self._closed = True
        while tasks := [task for lane in self._lanes.values() for task in lane.tasks]:
            await asyncio.wait(tasks)
            await asyncio.sleep(0)

    def _flush(self, lane: _Lane[T, A]) -> None:
        lane.scheduled = False
        while lane.waiting and lane.calls < self._parallel:
            items: list[T] = []
            futures: list[asyncio.Future[A]] = []
            room = CALL_BYTES
            while lane.waiting and len(items) < CALL_ITEMS:
                item, weight, future = lane.waiting[0]
                if items and weight > room:
                    break
                lane.waiting.popleft()
                room -= weight
                items.append(item)
                futures.append(future)
            lane.calls += 1
            task = self._loop.create_task(self._carry(lane, items, futures), name="kagzi-send")
            lane.tasks.add(task)
            task.add_done_callback(lane.tasks.discard)
        if not lane.waiting and not lane.calls:
            self._lanes.pop(lane.namespace, None)

    async def _carry(self, lane: _Lane[T, A], items: list[T], futures: list[asyncio.Future[A]]) -> None:
        try:
            answers = await self._send(lane.namespace, items)
            for future, answer in zip(futures, answers, strict=True):
                if isinstance(answer, KagziError):
                    fail(future, answer)
                elif not future.done():
                    future.set_result(answer)
        except KagziError as error:
            for future in futures:
                # One of its own for each caller, since one that many raise collects all their tracebacks.
                fail(future, type(error)(str(error)))
        finally:
            lane.calls -= 1
            for future in futures:
                fail(future, Unavailable("the call to the server was given up; trying again is safe"))
            self._flush(lane)


class _Lane(Generic[T, A]):
    __slots__ = ("calls", "namespace", "scheduled", "tasks", "waiting")

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self.waiting: deque[tuple[T, int, asyncio.Future[A]]] = deque()
        self.tasks: set[asyncio.Task[None]] = set()
        self.calls = 0
        self.scheduled = False


def fail(future: asyncio.Future[A], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
        future.exception()  # Counts as retrieved: a caller that has gone is no reason for noise.
