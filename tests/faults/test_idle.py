"""A worker with nothing to do costs next to nothing."""

from __future__ import annotations

import asyncio
import time

import asyncpg

from tests.faults.conftest import MakeSite

MEGABYTE = 1024 * 1024
SECONDS = 5.0
WINDOWS = 8
OURS = 2  # transactions of the test's own connections


async def test_an_idle_worker_stays_small_and_quiet(make_site: MakeSite, url: str) -> None:
    site = make_site(url)
    postgres = url.startswith("postgresql")
    worker = await site.worker().ready()
    async with site.program.app:
        for _ in range(5):
            await (await site.program.mixed.start(6, 0)).result(timeout=30)
    await asyncio.sleep(1.5)
    # PostgreSQL may report what a connection did only ten seconds after it fell idle, or tidy up by itself: then the
    # next look shows how much it really is.
    for last in [False] * (WINDOWS - 1) + [True]:
        queries = await _transactions(url) if postgres else 0
        began, cpu = time.monotonic(), worker.cpu_seconds()
        await asyncio.sleep(SECONDS)
        passed, cpu = time.monotonic() - began, worker.cpu_seconds() - cpu
        asked = await _transactions(url) - queries - OURS if postgres else 0
        if last or (cpu / passed < 0.06 and asked / passed <= 2):
            break
    assert worker.memory() < 60 * MEGABYTE, worker.memory() / MEGABYTE
    assert cpu / passed < 0.06, cpu
    assert asked / passed <= 2


async def _transactions(url: str) -> int:
    connection = await asyncpg.connect(url)
    try:
        count = await connection.fetchval(
            "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()"
        )
    finally:
        await connection.close()
    assert isinstance(count, int)
    return count
