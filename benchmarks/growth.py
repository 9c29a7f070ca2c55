"""`python -m benchmarks.growth`: does Kagzi get slower as its tables and its runs grow?

W1 and W2 in an empty database and in one with a million finished and a hundred thousand sleeping runs,
turn by turn; and the time of a step in a run of 100 and in a run of 10,000.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from benchmarks import databases, machine
from benchmarks.__main__ import names, save, say
from benchmarks.environments import bench_directory
from benchmarks.filling import fill
from benchmarks.runner import ScriptFailed, run
from benchmarks.workloads import LONG_RUN, SETTINGS, SHORT_RUN, STORES, WORKLOADS, Task, Workload

MOST_SLOWER_WHEN_FULL = 1.2
MOST_DEARER_WHEN_LONG = 1.5


@dataclass(frozen=True, slots=True)
class Options:
    stores: tuple[str, ...]
    finished: int
    sleeping: int
    repeat: int
    quick: bool
    url: str | None


@dataclass(frozen=True, slots=True)
class Comparison:
    store: str
    title: str
    small: float
    large: float
    unit: str
    factor: float
    most: float

    @property
    def met(self) -> bool:
        return self.factor <= self.most

    def line(self) -> str:
        return (
            f"{self.store:10}  {self.title:44}  {self.small:>10,.2f} → {self.large:>10,.2f} {self.unit:8}"
            f"  {self.factor:.2f} × (at most {self.most:g} ×: {'met' if self.met else 'MISSED'})"
        )


class Growth:
    """The measurements of one store."""

    def __init__(self, options: Options, store: str, server: str | None) -> None:
        self._options = options
        self._store = store
        self._server = server

    async def compare(self) -> list[Comparison]:
        return [*await self._full_tables(), await self._long_run()]

    async def _full_tables(self) -> list[Comparison]:
        found: list[Comparison] = []
        async with databases.fresh(self._store, self._server) as full:
            await self._fill(full)
            for key in ("w1", "w2"):
                workload = WORKLOADS[key]
                empty_rates, full_rates = [], []
                for _ in range(self._options.repeat):
                    async with databases.fresh(self._store, self._server) as empty:
                        empty_rates.append(await self._measure(workload, empty, "empty"))
                    full_rates.append(await self._measure(workload, full, "full"))
                small, large = median(empty_rates), median(full_rates)
                title = f"{workload.key.upper()} with {self._options.finished:,} finished runs"
                found.append(
                    Comparison(self._store, title, small, large, workload.unit, small / large, MOST_SLOWER_WHEN_FULL)
                )
        return found

    async def _long_run(self) -> Comparison:
        async with databases.fresh(self._store, self._server) as database:
            small = await self._measure(SHORT_RUN, database, "short")
        async with databases.fresh(self._store, self._server) as database:
            large = await self._measure(LONG_RUN, database, "long")
        steps = LONG_RUN.sizes(quick=self._options.quick).steps
        title = f"a step in a run of 100 and of {steps:,}"
        return Comparison(self._store, title, small, large, "ms/step", large / small, MOST_DEARER_WHEN_LONG)

    async def _fill(self, database: str) -> None:
        # The first to open the database makes the tables.
        await self._measure(WORKLOADS["w3"], database, "making the tables", quick=True)
        say(f"{self._store}: filling")
        await fill(database, finished=self._options.finished, sleeping=self._options.sleeping)

    async def _measure(self, workload: Workload, database: str, label: str, *, quick: bool | None = None) -> float:
        setting = next(s for s in SETTINGS if (s.system, s.store) == ("kagzi", self._store))
        sizes = workload.sizes(quick=self._options.quick if quick is None else quick)
        task = Task(workload.key, database, sizes, setting.options)
        measured = await run(Path(sys.executable), setting, task, lambda _: None)
        value = measured.values[workload.metric]
        say(f"{self._store} {workload.key} {label}: {value:,.2f} {workload.unit}")
        return value


def main() -> int:
    options = parse()
    if "postgresql" not in options.stores:
        return asyncio.run(measure(options, None))
    with databases.server(options.url) as url:
        return asyncio.run(measure(options, url))


def parse() -> Options:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description=__doc__)
    parser.add_argument("--stores", type=names(STORES), default=STORES, metavar="POSTGRESQL,SQLITE")
    parser.add_argument("--finished", type=int, default=1_000_000)
    parser.add_argument("--sleeping", type=int, default=100_000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="shorter measurements: a look")
    parser.add_argument("--url", help="a PostgreSQL server to use, else one is started")
    found = parser.parse_args()
    return Options(found.stores, found.finished, found.sleeping, found.repeat, found.quick, found.url)


async def measure(options: Options, url: str | None) -> int:
    settings = await databases.check_durable(url) if url else {}
    limits = await machine.look(url, seconds=0.3)
    found: list[Comparison] = []
    failures: list[str] = []
    for store in options.stores:
        try:
            found += await Growth(options, store, url).compare()
        except ScriptFailed as failed:
            failures.append(f"{store}: {failed}")
            say(failures[-1])
    record = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "growth": [asdict(comparison) | {"met": comparison.met} for comparison in found],
        "options": asdict(options) | {"url": None},
        "machine": limits.to_json(),
        "postgresql": settings,
        "failures": failures,
    }
    saved = save(record, "growth-")
    print("\n".join([*limits.lines(), "", *(comparison.line() for comparison in found)]))
    print(f"\nSaved to {saved.relative_to(bench_directory().parent)}")
    return 0 if not failures and all(comparison.met for comparison in found) else 1


if __name__ == "__main__":
    sys.exit(main())
