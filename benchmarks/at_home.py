"""`python -m benchmarks.at_home`: what does it cost to be at home in Python? Each line has its bar.

On PostgreSQL: a start that waits for its result, blocking and awaited; a start in the caller's own transaction, from
its commit until an idle worker of another process has begun it; the commits of a step with a transaction beside those
of a plain one. In memory: a thousand runs of ten steps in the test kit, in seconds of the processor.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import time
from collections.abc import Callable
from statistics import median

import asyncpg

import kagzi
from kagzi import Kagzi
from kagzi.testing.kit import Environment
from kagzi.testing.postgres import PostgresServer

MOST_SLOWER = 1.3  # a blocking start-to-result beside an awaited one, p50
MOST_MS_TO_BEGIN = 20.0  # after the commit of the caller's transaction, p50
MOST_MORE_COMMITS = 0.05  # per step; heartbeats and polls of the worker commit, too
MOST_KIT_SECONDS = 3.0
KIT_RUNS, KIT_STEPS = 1_000, 10


def shop(url: str) -> tuple[Kagzi, kagzi.Workflow[[], float], kagzi.Workflow[[bool, int], int]]:
    app = Kagzi(url)

    @app.step
    async def begin() -> float:
        return time.time()

    @app.workflow
    async def one() -> float:
        return await begin()

    @app.step
    async def plain(number: int) -> int:
        return number + 1

    @app.step(transaction=True)
    async def transactional(number: int) -> int:
        return number + 1

    @app.workflow
    async def many(with_transactions: bool, steps: int) -> int:
        number = 0
        for _ in range(steps):
            number = await (transactional(number) if with_transactions else plain(number))
        return number

    return app, one, many


def told(name: str, measured: str, met: bool, bar: str) -> bool:
    print(f"{name:34} {measured}: {'met' if met else 'MISSED'} ({bar})", flush=True)
    return met


# Blocking beside awaited.


async def awaited(url: str, repeat: int) -> float:
    app, one, _ = shop(url)
    taken = []
    async with app, app.worker():
        for _ in range(repeat):
            begun = time.perf_counter()
            await (await one.start()).result(timeout=60)
            taken.append(time.perf_counter() - begun)
    return median(taken) * 1000


def blocking(url: str, repeat: int) -> float:
    app, one, _ = shop(url)
    taken = []
    with app, app.worker_sync():
        for _ in range(repeat):
            begun = time.perf_counter()
            one.start_sync().result_sync(timeout=60)
            taken.append(time.perf_counter() - begun)
    return median(taken) * 1000


def compare_blocking(url: str, repeat: int) -> bool:
    # In turns, so that whatever else the machine does concerns both.
    pairs = [(blocking(url, repeat), asyncio.run(awaited(url, repeat))) for _ in range(3)]
    theirs, ours = min(pair[0] for pair in pairs), min(pair[1] for pair in pairs)
    ratio = theirs / ours
    measured = f"{theirs:.2f} ms, awaited {ours:.2f} ms, ratio {ratio:.2f}"
    return told("blocking start to result, p50", measured, ratio <= MOST_SLOWER, f"at most {MOST_SLOWER}")


# In the caller's own transaction.


async def begun_after_commit(url: str, repeat: int) -> float:
    """Milliseconds, the median, until a worker in another process has begun a step of the run."""
    connection = await asyncpg.connect(url)
    try:
        app, one, _ = shop(url)
        taken = []
        async with app:
            await (await one.start()).result(timeout=60)  # the worker is up
            for _ in range(repeat):
                await asyncio.sleep(0.05)  # it is idle
                async with connection.transaction():
                    run = await one.options(connection=connection).start()
                committed = time.time()
                taken.append(await run.result(timeout=60) - committed)
        return median(taken) * 1000
    finally:
        await connection.close()


def measure_transactional_start(url: str, repeat: int) -> bool:
    worker = subprocess.Popen([sys.executable, "-m", "benchmarks.at_home", "--worker", url])
    try:
        took = asyncio.run(begun_after_commit(url, repeat))
    finally:
        worker.terminate()
        worker.wait()
    bar = f"at most {MOST_MS_TO_BEGIN:.0f} ms"
    return told("start in a transaction to begun, p50", f"{took:.1f} ms", took <= MOST_MS_TO_BEGIN, bar)


# Commits.


async def commits_of(url: str, steps: int) -> tuple[float, float]:
    """Records in the log that say COMMIT, per step: of plain steps, and of steps with a transaction."""
    app, _, many = shop(url)
    connection = await asyncpg.connect(url)
    counted = []
    async with app, app.worker():
        for with_transactions in (False, True):
            await many.run(with_transactions, 5)
            before = await _written(connection)
            await many.run(with_transactions, steps)
            counted.append((await _written(connection) - before) / steps)
    await connection.close()
    return counted[0], counted[1]


async def _written(connection: asyncpg.Connection[asyncpg.Record]) -> int:
    """How many transactions have written something: each of those takes a number of its own."""
    number: int = await connection.fetchval("SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint")
    return number


def compare_commits(url: str, steps: int) -> bool:
    plain, transactional = asyncio.run(commits_of(url, steps))
    more = transactional - plain
    measured = f"{transactional:.2f} writing transactions a step, plain {plain:.2f}"
    return told(
        "commits of a transactional step", measured, more <= MOST_MORE_COMMITS, f"at most {MOST_MORE_COMMITS} more"
    )


# The test kit.


def measure_kit() -> bool:
    app = Kagzi("memory://")

    @app.step
    async def step(number: int) -> int:
        return number + 1

    @app.workflow
    async def ten(number: int) -> int:
        for _ in range(KIT_STEPS):
            number = await step(number)
        return number

    def together(env: Environment) -> None:
        runs = [env.start(ten, 0) for _ in range(KIT_RUNS)]
        assert {run.result() for run in runs} == {KIT_STEPS}

    def one_by_one(env: Environment) -> None:
        for _ in range(KIT_RUNS):
            assert env.start(ten, 0).result() == KIT_STEPS

    return all([_measure_kit(name, work) for name, work in (("together", together), ("one by one", one_by_one))])


def _measure_kit(name: str, work: Callable[[Environment], None]) -> bool:
    env = Environment()
    begun = time.process_time()
    try:
        work(env)
        took = time.process_time() - begun
    finally:
        env.close()
    bar = f"at most {MOST_KIT_SECONDS:.0f} s"
    return told(f"kit, {KIT_RUNS:,} runs {name}", f"{took:.2f} s of processor", took <= MOST_KIT_SECONDS, bar)


def main(repeat: int) -> bool:
    met = [measure_kit()]
    with PostgresServer() as server:
        met += [
            compare_blocking(server.url, repeat),
            measure_transactional_start(server.url, repeat),
            compare_commits(server.url, repeat),
        ]
    return all(met)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=200)
    parser.add_argument("--worker", metavar="URL", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.worker:
        shop(asked.worker)[0].run_worker()
    else:
        raise SystemExit(not main(asked.repeat))
