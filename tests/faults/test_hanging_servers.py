"""Servers that hang, while the URL names others: suspended, or alive with their database out of reach."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from itertools import pairwise
from pathlib import Path

import pytest

from kagzi import KagziError
from kagzi.rpc.client.remote import RemoteEngine
from tests.faults.cable import Cable
from tests.faults.conftest import MakeSite
from tests.faults.processes import ServerProcess, Site
from tests.measures import Measures
from tests.warm import Warm

pytestmark = pytest.mark.postgres

LENGTH = 12  # steps of a run
PAUSE = 0.3  # in each of them
HUNG_SECONDS = 12.0
BOUND_SECONDS = 10.0  # on a machine that does nothing else it takes less than 5
LEASE = 30.0  # that of most installations


class Servers:
    """Three of them on one database, each by a cable of its own."""

    def __init__(self, cables: list[Cable], servers: list[ServerProcess], url: str) -> None:
        self.cables = cables
        self.servers = servers
        self.url = url

    async def suspend(self, number: int) -> None:
        """Has one of them hang for a while: its connections stay, and nothing is answered."""
        pid = self.servers[number].process.pid
        os.kill(pid, signal.SIGSTOP)
        await asyncio.sleep(HUNG_SECONDS)
        os.kill(pid, signal.SIGCONT)

    async def cut_off(self, number: int) -> None:
        """Keeps the database from one of them for a while."""
        self.cables[number].cut()
        await asyncio.sleep(HUNG_SECONDS)
        self.cables[number].mend()


@pytest.fixture
async def servers(postgres_database: str, tmp_path: Path, warm: Warm) -> AsyncIterator[Servers]:
    async with AsyncExitStack() as stack:
        cables = [await stack.enter_async_context(Cable(postgres_database)) for _ in range(3)]
        started: list[ServerProcess] = []
        for number, cable in enumerate(cables):
            server = ServerProcess(tmp_path, cable.url, lease=LEASE, number=number, warm=warm)
            stack.callback(server.close)
            started.append(server)
            await server.url()
        targets = ",".join([(await server.url()).removeprefix("grpc://") for server in started])
        yield Servers(cables, started, f"grpc://{targets}")
        for server in started:
            print(server.log)


class Load:
    """Starts a run now and then, and notes how long each start took to be answered."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.answered: list[float] = []
        self.refused: list[KagziError] = []
        self.runs: dict[str, float] = {}  # when each was started
        self._stopped = False
        self._task = asyncio.create_task(self._start_for_ever())

    async def _start_for_ever(self) -> None:
        async with asyncio.TaskGroup() as starts:
            while not self._stopped:
                starts.create_task(self._start())
                await asyncio.sleep(0.4)

    async def _start(self) -> None:
        began = time.monotonic()
        try:
            run = await self.site.program.chain.start(LENGTH, PAUSE)
        except KagziError as error:
            self.refused.append(error)
        else:
            self.runs[run.id] = time.monotonic()
        self.answered.append(time.monotonic() - began)

    async def stop(self) -> None:
        self._stopped = True
        await self._task

    def longest_standstills(self) -> list[float]:
        """Returns the longest time for which each run did not go on."""
        seen = {run_id: [at] for run_id, at in self.runs.items()}
        for line in self.site.ledger.lines():
            if line["run"] in seen:
                seen[line["run"]].append(line["at"])
        return [max(b - a for a, b in pairwise(at)) for at in map(sorted, seen.values())]


async def test_runs_go_on_and_starts_are_answered_while_two_of_three_servers_hang(
    servers: Servers, make_site: MakeSite, measures: Measures
) -> None:
    site = make_site(servers.url)
    async with site.program.app as app:
        for _ in range(3):
            await site.worker(concurrency=100).ready()
        load = Load(site)
        await asyncio.sleep(1)
        engine = app.engine
        assert isinstance(engine, RemoteEngine)
        used = servers.url.removeprefix("grpc://").split(",").index(engine._servers[engine._choice.used])
        await asyncio.gather(servers.suspend(used), servers.cut_off((used + 1) % 3))
        await load.stop()
        results = [await app.handle(run_id).result(timeout=60) for run_id in load.runs]
    assert len(results) == len(load.runs) > 10
    assert not load.refused
    site.ledger.check_acknowledged_once()
    assert "not ready" in servers.servers[(used + 1) % 3].log
    measures.slowest("a run that stands still", load.longest_standstills(), below=BOUND_SECONDS)
    measures.slowest("a start", load.answered, below=BOUND_SECONDS)
    measures.hold()
