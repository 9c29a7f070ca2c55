"""An engine out of reach every now and then: calls are dropped, delayed, repeated, answers are lost, all from a seed.

`FaultyEngine` wraps any Engine. What happens to a call is up to its `Transport`; the one used by default draws from a
seeded `random.Random`, so a test that fails fails again.

>>> engine = FaultyEngine(UnreliableTransport(real, Random(7), drop=0.1, lose=0.1, repeat=0.1), real)

A call that is dropped never reaches the engine; one whose answer is lost does, and the caller cannot tell which it was:
both raise Unavailable. A repeated call reaches the engine a second time, later, and nobody hears the second answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Protocol, TypeVar

from kagzi.api.engine import Engine
from kagzi.api.operations import (
    CancelAnswer,
    CancelRun,
    Chunk,
    ChunkAnswer,
    RepeatRun,
    SendSignal,
    SignalAnswer,
    Started,
    StartRun,
    TerminateRun,
    WakeAnswer,
)
from kagzi.api.reply import Reply, reply_of
from kagzi.api.workers import (
    AttachedWorker,
    Heartbeat,
    HeartbeatAnswer,
    Inbox,
    Poll,
    Polled,
    Registered,
    Registration,
    RunNews,
)
from kagzi.api.workflows import RunFilter
from kagzi.core.health import Health
from kagzi.core.instant import Span
from kagzi.core.limits import DEFAULT_PAGE_SIZE
from kagzi.core.page import Page
from kagzi.core.run import Run
from kagzi.core.run_value import RunValue
from kagzi.core.signal import Signal
from kagzi.core.step import Step
from kagzi.errors import Unavailable

T = TypeVar("T")
Call = Callable[[Engine], Awaitable[T]]


class Transport(Protocol):
    """The way to an engine and back."""

    async def carry(self, method: str, call: Call[T]) -> T:
        """Make the call on the engine at the other end, or raise Unavailable."""
        ...


class UnreliableTransport:
    """Loses, delays and repeats calls to an engine on the same event loop. Rates are shares of all calls."""

    def __init__(
        self,
        engine: Engine,
        random: Random,
        *,
        drop: float = 0.0,
        lose: float = 0.0,
        repeat: float = 0.0,
        delay: float = 0.0,
        longest: float = 0.05,
    ) -> None:
        self._engine = engine
        self._random = random
        self._drop = drop
        self._lose = lose
        self._repeat = repeat
        self._delay = delay
        self._longest = longest
        self._repeats: set[asyncio.Task[None]] = set()
        self.calls: list[tuple[str, str]] = []  # (method, what became of it), for tests to look at

    async def carry(self, method: str, call: Call[T]) -> T:
        chance = self._random.random
        if chance() < self._delay:
            await asyncio.sleep(chance() * self._longest)
        if chance() < self._drop:
            self.calls.append((method, "dropped"))
            raise Unavailable(f"{method}: the call was dropped")
        if chance() < self._repeat:
            self.calls.append((method, "repeated"))
            task = asyncio.ensure_future(self._again(call, chance() * self._longest))
            self._repeats.add(task)
            task.add_done_callback(self._repeats.discard)
        answer = await call(self._engine)
        if chance() < self._delay:
            await asyncio.sleep(chance() * self._longest)
        if chance() < self._lose:
            self.calls.append((method, "lost"))
            raise Unavailable(f"{method}: the answer was lost")
        self.calls.append((method, "answered"))
        return answer

    async def _again(self, call: Call[T], after: float) -> None:
        await asyncio.sleep(after)
        try:
            await call(self._engine)
        except Exception as error:
            # Whatever it is, the caller has had its answer.
            self.calls.append(("repeat", repr(error)))


class FaultyEngine:
    """`api.engine.Engine` behind a transport. An engine given along is opened and closed with it."""

    def __init__(self, transport: Transport, engine: Engine | None = None) -> None:
        self._transport = transport
        self._engine = engine
        self.workflows = FaultyWorkflows(transport)
        self.workers = FaultyWorkers(transport)

    async def open(self) -> None:
        if self._engine is not None:
            await self._engine.open()

    async def close(self) -> None:
        if self._engine is not None:
            await self._engine.close()

    async def health(self) -> Health:
        return await self._transport.carry("health", lambda engine: engine.health())

    def sibling(self) -> Engine:
        """The same: there is one event loop wherever this is used."""
        return self


class FaultyWorkflows:
    def __init__(self, transport: Transport) -> None:
        self._carry = transport.carry

    def start(self, start: StartRun, *, awaited: bool = False) -> Awaitable[Started]:
        return self._carry("start", lambda engine: engine.workflows.start(start, awaited=awaited))

    async def get(self, namespace: str, run_id: str) -> Run:
        return await self._carry("get", lambda engine: engine.workflows.get(namespace, run_id))

    async def get_by_external_id(self, namespace: str, external_id: str) -> Run:
        return await self._carry(
            "get_by_external_id", lambda engine: engine.workflows.get_by_external_id(namespace, external_id)
        )

    async def list(
        self, filter: RunFilter, *, page_size: int = DEFAULT_PAGE_SIZE, page_token: str | None = None
    ) -> Page[Run]:
        return await self._carry(
            "list", lambda engine: engine.workflows.list(filter, page_size=page_size, page_token=page_token)
        )

    async def steps(
        self,
        namespace: str,
        run_id: str,
        *,
        whole: bool = False,
        payloads: bool = True,
        step_id: str | None = None,
    ) -> tuple[Step, ...]:
        return await self._carry(
            "steps",
            lambda engine: engine.workflows.steps(namespace, run_id, whole=whole, payloads=payloads, step_id=step_id),
        )

    async def wait(self, namespace: str, run_id: str, timeout: Span) -> Run:
        return await self._carry("wait", lambda engine: engine.workflows.wait(namespace, run_id, timeout))

    async def cancel(self, cancel: CancelRun) -> CancelAnswer:
        return await self._carry("cancel", lambda engine: engine.workflows.cancel(cancel))

    async def terminate(self, terminate: TerminateRun) -> CancelAnswer:
        return await self._carry("terminate", lambda engine: engine.workflows.terminate(terminate))

    async def wake(self, namespace: str, run_id: str) -> WakeAnswer:
        return await self._carry("wake", lambda engine: engine.workflows.wake(namespace, run_id))

    async def signal(self, signal: SendSignal) -> SignalAnswer:
        return await self._carry("signal", lambda engine: engine.workflows.signal(signal))

    async def signals(self, namespace: str, run_id: str, *, after: int = 0) -> tuple[Signal, ...]:
        return await self._carry("signals", lambda engine: engine.workflows.signals(namespace, run_id, after=after))

    async def values(
        self, namespace: str, run_id: str, names: Sequence[str] = (), *, after: str = ""
    ) -> tuple[RunValue, ...]:
        return await self._carry(
            "values", lambda engine: engine.workflows.values(namespace, run_id, names, after=after)
        )

    async def repeat(self, repeat: RepeatRun) -> Started:
        return await self._carry("repeat", lambda engine: engine.workflows.repeat(repeat))


class FaultyWorkers:
    def __init__(self, transport: Transport) -> None:
        self._carry = transport.carry

    async def register(self, registration: Registration) -> Registered:
        return await self._carry("register", lambda engine: engine.workers.register(registration))

    async def poll(self, poll: Poll) -> Polled:
        return await self._carry("poll", lambda engine: engine.workers.poll(poll))

    def commit(self, chunk: Chunk) -> Reply[ChunkAnswer]:
        return reply_of(self._carry("commit", lambda engine: engine.workers.commit(chunk)))

    async def heartbeat(self, heartbeat: Heartbeat, within: Span | None = None) -> HeartbeatAnswer:
        return await self._carry("heartbeat", lambda engine: engine.workers.heartbeat(heartbeat, within))

    async def read_inbox(
        self,
        namespace: str,
        run_id: str,
        token: str,
        names: Sequence[str],
        *,
        children: bool = False,
        reconcile: bool = False,
    ) -> Inbox:
        return await self._carry(
            "read_inbox",
            lambda engine: engine.workers.read_inbox(
                namespace, run_id, token, names, children=children, reconcile=reconcile
            ),
        )

    async def news(self, worker_id: str, namespace: str, wait: Span) -> tuple[RunNews, ...]:
        return await self._carry("news", lambda engine: engine.workers.news(worker_id, namespace, wait))

    async def drain(self, worker_id: str, namespace: str | None = None) -> None:
        await self._carry("drain", lambda engine: engine.workers.drain(worker_id, namespace))

    async def deregister(self, worker_id: str, namespace: str | None = None) -> None:
        await self._carry("deregister", lambda engine: engine.workers.deregister(worker_id, namespace))

    def attach(self, adopter: AttachedWorker, namespace: str, queues: tuple[str, ...]) -> None:
        """Adoption is for workers in the engine's own process, which this one is not."""
