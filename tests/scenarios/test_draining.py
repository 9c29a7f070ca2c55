"""A worker that stops with runs in hand is seen to drain, wherever its engine is."""

from __future__ import annotations

import asyncio
import logging
import signal
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import asyncpg
import pytest

from kagzi import Kagzi, RunStatus
from kagzi.core.worker import WorkerEvent, WorkerStatus
from kagzi.engine.local import LocalEngine
from kagzi.errors import Unavailable
from kagzi.rpc.server.server import RpcServer
from kagzi.sdk.worker.worker import Worker
from tests.rpc.support import engine_on

STARTED, DRAINING, STOPPED = WorkerEvent.STARTED, WorkerEvent.DRAINING, WorkerEvent.STOPPED


class Site:
    """An engine, and a worker beside it or at the other end of the wire, with a run in hand if asked for."""

    def __init__(self, database: str, engine: LocalEngine, address: str | None) -> None:
        self.database = database
        self.engine = engine
        self.entered = asyncio.Event()
        self.go_on = asyncio.Event()
        self.app = app = Kagzi(address or database)
        self.away = address is not None

        @app.step
        async def hold() -> str:
            self.entered.set()
            await self.go_on.wait()
            return "held"

        @app.workflow(name="order")
        async def order() -> str:
            return await hold()

        self.order = order
        self._hosting = AsyncExitStack()

    async def open(self) -> None:
        await self.app.open(None if self.away else self.engine)

    async def close(self) -> None:
        self.go_on.set()
        await self._hosting.aclose()
        await self.app.close()

    async def start_worker(self, *, busy: bool) -> Worker:
        worker = await self._hosting.enter_async_context(self.app.worker())
        if busy:
            await self.order.start()
            await self.entered.wait()
        return worker

    def stop_worker(self) -> asyncio.Task[None]:
        return asyncio.create_task(self._hosting.aclose())

    async def status(self, worker: Worker) -> WorkerStatus:
        return (await self.engine.admin.get_worker(worker.worker_id)).status

    async def events(self) -> list[str]:
        if self.database.startswith("sqlite"):
            connection = sqlite3.connect(self.database.removeprefix("sqlite:///"))
            rows = connection.execute("SELECT event FROM worker_events ORDER BY event_id").fetchall()
            connection.close()
        else:
            asked = await asyncpg.connect(self.database)
            rows = await asked.fetch("SELECT event FROM kagzi.worker_events ORDER BY event_id")
            await asked.close()
        return [row[0] for row in rows]


@pytest.fixture(params=["in process", "grpc"])
async def site(request: pytest.FixtureRequest, url: str) -> AsyncIterator[Site]:
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(engine_on(url))
        address = None
        if request.param == "grpc":
            server = await stack.enter_async_context(RpcServer(engine))
            address = f"grpc://{server.target}"
        made = Site(url, engine, address)
        await made.open()
        stack.push_async_callback(made.close)
        async with asyncio.timeout(60):
            yield made


async def until(is_so: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(20):
        while not await is_so():
            await asyncio.sleep(0.01)


async def test_a_worker_that_stops_with_runs_in_hand_is_seen_to_drain(site: Site) -> None:
    worker = await site.start_worker(busy=True)
    stopping = site.stop_worker()

    async def drains() -> bool:
        return await site.status(worker) is WorkerStatus.DRAINING

    await until(drains)
    # It still holds its run, and its heartbeats go on as before.
    heartbeat, at = worker.heartbeat()
    answer = await site.app.engine.workers.heartbeat(heartbeat)
    assert (len(heartbeat.held), answer.lost, answer.known) == (1, (), True)
    worker.renewed(heartbeat, at, answer)
    assert await site.status(worker) is WorkerStatus.DRAINING

    site.go_on.set()
    await stopping
    assert await site.status(worker) is WorkerStatus.OFFLINE
    assert await site.events() == [STARTED, DRAINING, STOPPED]


async def test_a_worker_with_nothing_in_hand_just_leaves(site: Site) -> None:
    await site.start_worker(busy=False)
    await site.stop_worker()
    assert await site.events() == [STARTED, STOPPED]


async def test_a_worker_that_an_operator_drains_has_nothing_to_tell(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = await site.start_worker(busy=True)
    told: list[str] = []

    async def drain(worker_id: str, namespace: str | None = None) -> None:
        told.append(worker_id)

    monkeypatch.setattr(site.app.engine.workers, "drain", drain)
    await site.engine.admin.drain_worker(worker.worker_id)
    heartbeat, at = worker.heartbeat()
    worker.renewed(heartbeat, at, await site.app.engine.workers.heartbeat(heartbeat))
    await worker.told_to_stop.wait()
    stopping = site.stop_worker()
    site.go_on.set()
    await stopping
    assert told == []
    assert await site.events() == [STARTED, DRAINING, STOPPED]


@pytest.mark.parametrize("refuses", [True, False], ids=["refuses", "says nothing"])
async def test_an_engine_that_does_not_hear_it_does_not_hold_up_a_stop(
    site: Site, monkeypatch: pytest.MonkeyPatch, refuses: bool
) -> None:
    worker = await site.start_worker(busy=True)

    async def drain(worker_id: str, namespace: str | None = None) -> None:
        if refuses:
            raise Unavailable("away")
        await asyncio.Event().wait()

    monkeypatch.setattr(site.app.engine.workers, "drain", drain)
    stopping = site.stop_worker()
    while not worker.draining:
        await asyncio.sleep(0)
    site.go_on.set()
    async with asyncio.timeout(20):
        await stopping
    assert await site.events() == [STARTED, STOPPED]


class Told(logging.Handler):
    """Hears what a worker that stops waits for, and does something about it."""

    def __init__(self, then: Callable[[], None]) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []
        self._then = then

    def emit(self, record: logging.LogRecord) -> None:
        if "drains" in record.getMessage():
            self.lines.append(record.getMessage())
            self._then()


@pytest.fixture
def told() -> Iterator[Callable[[Callable[[], None]], Told]]:
    log = logging.getLogger("kagzi.worker")
    handlers: list[Told] = []

    def make(then: Callable[[], None]) -> Told:
        handlers.append(Told(then))
        log.addHandler(handlers[-1])
        return handlers[-1]

    yield make
    for handler in handlers:
        log.removeHandler(handler)


async def test_leaving_says_what_is_waited_for(site: Site, told: Callable[[Callable[[], None]], Told]) -> None:
    heard = told(site.go_on.set)
    worker = await site.start_worker(busy=True)
    await site.stop_worker()
    assert heard.lines == [f"worker {worker.worker_id} drains: 1 step still runs; up to 25s; Ctrl-C hands it back"]


@pytest.mark.parametrize("before", [True, False], ids=["Ctrl-C twice", "Ctrl-C while the block is left"])
def test_ctrl_c_hands_back_what_a_worker_waits_for(
    tmp_path: Path, told: Callable[[Callable[[], None]], Told], before: bool
) -> None:
    app = Kagzi(f"sqlite:///{tmp_path / 'kagzi.db'}")
    entered = asyncio.Event()
    went_on = False

    @app.step
    async def hold() -> None:
        entered.set()
        await asyncio.sleep(600)

    @app.workflow(name="order")
    async def order() -> None:
        await hold()

    heard = told(lambda: signal.raise_signal(signal.SIGINT))
    ids: list[str] = []

    async def main() -> None:
        nonlocal went_on
        async with app:
            async with app.worker(grace="10m") as worker:
                ids.extend([worker.worker_id, (await order.start()).id])
                await entered.wait()
                if before:
                    asyncio.get_running_loop().call_soon(signal.raise_signal, signal.SIGINT)
                    await asyncio.sleep(600)
            await asyncio.sleep(0)
            went_on = True

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(main())
    assert not went_on
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    press = "Ctrl-C again" if before else "Ctrl-C"
    assert heard.lines == [f"worker {ids[0]} drains: 1 step still runs; up to 10m; {press} hands it back"]

    async def look() -> RunStatus:
        async with app:
            return await app.handle(ids[1]).status()

    assert asyncio.run(look()) is RunStatus.PENDING
