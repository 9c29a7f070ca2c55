"""`python -m benchmarks.unserved`: how long does an empty poll take behind due runs that no worker executes?

In an empty database, behind a hundred thousand of them, and when they were set aside, on both stores.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from pathlib import Path
from statistics import median

from kagzi.api.workers import Poll, Registration
from kagzi.clock import SystemClock
from kagzi.core.instant import SECOND
from kagzi.core.worker import WorkflowType
from kagzi.ids import RandomIds
from kagzi.store.postgres.store import PostgresStore
from kagzi.store.protocol.store import Store
from kagzi.store.sqlite.store import SqliteStore
from kagzi.store.unserved import LOOKED_AT, MOST_LOOKED_AT
from kagzi.testing.postgres import PostgresServer

MOST_SLOWER_MS = 2.0
IDS = RandomIds(SystemClock().now)
WORKER = IDS.run_id()
SERVED = WorkflowType("served")

SQLITE = """
WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?1)
INSERT INTO workflow_runs (run_id, namespace, task_queue, workflow_type, version, status, created_at, available_at,
    claim_key, input)
SELECT printf('00000000-0000-7000-8000-%012x', i), 'default', 'orders', 'rare', '1', 'PENDING', 1, i, i, x'5b5d' FROM n
"""
POSTGRES = """
INSERT INTO kagzi.workflow_runs (run_id, namespace, task_queue, workflow_type, version, status, created_at,
    available_at, claim_key, input)
SELECT ('00000000-0000-7000-8000-' || lpad(to_hex(i), 12, '0'))::uuid, 'default', 'orders', 'rare', '1', 'PENDING', 1,
    i, i, '[]' FROM generate_series(1, $1::integer) AS i
"""


async def empty_poll(store: Store, repeat: int) -> float:
    """Milliseconds, the median."""
    taken: list[float] = []
    for number in range(repeat):
        poll = Poll(
            namespace="default",
            worker_id=WORKER,
            queues=("orders",),
            types=(SERVED,),
            limit=10,
            number=number + 1,
            token=IDS.token(),
            wait=0,
        )
        begun = time.perf_counter()
        assert not (await store.work.claim(poll, 30 * SECOND)).claims
        taken.append((time.perf_counter() - begun) * 1000)
    return median(taken)


async def measure(store: Store, name: str, runs: int, repeat: int) -> bool:
    await store.open()
    try:
        registration = Registration(
            worker_id=WORKER,
            namespace="default",
            queues=("orders",),
            types=(SERVED,),
            hostname="bench",
            pid=1,
            version="1",
            concurrency=10,
        )
        await store.workers.register(registration)
        empty = await empty_poll(store, repeat)
        if isinstance(store, SqliteStore):
            await store._database.write(lambda connection: connection.execute(SQLITE, (runs,)))
        else:
            assert isinstance(store, PostgresStore)
            await store._pool.run(lambda connection: connection.execute(POSTGRES, runs))
        behind = await empty_poll(store, max(5, repeat // 10))
        begun, aside = time.perf_counter(), 0
        limit = LOOKED_AT
        while (done := await store.duties.set_runs_aside((), 600 * SECOND, limit)).more:
            aside += done.aside
            limit = min(limit * 2, MOST_LOOKED_AT)
        seconds = time.perf_counter() - begun
        assert aside == runs, aside
        spared = await empty_poll(store, repeat)
        met = spared - empty <= MOST_SLOWER_MS
        print(
            f"{name:10}  empty {empty:.2f} ms, behind {runs:,} unserved runs {behind:.2f} ms, once they are set aside "
            f"(in {seconds:.1f} s) {spared:.2f} ms: {'met' if met else 'MISSED'} (at most {MOST_SLOWER_MS} ms slower)"
        )
        return met
    finally:
        await store.close()


async def main(runs: int, repeat: int) -> bool:
    with tempfile.TemporaryDirectory() as directory:
        met = await measure(SqliteStore(str(Path(directory, "kagzi.db"))), "SQLite", runs, repeat)
    with PostgresServer() as server:
        return await measure(PostgresStore(server.url), "PostgreSQL", runs, repeat) and met


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--repeat", type=int, default=200)
    asked = parser.parse_args()
    raise SystemExit(not asyncio.run(main(asked.runs, asked.repeat)))
