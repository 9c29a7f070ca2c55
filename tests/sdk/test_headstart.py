"""A worker that had nothing to do lets its first commit go ahead of its next poll."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import replace

from kagzi import Kagzi
from kagzi.api.engine import Engine
from kagzi.api.operations import Chunk, ChunkAnswer
from kagzi.api.reply import Reply
from kagzi.api.workers import Poll, Polled, Registered
from kagzi.core.instant import SECOND
from kagzi.core.step import Step
from kagzi.ids import RandomIds
from kagzi.sdk.worker.settings import WorkerSettings
from kagzi.sdk.worker.worker import Worker
from tests.engine.support import run
from tests.sdk.test_heartbeat import new_claim
from tests.sdk.test_suspects import NoHeart, NoInbox


class Claims(NoInbox):
    """An engine's worker service that gives runs to polls, and stores nothing until it is told to."""

    def __init__(self) -> None:
        self.now = 0
        self.history: tuple[Step, ...] = ()  # of every run
        self.polled_at: list[float] = []
        self.unsettled: list[Reply[ChunkAnswer]] = []
        self._runs: asyncio.Queue[tuple[str, ...]] = asyncio.Queue()

    async def register(self, _: object) -> Registered:
        return Registered(lease=60 * SECOND, heartbeat=20 * SECOND)

    async def poll(self, _: Poll) -> Polled:
        self.polled_at.append(asyncio.get_running_loop().time())
        runs = await self._runs.get()
        claims = [replace(new_claim(run_id, 60 * SECOND), history=self.history) for run_id in runs]
        return Polled(now=self.now, claims=tuple(claims))

    def give(self, *runs: str) -> None:
        self._runs.put_nowait(runs)

    def commit(self, _: Chunk) -> Reply[ChunkAnswer]:
        self.unsettled.append(Reply())
        return self.unsettled[-1]

    def settle(self) -> None:
        settled, self.unsettled = self.unsettled, []
        for reply in settled:
            reply.settle(ChunkAnswer.DONE)

    async def drain(self, _: str) -> None: ...

    async def deregister(self, _: str) -> None: ...


def worker_of(service: Claims, app: Kagzi, **settings: int) -> Worker:
    """On the time of this event loop."""
    loop = asyncio.get_running_loop()
    clock: Any = SimpleNamespace(now=lambda: round(loop.time() * SECOND), monotonic=lambda: round(loop.time() * SECOND))
    return Worker(
        cast("Engine", SimpleNamespace(workers=service)),
        app,
        namespace="default",
        clock=clock,
        ids=RandomIds(clock.now),
        settings=WorkerSettings(adopt=False, **settings),
        heart=NoHeart,
    )


def play(
    scene: Callable[[Claims], Awaitable[None]], body: Callable[[], Awaitable[None]], *, concurrency: int = 100
) -> None:
    """The scene begins when the worker has nothing to do and waits for the answer to its first poll."""
    app = Kagzi("memory://")

    @app.step
    async def step() -> None:
        await body()

    @app.workflow(name="order")
    async def order() -> None:
        await step()

    async def main() -> None:
        service = Claims()
        worker = worker_of(service, app, grace=0, concurrency=concurrency)
        await worker.start()
        await asyncio.sleep(1)
        assert len(service.polled_at) == 1
        await scene(service)
        stopping = asyncio.create_task(worker.stop())
        while not stopping.done():
            service.settle()
            await asyncio.sleep(0.1)

    run(main)


async def at_once() -> None: ...


async def long_work() -> None:
    await asyncio.sleep(10)


async def until(count: Callable[[], int], wanted: int) -> None:
    """Without time going by."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    for _ in range(100):
        if count() == wanted:
            break
        await asyncio.sleep(0)
    assert (count(), loop.time()) == (wanted, began)


def test_the_next_poll_waits_for_the_answer_to_the_first_commit() -> None:
    async def scene(service: Claims) -> None:
        service.give("one")
        await until(lambda: len(service.unsettled), 1)
        await asyncio.sleep(0.004)
        assert len(service.polled_at) == 1
        service.settle()
        await until(lambda: len(service.polled_at), 2)

    play(scene, at_once)


def test_but_not_for_long() -> None:
    async def scene(service: Claims) -> None:
        began = asyncio.get_running_loop().time()
        service.give("one")
        await asyncio.sleep(1)
        assert len(service.unsettled) == 1
        assert service.polled_at[1:] == [pytest.approx(began + 0.005, abs=0.001)]

    play(scene, at_once)


def test_all_that_came_together_have_to_be_answered() -> None:
    async def scene(service: Claims) -> None:
        service.give("one", "two")
        await until(lambda: len(service.unsettled), 2)
        service.unsettled.pop().settle(ChunkAnswer.DONE)
        await asyncio.sleep(0.003)
        assert len(service.polled_at) == 1
        service.settle()
        await until(lambda: len(service.polled_at), 2)

    play(scene, at_once)


def test_a_step_that_takes_its_time_holds_up_no_poll() -> None:
    async def scene(service: Claims) -> None:
        service.give("one")
        await until(lambda: len(service.polled_at), 2)

    play(scene, long_work)


def test_a_worker_that_has_something_to_do_polls_at_once() -> None:
    bodies = [long_work, at_once]

    async def body() -> None:
        await bodies.pop(0)()

    async def scene(service: Claims) -> None:
        service.give("one")
        await until(lambda: len(service.polled_at), 2)
        service.give("two")
        await until(lambda: len(service.polled_at), 3)
        await until(lambda: len(service.unsettled), 1)

    play(scene, body)


def test_a_worker_that_got_all_it_asked_for_polls_at_once_for_more() -> None:
    release = asyncio.Event()
    bodies = [release.wait, at_once]

    async def body() -> None:
        await bodies.pop(0)()

    async def scene(service: Claims) -> None:
        service.give("one")
        await until(lambda: len(service.polled_at), 2)  # for the one slot that is left
        release.set()
        await until(lambda: len(service.unsettled), 1)
        service.settle()
        service.give("two")  # now it has nothing else to do, but what it asked for was not enough
        await until(lambda: len(service.polled_at), 3)
        await until(lambda: len(service.unsettled), 1)

    play(scene, body, concurrency=2)


def test_a_worker_that_stops_meanwhile_does_not_poll_again() -> None:
    async def scene(service: Claims) -> None:
        service.give("one")
        await until(lambda: len(service.unsettled), 1)
        polls.append(service.polled_at)

    polls: list[list[float]] = []
    play(scene, at_once)
    assert [len(polled_at) for polled_at in polls] == [1]
