"""Workers, the server and PostgreSQL are killed in the middle of a fan-out, a storm of signals and a sweep that fails
many runs: nothing is lost, nothing is doubled, and every failure is handled once."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from kagzi import Handle, Unavailable, WorkflowTimedOut
from kagzi.testing.postgres import PostgresServer
from tests.campaigns import length
from tests.faults.conftest import MakeSite
from tests.faults.processes import LEASE, ServerProcess, Site
from tests.warm import Warm

pytestmark = pytest.mark.postgres

CHILDREN = length(100, 1000)
RUNS, SIGNALS = length(10, 50), 20
DOOMED = length(30, 100)
ROUNDS = length(1, 4)
SLOTS = 40
PATIENCE = 180.0


class World:
    """A PostgreSQL, a server on it and workers of that, each of which may go away at any moment."""

    def __init__(self, directory: Path, postgres: PostgresServer, make_site: MakeSite, warm: Warm) -> None:
        self._directory = directory
        self._postgres = postgres
        self._make_site = make_site
        self._warm = warm
        self._servers: list[ServerProcess] = []
        self._workers: list[Any] = []
        self.site: Site

    async def open(self) -> None:
        server = self._serve(0)
        url = await server.url()
        self._port = int(url.rpartition(":")[2])
        self.site = self._make_site(url)
        self._workers = [await self.site.worker(concurrency=SLOTS).ready() for _ in range(2)]

    def _serve(self, port: int) -> ServerProcess:
        number = len(self._servers)
        server = ServerProcess(
            self._directory, self._postgres.url, lease=LEASE, port=port, number=number, warm=self._warm
        )
        self._servers.append(server)
        return server

    async def kill_a_worker(self) -> None:
        self._workers.append(await self.site.worker(concurrency=SLOTS).ready())
        self._workers.pop(0).kill()

    async def kill_the_server(self) -> None:
        self._servers[-1].close()
        await self._serve(self._port).url()

    async def kill_postgres(self) -> None:
        await asyncio.to_thread(self._postgres.stop, "immediate")
        await asyncio.to_thread(self._postgres.start)

    def close(self) -> None:
        for server in self._servers:
            server.close()
            print(server.log)


@pytest.fixture
async def world(
    tmp_path: Path, postgres_server: PostgresServer, make_site: MakeSite, warm: Warm
) -> AsyncIterator[World]:
    world = World(tmp_path, postgres_server, make_site, warm)
    await world.open()
    try:
        yield world
    finally:
        world.close()


async def tell(run: Handle[list[int]], number: int, times: int) -> None:
    """A caller who was not answered asks again, as every caller would."""
    for _ in range(times):
        while True:
            try:
                await run.signal("item", number, key=f"item-{number}")
                break
            except Unavailable:
                await asyncio.sleep(0.1)


@pytest.mark.timeout(2 * PATIENCE)
async def test_whoever_is_killed_children_signals_and_handlers_come_once(world: World) -> None:
    chance = random.Random(14)
    program, app = world.site.program, world.site.program.app
    async with app:
        collecting = [await program.collecting.start(SIGNALS) for _ in range(RUNS)]
        doomed = [await program.doomed.options(timeout="3s").start() for _ in range(DOOMED)]
        fan = await program.fan.start(CHILDREN)
        at_once = asyncio.Semaphore(20)
        tellings = [(run, number) for run in collecting for number in range(SIGNALS)]
        chance.shuffle(tellings)

        async def storm(run: Handle[list[int]], number: int) -> None:
            async with at_once:
                await tell(run, number, chance.choice((1, 2, 3)))

        async def havoc() -> None:
            for _ in range(ROUNDS):
                for kill in (world.kill_a_worker, world.kill_postgres, world.kill_the_server):
                    await asyncio.sleep(chance.uniform(0.3, 0.9))
                    await kill()

        async with asyncio.TaskGroup() as group:
            group.create_task(havoc())
            for run, number in tellings:
                group.create_task(storm(run, number))

        assert await fan.result(timeout=PATIENCE) == list(range(CHILDREN))
        children = [record async for record in app.search(parent=fan.id)]
        assert len(children) == CHILDREN
        assert {record.status for record in children} == {"COMPLETED"}
        assert (await fan.get()).attempts == 0

        for run in collecting:
            items = await run.result(timeout=PATIENCE)
            assert sorted(items) == list(range(SIGNALS))
            signals = await run.signals()
            assert [signal.value for signal in signals] == items, "in the order of arrival"

        for failed in doomed:
            with pytest.raises(WorkflowTimedOut):
                await failed.result(timeout=PATIENCE)
            assert (await failed.get()).status == "TIMED_OUT"
        handlers = [record async for record in app.search(workflow="mourn")]
        assert Counter(record.handles_run_id for record in handlers) == Counter(run.id for run in doomed)
        for record in handlers:
            await app.handle(record.run_id).result(timeout=PATIENCE)
    buried = {line["failed"] for line in world.site.ledger.lines("buried")}
    assert buried == {run.id for run in doomed}
    world.site.ledger.check_acknowledged_once()
