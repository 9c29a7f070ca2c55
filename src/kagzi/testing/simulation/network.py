"""The network of the simulated world: to the store, between processes, and its faults.

A call leaves its process, arrives somewhat later, takes effect, and its answer travels back. Each leg has a latency of
its own, drawn from the seed, which is where the different schedules come from. What is under way does not care whether
the sender still lives: a store call in flight at a crash may still be committed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec.structs import replace

from kagzi.core.instant import SECOND
from kagzi.errors import KagziError, Unavailable
from kagzi.store.protocol.changes import Queue
from kagzi.store.protocol.nouns import method_named
from kagzi.testing.simulation.faults import Fault
from kagzi.testing.simulation.process import Process, ProcessLoop
from kagzi.testing.simulation.watched import WatchedStore

if TYPE_CHECKING:
    from kagzi.testing.simulation.world import World

T = TypeVar("T")

# Only these may be repeated by the network, late and unasked; the others are reads, or duties that repeat themselves.
_REPEATABLE = frozenset({"apply", "claim", "workers.heartbeats", "workers.register"})
_HEARTBEATS = frozenset({"heartbeat", "workers.heartbeats"})


class Network:
    def __init__(self, world: World, store: WatchedStore, random: Random) -> None:
        self._world = world
        self._store = store
        self._random = random
        self._host = world.host
        self._ears: dict[str, tuple[ProcessLoop, Callable[..., None], Callable[..., None], Callable[..., None]]] = {}

    def latency(self, method: str = "", *, answer: bool = False) -> float:
        chance = self._random.random()
        weather = self._world.weather
        if chance < weather.delay:
            self._world.happened(Fault.SLOW_ANSWER if answer else Fault.DELAY)
            return self._random.uniform(0.05, 4.0)
        if method in _HEARTBEATS and self._random.random() < weather.slow_heartbeats:
            self._world.happened(Fault.SLOW_HEARTBEAT)
            return self._random.uniform(0.1, 0.9) * self._world.settings.lease / SECOND
        return 0.0002 + 0.003 * chance * chance

    # Calls to the store.

    def ask(self, process: Process, method: str, args: tuple[Any, ...]) -> asyncio.Future[Any]:
        loop = running_loop(process)
        future: asyncio.Future[Any] = loop.create_future()
        if not loop.alive:
            return future  # nobody will ever answer
        chance, weather = self._random.random(), self._world.weather
        if chance < weather.drop:
            self._world.happened(Fault.DROP, f"{process.name} {method}")
            self._refuse(loop, future, f"{method} was lost on its way")
        elif chance < weather.drop + weather.late:
            self._world.happened(Fault.LATE, f"{process.name} {method}")
            self._refuse(loop, future, f"{method} got no answer in time")
            self._host.call_later(self._random.uniform(0.5, 6.0), self._arrive, loop, None, method, args)
        else:
            self._host.call_later(self.latency(method), self._arrive, loop, future, method, args)
            if method in _REPEATABLE and self._random.random() < weather.repeat / 2:
                self._world.happened(Fault.REPEAT, f"{process.name} {method}")
                # Sometimes so late that the lease under which it was made is long gone.
                after = self._random.uniform(0.01, 2 * self._world.settings.lease / SECOND)
                self._host.call_later(after, self._arrive, loop, None, method, args)
        return future

    def _arrive(
        self, loop: ProcessLoop, future: asyncio.Future[Any] | None, method: str, args: tuple[Any, ...]
    ) -> None:
        process = loop.process
        if not loop.alive:
            if self._random.random() < 0.5:
                self._world.happened(Fault.NEVER_SENT, f"{process.name} {method}")
                return
            self._world.happened(Fault.COMMIT_UNKNOWN, f"{process.name} {method}")
        if process.cut_off:
            if future is not None:
                self._refuse(loop, future, "the database cannot be reached")
            return
        try:
            answer = run_at_once(method_named(self._store, method)(*args))
        except KagziError as error:
            if future is not None:
                self._host.call_later(self.latency(method, answer=True), self._deliver, loop, future, None, error)
            return
        if future is None:
            return
        if method == "claim" and self._world.bare_claims:
            answer = replace(answer, claims=tuple(replace(claim, inbox=None) for claim in answer.claims))
        if self._random.random() < self._world.weather.lose:
            self._world.happened(Fault.LOSE, f"{process.name} {method}")
            self._refuse(loop, future, f"the connection broke during {method}")
            return
        self._host.call_later(self.latency(method, answer=True), self._deliver, loop, future, answer, None)

    def _refuse(self, loop: ProcessLoop, future: asyncio.Future[Any], why: str) -> None:
        seconds = self._random.choice((0.001, 0.05, 0.5, 2.0))
        self._host.call_later(seconds, self._deliver, loop, future, None, Unavailable(why))

    def _deliver(self, loop: ProcessLoop, future: asyncio.Future[Any], answer: object, error: Exception | None) -> None:
        loop.call_soon(settle, future, answer, error)

    # Notifications.

    def listen(
        self,
        process: Process,
        on_work: Callable[[Queue], None],
        on_finished: Callable[[str, str], None],
        on_unknown: Callable[[], None],
    ) -> None:
        self._ears[process.name] = (process.loop, on_work, on_finished, on_unknown)

    def announce(self, process: Process, work: Sequence[Queue], finished: Sequence[tuple[str, str]]) -> None:
        weather = self._world.weather
        for name, ear in self._ears.items():
            if name == process.name:
                continue
            if not weather.notifications:
                self._world.happened(Fault.NOTIFICATIONS_DEAD)
            elif process.cut_off or ear[0].process.cut_off or self._random.random() < weather.lost_notifications:
                self._world.happened(Fault.NOTIFICATION_LOST, f"{process.name} to {name}")
            else:
                self._host.call_later(self.latency(), self._tell, ear, tuple(work), tuple(finished))

    def _tell(
        self,
        ear: tuple[ProcessLoop, Callable[..., None], Callable[..., None], Callable[..., None]],
        work: tuple[Queue, ...],
        finished: tuple[tuple[str, str], ...],
    ) -> None:
        loop, on_work, on_finished, on_unknown = ear
        if self._random.random() < 0.3:
            loop.call_soon(on_unknown)  # as SQLite tells it
            return
        for queue in work:
            loop.call_soon(on_work, queue)
        for namespace, run_id in finished:
            loop.call_soon(on_finished, namespace, run_id)


def running_loop(process: Process) -> ProcessLoop:
    """The loop of the process that makes a call: its own, or the one beside it."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, ProcessLoop)
    assert loop.process is process
    return loop


def settle(future: asyncio.Future[Any], answer: object, error: Exception | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(answer)
    else:
        future.set_exception(error)
        future.exception()  # counts as seen, should the caller be gone


def run_at_once(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that never really waits, as those of an inline store."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    coroutine.close()
    raise RuntimeError("an inline store waited for something")
