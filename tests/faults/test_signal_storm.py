"""A storm of signals, each sent once or more, while workers are killed: nothing is lost, nothing is doubled."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.faults.conftest import MakeSite
from tests.faults.processes import LEASE, ServerProcess, Site
from tests.warm import Warm

RUNS, SIGNALS = 50, 20


@pytest.fixture(params=["sqlite", pytest.param("server", marks=pytest.mark.postgres)])
async def site(request: pytest.FixtureRequest, make_site: MakeSite, tmp_path: Path, warm: Warm) -> AsyncIterator[Site]:
    """On a file that all processes share, and with a server process between PostgreSQL and everybody else."""
    if request.param == "sqlite":
        yield make_site(f"sqlite:///{tmp_path / 'kagzi.db'}", lease=LEASE)
        return
    server = ServerProcess(tmp_path, request.getfixturevalue("postgres_database"), lease=LEASE, warm=warm)
    try:
        yield make_site(await server.url())
    finally:
        server.close()
        print(server.log)


@pytest.mark.timeout(240)
async def test_a_storm_of_signals_while_workers_are_killed(site: Site) -> None:
    chance = random.Random(11)
    async with site.program.app:
        workers = [await site.worker(concurrency=30).ready() for _ in range(2)]
        runs = [await site.program.collecting.start(SIGNALS) for _ in range(RUNS)]
        tellings = [(run, number) for run in runs for number in range(SIGNALS)]
        chance.shuffle(tellings)
        at_once = asyncio.Semaphore(20)

        async def tell(place: int) -> None:
            run, number = tellings[place]
            for _ in range(chance.choice((1, 2, 3))):
                async with at_once:
                    await run.signal("item", number, key=f"item-{number}")

        async def kill() -> None:
            for _ in range(2):
                await asyncio.sleep(chance.uniform(0.2, 0.8))
                workers.append(await site.worker(concurrency=30).ready())
                workers.pop(chance.randrange(2)).kill()

        async with asyncio.TaskGroup() as group:
            group.create_task(kill())
            for place in range(len(tellings)):
                group.create_task(tell(place))
        for run in runs:
            items = await run.result(timeout=120)
            assert sorted(items) == list(range(SIGNALS))
            signals = await run.signals()
            assert [signal.value for signal in signals] == items, "in the order of arrival"
            assert all(signal.taken for signal in signals)
            assert await run.values() == {"items": SIGNALS}
            assert (await run.get()).attempts == 0
    site.ledger.check_acknowledged_once()
