"""`python -m benchmarks.scaling`: how many runs a second do two and four worker processes finish, against one?

All runs wait in the queue before the first process is started, so only workers and PostgreSQL have anything to do. Each
has one step that computes for 0.2 ms. The clock runs from the end of the first fiftieth of the runs to the last end, by
the database's time, so the start of the processes does not count. The numbers of processes take turns.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from statistics import median

import asyncpg

from benchmarks import databases, machine
from benchmarks.__main__ import save, say
from benchmarks.environments import bench_directory

LEAST_OF_TWO = 1.6
APP = "benchmarks.systems.scaling_app"


@dataclass(frozen=True, slots=True)
class Options:
    processes: tuple[int, ...]
    runs: int
    repeat: int
    url: str | None


async def rate(options: Options, server: str, processes: int) -> float:
    """Runs a second."""
    async with databases.fresh("postgresql", server) as database:
        await _start_all(database, options.runs)
        connection = await asyncpg.connect(database)
        command = [sys.executable, "-m", "kagzi", "worker", APP, "--url", database, "--processes", str(processes)]
        environ = {name: value for name, value in os.environ.items() if not name.startswith("KAGZI_")}
        worker = await asyncio.create_subprocess_exec(*command, "--log-level", "warning", env=environ)
        try:
            while await connection.fetchval("SELECT count(*) FROM kagzi.workflow_runs WHERE finished_at IS NULL"):
                if worker.returncode is not None:
                    raise RuntimeError(f"the worker has ended with exit code {worker.returncode}")
                await asyncio.sleep(0.25)
            ends = [
                row[0]
                for row in await connection.fetch(
                    "SELECT finished_at FROM kagzi.workflow_runs WHERE status = 'COMPLETED' ORDER BY finished_at"
                )
            ]
        finally:
            if worker.returncode is None:
                worker.send_signal(signal.SIGTERM)
            await worker.wait()
            await connection.close()
    if len(ends) != options.runs:
        raise RuntimeError(f"{len(ends):,} of {options.runs:,} runs have completed")
    counted = ends[options.runs // 50 :]
    return (len(counted) - 1) / ((counted[-1] - counted[0]) / 1_000_000)


async def _start_all(database: str, runs: int) -> None:
    from benchmarks.systems.scaling_app import app, computing

    app.url = database
    async with app:
        for begin in range(0, runs, 1000):
            await asyncio.gather(*(computing.start(x) for x in range(begin, min(begin + 1000, runs))))


async def measure(options: Options, url: str) -> int:
    settings = await databases.check_durable(url)
    limits = await machine.look(url, seconds=0.3)
    rates: dict[int, list[float]] = {count: [] for count in options.processes}
    for _ in range(options.repeat):
        for count in options.processes:
            rates[count].append(await rate(options, url, count))
            say(f"{count} processes: {rates[count][-1]:,.0f} runs/s")
    medians = {count: median(found) for count, found in rates.items()}
    one = medians.get(1)
    met = one is None or 2 not in medians or medians[2] / one >= LEAST_OF_TWO
    record = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "scaling": [{"processes": count, "runs_per_second": found} for count, found in rates.items()],
        "met": met,
        "options": asdict(options) | {"url": None},
        "machine": limits.to_json(),
        "postgresql": settings,
    }
    saved = save(record, "scaling-")
    print("\n".join(limits.lines()))
    for count, found in medians.items():
        factor = "" if one is None or count == 1 else f"  {found / one:.2f} ×"
        bar = f" (at least {LEAST_OF_TWO:g} ×: {'met' if met else 'MISSED'})" if count == 2 and one is not None else ""
        print(f"{count} processes  {found:>8,.0f} runs/s{factor}{bar}")
    print(f"\nSaved to {saved.relative_to(bench_directory().parent)}")
    return 0 if met else 1


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling", description=__doc__)
    parser.add_argument("--processes", type=_counts, default=(1, 2, 4), metavar="1,2,4")
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--url", help="a PostgreSQL server to use, else one is started")
    found = parser.parse_args()
    options = Options(found.processes, found.runs, found.repeat, found.url)
    with databases.server(options.url) as url:
        return asyncio.run(measure(options, url))


def _counts(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


if __name__ == "__main__":
    sys.exit(main())
