"""Two processes on one database: work is noticed at once, and without any notification within two seconds."""

from __future__ import annotations

import asyncio
import time
from statistics import median

import asyncpg
import pytest

from tests.faults.conftest import MakeSite
from tests.faults.processes import Site


async def latencies(site: Site, count: int) -> list[float]:
    """Seconds from the start of a run to its result, in another process and back."""
    measured = []
    for _ in range(count):
        before = time.monotonic()
        run = await site.program.chain.start(1, 0)
        assert await run.result(timeout=30) == 0
        measured.append(time.monotonic() - before)
        await asyncio.sleep(0.02)
    return measured


async def test_a_run_is_noticed_and_its_result_comes_back_at_once(site: Site) -> None:
    async with site.program.app:
        await site.worker().ready()
        await latencies(site, 2)
        assert median(await latencies(site, 15)) < 0.25  # a few milliseconds on an idle machine


@pytest.mark.postgres
async def test_everything_works_with_notifications_dead(
    make_site: MakeSite, postgres_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kagzi.store.postgres.wakeups import Wakeups
    from tests.faults import program

    for name in ("announce", "listen"):  # put back after the test
        monkeypatch.setattr(Wakeups, name, getattr(Wakeups, name))
    program.deafen()
    site = make_site(postgres_database)
    async with site.program.app:
        await site.worker(deaf=True).ready()
        to_notice, to_return = [], []
        for number in range(5):
            before = time.monotonic()
            run = await site.program.chain.start(1, 0)
            assert await run.result(timeout=30) == 0
            noticed = site.ledger.lines("enter")[number]["at"]
            to_notice.append(noticed - before)
            to_return.append(time.monotonic() - noticed)
        assert median(to_notice) < 2  # each process looks once a second
        assert median(to_return) < 3  # and for results at least every two
        # Runs that sleep and runs that are handed over by a dying worker need no notification either.
        assert await (await site.program.naps.start(2, 1.2)).result(timeout=30) == 2


@pytest.mark.postgres
async def test_a_listener_that_is_cut_off_listens_again(make_site: MakeSite, postgres_database: str) -> None:
    site = make_site(postgres_database)
    async with site.program.app:
        await site.worker().ready()
        await latencies(site, 2)
        admin = await asyncpg.connect(postgres_database)
        try:
            cut = await admin.fetch(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
                " AND pid <> pg_backend_pid() AND query ILIKE 'listen%'"
            )
            assert len(cut) >= 1
            assert median(await latencies(site, 3)) < 4  # by looking
            deadline = time.monotonic() + 30
            while (
                await admin.fetchval(
                    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
                    " AND pid <> pg_backend_pid() AND query ILIKE 'listen%'"
                )
            ) < len(cut):
                assert time.monotonic() < deadline
                await asyncio.sleep(0.1)
        finally:
            await admin.close()
        assert median(await latencies(site, 9)) < 0.25  # by hearing
