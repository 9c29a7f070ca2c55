"""What many callers in one process want to say to a server, said in few calls.

While a call is under way the next one fills; there is no timer and no added delay. A single item goes out at once: with
whatever else is submitted in the same turn of the event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from kagzi.api.reply import Reply, settled
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

    def submit(self, namespace: str, item: T, weight: int) -> Reply[A]:
        lane = self._lanes.get(namespace)
        if lane is None:
            lane = self._lanes[namespace] = _Lane(namespace)
        if self._closed or len(lane.waiting) >= _MOST_WAITING:
            reason = "the engine is closed" if self._closed else "too much is waiting to be sent to the server"
            return settled(Unavailable(f"{reason}; nothing was written"))
        reply: Reply[A] = Reply()
        lane.waiting.append((item, weight, reply))
        if lane.calls < self._parallel and not lane.scheduled:
            lane.scheduled = True
            self._loop.call_soon(self._flush, lane)
        return reply

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
            replies: list[Reply[A]] = []
            room = CALL_BYTES
            while lane.waiting and len(items) < CALL_ITEMS:
                item, weight, reply = lane.waiting[0]
                if items and weight > room:
                    break
                lane.waiting.popleft()
                room -= weight
                items.append(item)
                replies.append(reply)
            lane.calls += 1
            task = self._loop.create_task(self._carry(lane, items, replies), name="kagzi-send")
            lane.tasks.add(task)
            task.add_done_callback(lane.tasks.discard)
        if not lane.waiting and not lane.calls:
            self._lanes.pop(lane.namespace, None)

    async def _carry(self, lane: _Lane[T, A], items: list[T], replies: list[Reply[A]]) -> None:
        answers: list[A | KagziError] | None = None
        try:
            answers = await self._send(lane.namespace, items)
        except KagziError as error:
            # One of its own for each caller, since one that many raise collects all their tracebacks.
            answers = [type(error)(str(error)) for _ in items]
        finally:
            lane.calls -= 1
            if answers is None:
                answers = [Unavailable("the call to the server was given up; trying again is safe") for _ in items]
            # Not here: what follows from an answer must not happen inside a task.
            self._loop.call_soon(_answer, replies, answers)
            self._flush(lane)


class _Lane(Generic[T, A]):
    __slots__ = ("calls", "namespace", "scheduled", "tasks", "waiting")

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self.waiting: deque[tuple[T, int, Reply[A]]] = deque()
        self.tasks: set[asyncio.Task[None]] = set()
        self.calls = 0
        self.scheduled = False


def _answer(replies: list[Reply[A]], answers: Sequence[A | KagziError]) -> None:
    for reply, answer in zip(replies, answers, strict=True):
        reply.settle(answer)
