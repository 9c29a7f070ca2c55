"""kill -9: the runs of a dead worker go on elsewhere, and nothing that was acknowledged happens again."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kagzi import RunStatus
from tests.faults.conftest import MakeSite
from tests.faults.processes import LEASE, ServerProcess, Site
from tests.faults.program import total_of_mixed
from tests.warm import Warm


@pytest.fixture(
    params=[
        "sqlite",
        pytest.param("postgres", marks=pytest.mark.postgres),
        pytest.param("server", marks=pytest.mark.postgres),
    ]
)
async def site(request: pytest.FixtureRequest, make_site: MakeSite, tmp_path: Path, warm: Warm) -> AsyncIterator[Site]:
    """On each database, and with a server process between PostgreSQL and everybody else."""
    if request.param == "sqlite":
        yield make_site(f"sqlite:///{tmp_path / 'kagzi.db'}", lease=LEASE)
        return
    database: str = request.getfixturevalue("postgres_database")
    if request.param == "postgres":
        yield make_site(database, lease=LEASE)
        return
    server = ServerProcess(tmp_path, database, lease=LEASE, warm=warm)
    try:
        yield make_site(await server.url())
    finally:
        server.close()
        print(server.log)


@pytest.mark.parametrize(
    ("site", "thread"),
    [
        ("sqlite", True),
        pytest.param("postgres", False, marks=pytest.mark.postgres),
        pytest.param("server", True, marks=pytest.mark.postgres),
    ],
    indirect=["site"],
)
async def test_a_run_killed_in_mid_step_goes_on_elsewhere(site: Site, thread: bool) -> None:
    async with site.program.app:
        first = await site.worker().ready()
        run = await site.program.holding.start("a", 60.0, thread)
        assert (await site.seen("enter", tag="a"))["pid"] == first.pid
        second = await site.worker().ready()

        killed = first.kill()

        again = await site.seen("enter", tag="a", pid=second.pid)
        assert again["at"] - killed < LEASE + 3
        site.program.release("a")
        assert await run.result(timeout=30) == second.pid
        found = await run.get()
        assert (found.status, found.executions, found.crashes, found.attempts) == (RunStatus.COMPLETED, 2, 1, 0)
    site.ledger.check_acknowledged_once()
    assert [line["attempt"] for line in site.ledger.lines("enter", phase=1)] == [1, 1]  # a crash is no failure


async def test_workers_killed_at_random_moments_under_load_lose_nothing(site: Site) -> None:
    chance = random.Random(7)
    length = 12
    async with site.program.app:
        living = [await site.worker(concurrency=20).ready() for _ in range(2)]
        runs = [await site.program.mixed.start(length, 0.01) for _ in range(30)]
        for _ in range(4):
            living.append(await site.worker(concurrency=20).ready())
            await asyncio.sleep(chance.uniform(0.05, 0.6))
            living.pop(chance.randrange(2)).kill()
            runs += [await site.program.mixed.start(length, 0.01) for _ in range(10)]
        results = await asyncio.gather(*(run.result(timeout=60) for run in runs))
        assert set(results) == {total_of_mixed(length)}
        for run in runs:
            found = await run.get()
            steps = await run.steps()
            assert found.attempts == 0
            assert len({step.step_id for step in steps if step.status == "COMPLETED"}) == len(steps)
    site.ledger.check_acknowledged_once()
    entered = site.ledger.lines("enter")
    assert len(entered) >= len(runs) * (length // 3) * 4
