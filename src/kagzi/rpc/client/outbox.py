"""The outbox: what many callers of one process send to a server goes out in few calls.

While a call is under way the next one fills; there is no timer and no added delay. A single item goes out at once: with
whatever else is submitted in the same turn of the event loop.

Many items at once go out in two calls, so that this process works on the answers to the first while the server works on
the second. Beside a large call a small one waits: it would cost almost as much as the large one.

What the server cannot write because somebody has locked it is sent again in a call of its own, in which nobody else
waits for it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from kagzi.api.reply import Reply, settled
from kagzi.errors import KagziError, Locked, Unavailable
from kagzi.rpc.limits import CALL_BYTES, CALL_ITEMS

T = TypeVar("T")
A = TypeVar("A")

Send = Callable[[str, list[T]], Awaitable["list[A | KagziError]"]]

_MOST_WAITING = 100_000
_MOST_APART = 50  # of one call
_WORTH_TWO_CALLS = 64  # items
_WORTH_A_CALL = 0.5  # of the items of the largest under way


class Outbox(Generic[T, A]):
    """`send` makes one call for many items of a namespace, and answers each of them in order."""

    def __init__(self, send: Send[T, A], *, parallel: int) -> None:
        self._send = send
        self._parallel = parallel
        self._loop = asyncio.get_running_loop()
        self._lanes: dict[str, _Lane[T, A]] = {}
        self._apart: set[asyncio.Task[None]] = set()  # calls of what is locked
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
        if len(lane.calls) < self._parallel and not lane.scheduled:
            lane.scheduled = True
            self._loop.call_soon(self._flush, lane)
        return reply

    @property
    def idle(self) -> bool:
        return not self._lanes

    async def close(self) -> None:
        """Refuse new items and wait for those already here."""
        self._closed = True
        while tasks := [*self._apart, *(task for lane in self._lanes.values() for task in lane.calls)]:
            await asyncio.wait(tasks)
            await asyncio.sleep(0)

    def _flush(self, lane: _Lane[T, A]) -> None:
        lane.scheduled = False
        while lane.waiting and len(lane.calls) < self._parallel:
            waiting = len(lane.waiting)
            if lane.calls and waiting < max(lane.calls.values()) * _WORTH_A_CALL:
                break
            most = CALL_ITEMS if lane.calls or waiting < _WORTH_TWO_CALLS else min(CALL_ITEMS, (waiting + 1) // 2)
            items: list[T] = []
            replies: list[Reply[A]] = []
            room = CALL_BYTES
            while lane.waiting and len(items) < most:
                item, weight, reply = lane.waiting[0]
                if items and weight > room:
                    break
                lane.waiting.popleft()
                room -= weight
                items.append(item)
                replies.append(reply)
            task = self._loop.create_task(self._carry(lane, items, replies), name="kagzi-send")
            lane.calls[task] = len(items)
        if not lane.waiting and not lane.calls and self._lanes.get(lane.namespace) is lane:
            del self._lanes[lane.namespace]

    async def _carry(self, lane: _Lane[T, A], items: list[T], replies: list[Reply[A]]) -> None:
        answers: list[A | KagziError] | None = None
        task = asyncio.current_task()
        assert task is not None
        try:
            answers = await self._send(lane.namespace, items)
        except KagziError as error:
            # One of its own for each caller, since one that many raise collects all their tracebacks.
            answers = [type(error)(str(error)) for _ in items]
        finally:
            lane.calls.pop(task, None)
            if answers is None:
                answers = [Unavailable("the call to the server was given up; trying again is safe") for _ in items]
            # Not here: what follows from an answer must not happen inside a task.
            if len(items) > 1 and Locked in set(map(type, answers)):
                items, replies, answers = self._send_locked_again(lane, items, replies, answers)
            self._loop.call_soon(_answer, replies, answers)
            self._flush(lane)

    def _send_locked_again(
        self, lane: _Lane[T, A], items: list[T], replies: list[Reply[A]], answers: list[A | KagziError]
    ) -> tuple[list[T], list[Reply[A]], list[A | KagziError]]:
        """Sends what is locked in calls of their own; returns the others."""
        others = [place for place, answer in enumerate(answers) if type(answer) is not Locked]
        locked = sorted(set(range(len(items))) - set(others))
        others += locked[_MOST_APART:]  # who has so many is answered
        for place in locked[:_MOST_APART]:
            task = self._loop.create_task(self._carry(lane, [items[place]], [replies[place]]), name="kagzi-send-locked")
            self._apart.add(task)
            task.add_done_callback(self._apart.discard)
        return ([each[place] for place in others] for each in (items, replies, answers))  # type: ignore[return-value]


class _Lane(Generic[T, A]):
    __slots__ = ("calls", "namespace", "scheduled", "waiting")

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self.waiting: deque[tuple[T, int, Reply[A]]] = deque()
        self.calls: dict[asyncio.Task[None], int] = {}  # under way, and how many items each carries
        self.scheduled = False


def _answer(replies: list[Reply[A]], answers: Sequence[A | KagziError]) -> None:
    for reply, answer in zip(replies, answers, strict=True):
        reply.settle(answer)
