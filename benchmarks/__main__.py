"""`python -m benchmarks`: measure Kagzi and its peers side by side, print the table, keep the JSON."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import databases, machine
from benchmarks.environments import bench_directory, python_of, versions_of
from benchmarks.report import Report
from benchmarks.runner import ScriptFailed, run
from benchmarks.workloads import BY_DEFAULT, SETTINGS, STORES, SYSTEMS, WORKLOADS, Measurement, Setting, Task

STOLEN = "stolen_percent"
MOST_STOLEN_PERCENT = 5.0
MOST_TRIES = 4


@dataclass(frozen=True, slots=True)
class Options:
    workloads: tuple[str, ...]
    systems: tuple[str, ...]
    stores: tuple[str, ...]
    quick: bool
    repeat: int
    url: str | None

    def plan(self) -> Iterator[tuple[str, Setting]]:
        """Workload by workload, all systems after each other: they share what the machine is like then."""
        for workload in self.workloads:
            for _ in range(self.repeat):
                for setting in SETTINGS:
                    chosen = setting.system in self.systems and setting.store in self.stores
                    if chosen and workload in setting.workloads:
                        yield workload, setting


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    try:
        if "postgresql" not in options.stores:
            return asyncio.run(measure(options, None))
        with databases.server(options.url) as url:
            return asyncio.run(measure(options, url))
    except KeyboardInterrupt:
        return 130


def parse(arguments: list[str] | None) -> Options:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", type=names(tuple(WORKLOADS)), default=tuple(WORKLOADS), metavar="W1,W2")
    parser.add_argument("--systems", type=names(SYSTEMS), default=BY_DEFAULT, metavar="KAGZI,DBOS")
    parser.add_argument("--stores", type=names(STORES), default=STORES, metavar="POSTGRESQL,SQLITE")
    parser.add_argument("--quick", action="store_true", help="smaller counts: a look, not a measurement")
    parser.add_argument("--repeat", type=int, default=1, help="measure everything N times, medians count")
    parser.add_argument("--url", help="a PostgreSQL server to use, else one is started")
    found = parser.parse_args(arguments)
    return Options(found.only, found.systems, found.stores, found.quick, found.repeat, found.url)


async def measure(options: Options, url: str | None) -> int:
    settings = await databases.check_durable(url) if url else {}
    limits = await machine.look(url, seconds=0.3 if options.quick else 1.0)
    for line in limits.lines():
        say(line)
    pythons = {system: python_of(system, say) for system in options.systems}
    measurements: list[Measurement] = []
    failures: list[str] = []
    for workload, setting in options.plan():
        try:
            measured = await _measure_one(options, pythons[setting.system], workload, setting, url)
        except ScriptFailed as failed:
            failures.append(f"{workload} {setting.label}: {failed}")
            say(failures[-1])
        else:
            measurements.append(measured)
    report = Report(measurements)
    record = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "quick": options.quick,
        "repeat": options.repeat,
        "machine": limits.to_json(),
        "postgresql": settings,
        "packages": {system: versions_of(python) for system, python in pythons.items()},
        "measurements": [measurement.to_json() for measurement in measurements],
        "bars": [{"bar": v.text(), "store": v.bar.store, "met": v.met} for v in report.verdicts()],
        "failures": failures,
    }
    saved = save(record)
    print("\n".join([*limits.lines(), *report.lines(), "", "All settings", *report.settings_lines()]))
    for failure in failures:
        print(f"\nfailed: {failure}")
    print(f"\nSaved to {saved.relative_to(bench_directory().parent)}")
    return 0 if not failures and all(verdict.met for verdict in report.verdicts()) else 1


async def _measure_one(options: Options, python: Path, key: str, setting: Setting, url: str | None) -> Measurement:
    """Again, if the host of a virtual machine took its processors away meanwhile: the least disturbed time counts."""

    def progress(text: str) -> None:
        say(f"{key} {setting.label}: {text}")

    workload = WORKLOADS[key]
    task = partial(Task, key, sizes=workload.sizes(quick=options.quick), options=setting.options)
    tries: list[Measurement] = []
    while not tries or (tries[-1].values[STOLEN] > MOST_STOLEN_PERCENT and len(tries) < MOST_TRIES):
        begin, stolen = time.monotonic(), machine.Stolen()
        async with databases.fresh(setting.store, url) as database:
            measured = await run(python, setting, task(url=database), progress)
        measured.values[STOLEN] = stolen.percent()
        tries.append(measured)
        progress(
            f"{measured.values[workload.metric]:,.2f} {workload.unit} (took {time.monotonic() - begin:.1f} s, "
            f"{measured.values[STOLEN]:.1f} % stolen)"
        )
    return min(tries, key=lambda measured: measured.values[STOLEN])


def save(record: dict[str, Any], prefix: str = "") -> Path:
    path = bench_directory() / f"{prefix}{record['at'].replace(':', '-').removesuffix('+00-00')}.json"
    path.write_text(json.dumps(record, indent=2) + "\n")
    return path


def say(text: str) -> None:
    print(f"{datetime.now():%H:%M:%S} {text}", file=sys.stderr, flush=True)


def names(allowed: tuple[str, ...]) -> Any:
    def parse(text: str) -> tuple[str, ...]:
        names = tuple(name.strip().lower() for name in text.split(","))
        unknown = [name for name in names if name not in allowed]
        if unknown:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: choose from {', '.join(allowed)}")
        return names

    return parse


if __name__ == "__main__":
    sys.exit(main())
