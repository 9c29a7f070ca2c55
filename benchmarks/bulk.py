"""`python -m benchmarks.bulk`: a job that retries many failed runs, beside a caller of single runs.

Told is how long the job takes, and by how much it holds up other work: the caller's runs while the job is at work, at
their 99th percentile and at worst, against the same while nothing else happens. What is retried has no worker
meanwhile, so that the job alone is measured. Exit code 1 if a bar is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import tempfile
import time
from collections.abc import Sequence

from benchmarks.clocks import make_databases
from benchmarks.server.bars import Verdict, table
from benchmarks.systems.driver import percentile
from kagzi import Kagzi, NonRetryable, Runs
from kagzi.testing.postgres import PostgresServer

MOST_SECONDS = 60.0  # for 10,000
MOST_MS_LONGER = 100.0


async def measure(title: str, url: str, failed: int) -> list[Verdict]:
    app = Kagzi(url)
    logging.getLogger("kagzi").setLevel(logging.CRITICAL)  # it would tell of each failure

    @app.step
    async def add_one(x: int) -> int:
        return x + 1

    @app.workflow(queue="callers")
    async def ping(x: int) -> int:
        return await add_one(x)

    @app.workflow(queue="failures")
    async def fails(x: int) -> int:
        raise NonRetryable(f"no {x}")

    taken: list[float] = []
    over = asyncio.Event()

    async def call() -> None:
        while not over.is_set():
            begun = time.perf_counter()
            await ping.run(1)
            taken.append((time.perf_counter() - begun) * 1000)
            await asyncio.sleep(0.01)

    async with app:
        async with app.worker(queues=["failures"], concurrency=200):
            for begin in range(0, failed, 500):
                runs = await asyncio.gather(*(fails.start(x) for x in range(begin, min(begin + 500, failed))))
                await asyncio.gather(*(run.result() for run in runs), return_exceptions=True)
        async with app.worker(queues=["callers"]):
            await ping.run(1)
            caller = asyncio.create_task(call())
            await asyncio.sleep(5)
            before = taken.copy()
            taken.clear()
            begun = time.perf_counter()
            job = await app.jobs.start("retry", Runs(workflow="fails", status="FAILED"))
            record = await job.wait()
            seconds = time.perf_counter() - begun
            over.set()
            await caller
    assert record.done == failed, record
    most = percentile(before, 0.99) + MOST_MS_LONGER
    return [
        Verdict(f"{title}: a retry of {failed:,} failed runs", seconds, "s", MOST_SECONDS * max(1, failed / 10_000)),
        Verdict("  other runs before, p99", percentile(before, 0.99), "ms"),
        Verdict("  other runs meanwhile, p99", percentile(taken, 0.99), "ms", most),
        Verdict("  other runs meanwhile, the slowest", max(taken), "ms"),
    ]


def main(failed: int, stores: Sequence[str]) -> bool:
    verdicts: list[Verdict] = []
    if "sqlite" in stores:
        with tempfile.TemporaryDirectory() as directory:
            verdicts += asyncio.run(measure("SQLite", f"sqlite:///{directory}/bulk.db", failed))
    if "postgresql" in stores:
        with PostgresServer() as server:
            asyncio.run(make_databases(server, ["bulk"]))
            verdicts += asyncio.run(measure("PostgreSQL", server.url_of("bulk"), failed))
    print("\n".join(table(verdicts)))
    return all(verdict.met for verdict in verdicts)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--failed", type=int, default=10_000)
    parser.add_argument("--stores", default="sqlite,postgresql")
    asked = parser.parse_args()
    raise SystemExit(not main(asked.failed, asked.stores.split(",")))
