"""PostgreSQL goes away under load and comes back; connections are cut again and again."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from kagzi import Handle, KagziError, Unavailable
from kagzi.testing.postgres import PostgresServer
from tests.faults.conftest import MakeSite
from tests.faults.processes import Site, until
from tests.faults.program import total_of_mixed

pytestmark = pytest.mark.postgres

LENGTH = 12
ENOUGH = 15  # runs


class Load:
    """Four callers who start one run after the other, remembering each start that was acknowledged."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.acknowledged: list[Handle[int]] = []
        self.refused: list[KagziError] = []
        self._tasks = [asyncio.create_task(self._start_for_ever(caller)) for caller in range(4)]

    async def _start_for_ever(self, caller: int) -> None:
        number = 0
        while True:
            number += 1
            try:
                started = await self.site.program.mixed.options(id=f"load-{caller}-{number}").start(LENGTH, 0.005)
            except Unavailable as error:
                self.refused.append(error)
            else:
                self.acknowledged.append(started)
            await asyncio.sleep(0.1)

    async def stop(self) -> None:
        """Ends the callers, not before they have done something."""
        await until(lambda: len(self.acknowledged) > ENOUGH, "enough runs are started")
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def check(self) -> None:
        """Every acknowledged run is there and ends with the right result."""
        results = await asyncio.gather(*(run.result(timeout=60) for run in self.acknowledged))
        assert set(results) == {total_of_mixed(LENGTH)}
        assert len({run.id for run in self.acknowledged}) == len(self.acknowledged) > ENOUGH
        for run in self.acknowledged:
            steps = await run.steps()
            assert len(steps) == LENGTH // 3 * 5
            assert all(step.status == "COMPLETED" and step.attempt == 1 for step in steps)


async def test_nothing_acknowledged_is_lost_when_postgres_crashes_under_load(
    make_site: MakeSite, postgres_server: PostgresServer
) -> None:
    site = make_site(postgres_server.url, lease="2s")
    async with site.program.app:
        workers = [await site.worker().ready() for _ in range(2)]
        load = Load(site)
        for down in (0.0, 1.0, 3.0):
            await asyncio.sleep(1)
            await asyncio.to_thread(postgres_server.stop, "immediate")
            await asyncio.sleep(down)  # longer than the lease, the last time
            await asyncio.to_thread(postgres_server.start)
        await asyncio.sleep(1)
        await load.stop()
        await load.check()
        assert all(worker.process.poll() is None for worker in workers)
        assert not load.refused, load.refused[0]  # they waited
    site.ledger.check_acknowledged_once()
    assert "Traceback" not in site.logs()


async def test_cut_connections_are_made_again(make_site: MakeSite, postgres_database: str) -> None:
    site = make_site(postgres_database, lease="10s")  # longer than the trouble lasts, on a slow machine too
    async with site.program.app:
        workers = [await site.worker().ready() for _ in range(2)]
        load = Load(site)
        admin = await asyncpg.connect(postgres_database)
        try:
            for _ in range(12):
                await asyncio.sleep(0.25)
                await admin.fetch(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE datname = current_database() AND pid <> pg_backend_pid()"
                )
        finally:
            await admin.close()
        await load.stop()
        await load.check()
        assert all(worker.process.poll() is None for worker in workers)
        assert not load.refused, load.refused[0]
        for run in load.acknowledged:
            assert (await run.get()).crashes == 0
    site.ledger.check_acknowledged_once()
    assert "Traceback" not in site.logs()
