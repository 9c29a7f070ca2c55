"""Worlds of another kind, in which servers hang: workers and clients without an engine, and three servers for them.

A server is stopped, or its database does not answer, one after the other and never two at once. Nothing else goes
wrong, so all who call are to be answered within seconds: by the silence of a server that is stopped, and by refusals of
one that knows that its database is gone (`LocalEngine.silence`), callers go over to the next one
(`rpc.client.failover.Choice`).
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING, Any, Final, TypeVar

from kagzi.engine.local import LocalEngine
from kagzi.errors import KagziError, Unavailable
from kagzi.rpc.client.failover import Choice
from kagzi.rpc.limits import LOOK_SECONDS, SILENT_LOOKS
from kagzi.serve import SILENCE_SECONDS
from kagzi.testing.faulty import Call
from kagzi.testing.simulation.faults import CALM
from kagzi.testing.simulation.network import Network, running_loop, settle
from kagzi.testing.simulation.node import Node
from kagzi.testing.simulation.process import Process, ProcessLoop
from kagzi.testing.simulation.world import World

if TYPE_CHECKING:
    pass

T = TypeVar("T")

SERVERS: Final = 3
BOUND_SECONDS: Final = 5.0  # for an answer, while one server hangs
_CALL_SECONDS: Final = 10.0
_POLL_SECONDS: Final = 12.0
_PATIENCE_SECONDS: Final = 30.0
_DATABASE_SECONDS: Final = 15.0  # after which a call to a database that does not answer is given up


class HangingWorld(World):
    def __init__(self, seed: int, *, keep_log: bool = True) -> None:
        super().__init__(seed, keep_log=keep_log)
        self.hanging = Random(f"kagzi hanging {seed}")
        self.weather = CALM
        self.dark: set[str] = set()  # processes to which the database does not answer
        self.network = _Cables(self, self.watched, Random(f"kagzi cables {seed}"))
        self.servers = list(self.engines)
        self.host.call_later(self.hanging.uniform(1.0, 4.0), self._hang, 0)

    def link(self, process: Process, random: Random) -> FailoverLink:
        return FailoverLink(self, process, random)

    def _draw_nodes(self, random: Random) -> list[Node]:
        nodes = []
        for number in range(SERVERS + 2):
            serves = number < SERVERS
            process = Process(f"{'server' if serves else 'remote'}-{number + 1}", self.host, self._trouble)
            process.world = self
            nodes.append(Node(self, process, Random(random.random()), engine=serves, worker=not serves))
        return nodes

    def _clients(self, random: Random) -> list[Node]:
        return random.sample([node for node in self.nodes if not node.has_engine], random.choice((1, 2)))

    def _hang(self, number: int) -> None:
        if self.calm:
            return
        process, seconds = self.servers[number % SERVERS].process, self.hanging.uniform(6.0, 12.0)
        if self.hanging.random() < 0.5:
            self.log(process.name, f"is stopped for {seconds:.3f} s")
            process.pause()
        else:
            self.log(process.name, f"has no database for {seconds:.3f} s")
            self.dark.add(process.name)
        self.host.call_later(seconds, self._go_on, number)

    def _go_on(self, number: int) -> None:
        process = self.servers[number % SERVERS].process
        self.dark.discard(process.name)
        if not self.calm:
            if process.loop.paused:
                process.resume()
            self.log(process.name, "is well again")
            self.host.call_later(self.hanging.uniform(3.0, 5.0), self._hang, number + 1)


class _Cables(Network):
    """The way to the database, on which what is asked may meet silence."""

    def ask(self, process: Process, method: str, args: tuple[Any, ...]) -> asyncio.Future[Any]:
        world = self._world
        assert isinstance(world, HangingWorld)
        if process.name not in world.dark:
            return super().ask(process, method, args)
        loop = running_loop(process)
        future: asyncio.Future[Any] = loop.create_future()
        loop.call_later(_DATABASE_SECONDS, settle, future, None, Unavailable(f"{method} got no answer"))
        return future


class FailoverLink:
    """The way from a process without an engine to the servers (`faulty.Transport`), as `rpc.client` goes it."""

    def __init__(self, world: HangingWorld, process: Process, random: Random) -> None:
        self._world = world
        self._process = process
        self._host = world.host
        self._servers = sorted(world.servers, key=lambda _: random.random())
        self._choice = Choice(len(self._servers))
        self._random = random

    async def carry(self, method: str, call: Call[T]) -> T:
        """Makes a call, and repeats what has to arrive as long as `rpc.client.line.Line` does."""
        begun = self._host.time()
        patience = _PATIENCE_SECONDS if method in ("commit", "start") else 0.0
        while True:
            used = self._choice.used
            try:
                answer: T = await self._once(self._servers[used], method, call)
                self._check(method, begun)
                return answer
            except Unavailable:
                self._choice.leave(used)
                self._check(method, begun)
                if self._host.time() - begun >= patience:
                    raise
            await asyncio.sleep(self._random.uniform(0.02, 0.06))

    def _check(self, method: str, begun: float) -> None:
        waited = self._host.time() - begun
        if method not in ("poll", "wait", "news") and waited > BOUND_SECONDS and not self._world.calm:
            raise self._world.violation(f"{self._process.name} waited {waited:.3f} s for an answer to {method}")

    async def _once(self, server: Node, method: str, call: Call[T]) -> T:
        loop = running_loop(self._process)
        future: asyncio.Future[T] = loop.create_future()
        most = _POLL_SECONDS if method in ("poll", "wait", "news") else _CALL_SECONDS
        loop.call_later(most, settle, future, None, Unavailable(f"{method} got no answer in time"))
        seconds = self._world.network.latency(method)
        self._host.call_later(seconds, self._arrive, server, loop, future, method, call)
        self._host.call_later(LOOK_SECONDS, self._look, server, loop, future, 1)
        return await future

    def _look(self, server: Node, loop: ProcessLoop, future: asyncio.Future[Any], silent: int) -> None:
        """Looks for signs of the server, and has it end what waits while it has no database."""
        if future.done() or not loop.alive:
            return
        if not _is_silent(server):
            silent = 0
            if _is_not_ready(server):
                self._deliver(loop, future, None, Unavailable("the server cannot reach its database"))
                return
        elif silent >= SILENT_LOOKS:
            loop.call_soon(settle, future, None, Unavailable("the server has said nothing"))
            return
        self._host.call_later(LOOK_SECONDS, self._look, server, loop, future, silent + 1)

    def _arrive(self, server: Node, loop: ProcessLoop, future: asyncio.Future[T], method: str, call: Call[T]) -> None:
        if not server.process.alive or _is_not_ready(server):
            self._deliver(loop, future, None, Unavailable("the server cannot reach its database"))
        else:
            server.process.spawn(self._serve(server, loop, future, method, call))

    async def _serve(
        self, server: Node, loop: ProcessLoop, future: asyncio.Future[T], method: str, call: Call[T]
    ) -> None:
        answer, error = None, None
        try:
            answer = await call(server.engine)
        except KagziError as refused:
            error = refused
        seconds = self._world.network.latency(method, answer=True)
        self._host.call_later(seconds, self._deliver, loop, future, answer, error)

    def _deliver(self, loop: ProcessLoop, future: asyncio.Future[T], answer: T | None, error: Exception | None) -> None:
        loop.call_soon(settle, future, answer, error)


def _is_silent(server: Node) -> bool:
    return server.process.loop.paused or server.process.cut_off


def _is_not_ready(server: Node) -> bool:
    engine = getattr(server, "engine", None)
    return not isinstance(engine, LocalEngine) or engine._parts is None or engine.silence() >= SILENCE_SECONDS
