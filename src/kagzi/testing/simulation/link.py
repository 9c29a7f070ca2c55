"""The way from a process without an engine to one that has one."""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING, TypeVar

from kagzi.errors import KagziError, Unavailable
from kagzi.testing.faulty import Call
from kagzi.testing.simulation.faults import Fault
from kagzi.testing.simulation.network import running_loop, settle
from kagzi.testing.simulation.process import Process, ProcessLoop

if TYPE_CHECKING:
    from kagzi.testing.simulation.node import Node
    from kagzi.testing.simulation.world import World


T = TypeVar("T")


class Link:
    """The way from a process without an engine to one that has one (`faulty.Transport`).

    It behaves as a client library does: commits and starts, which are safe to repeat, are repeated for a while, with
    another process if need be.
    """

    def __init__(self, world: World, process: Process, random: Random) -> None:
        self._world = world
        self._process = process
        self._random = random
        self._host = world.host
        self._node: Node | None = None

    async def carry(self, method: str, call: Call[T]) -> T:
        tries = self._random.choice((1, 3, 6)) if method in ("commit", "start") else 1
        while True:
            tries -= 1
            try:
                answer: T = await self._once(method, call)
                return answer
            except Unavailable:
                self._node = None
                if tries <= 0:
                    raise
            await asyncio.sleep(self._random.uniform(0.02, 0.6))

    def _once(self, method: str, call: Call[T]) -> asyncio.Future[T]:
        loop = running_loop(self._process)
        future: asyncio.Future[T] = loop.create_future()
        if not loop.alive:
            return future
        if self._node is None:
            self._node = self._random.choice(self._world.engines)
        # Long polls and waits may take long, everything else may not.
        limit = 12.0 if method in ("poll", "wait") else self._random.choice((1.0, 3.0))
        loop.call_later(limit, settle, future, None, Unavailable(f"{method} got no answer in time"))
        weather = self._world.weather
        if self._random.random() < weather.drop:
            self._world.happened(Fault.DROP, f"{self._process.name} {method}")
            return future
        seconds = self._world.network.latency(method)
        self._host.call_later(seconds, self._arrive, self._node, loop, future, method, call)
        if method != "workers.deregister" and self._random.random() < weather.repeat:
            self._world.happened(Fault.REPEAT, f"{self._process.name} {method}")
            after = self._random.uniform(0.0, 6.0)
            self._host.call_later(after, self._arrive, self._node, loop, None, method, call)
        return future

    def _arrive(
        self, node: Node, loop: ProcessLoop, future: asyncio.Future[T] | None, method: str, call: Call[T]
    ) -> None:
        if not node.process.alive or node.process.cut_off or loop.process.cut_off:
            return
        node.process.spawn(self._serve(node, loop, future, method, call))

    async def _serve(
        self, node: Node, loop: ProcessLoop, future: asyncio.Future[T] | None, method: str, call: Call[T]
    ) -> None:
        answer, error = None, None
        try:
            answer = await call(node.engine)
        except KagziError as refused:
            error = refused
        if future is None or node.process.cut_off or loop.process.cut_off:
            return
        if self._random.random() < self._world.weather.lose:
            self._world.happened(Fault.LOSE, f"{loop.process.name} {method}")
            return
        seconds = self._world.network.latency(method, answer=True)
        self._host.call_later(seconds, self._deliver, loop, future, answer, error)

    def _deliver(self, loop: ProcessLoop, future: asyncio.Future[T], answer: T | None, error: Exception | None) -> None:
        loop.call_soon(settle, future, answer, error)
