"""`python -m benchmarks.clocks`: how late does what a schedule fires begin, beside other systems?

Schedules that are due every second: first a single one on an idle system, then many that are due together in every
second. Told is when the first step of what they fire begins, against the instant it was fired for, and how many begin
in a second. Exit code 1 if a bar is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import asyncpg

from benchmarks.environments import ROOT, python_of
from benchmarks.server.bars import Verdict, table
from benchmarks.systems.driver import percentile
from kagzi.testing.postgres import PostgresServer

MOST_MS_LATE = 50.0
OURS = ("kagzi", "server")
NAMES = {"kagzi": "Kagzi", "server": "Kagzi's server", "dbos": "DBOS", "temporal": "Temporal's dev server"}


def measure(system: str, url: str, schedules: int, seconds: int, directory: str) -> list[tuple[float, float]]:
    file = Path(directory, "fired.json")
    command = (python_of(system, print), "-m", "benchmarks.systems.clocked", system, url)
    subprocess.run([*command, str(schedules), str(seconds), str(file)], cwd=ROOT, check=True, timeout=seconds + 120)
    found: list[tuple[float, float]] = json.loads(file.read_text())
    return found


def judge(
    title: str, fired: list[tuple[float, float]], schedules: int, seconds: int, bar: float | None
) -> list[Verdict]:
    late = [(begun - nominal) * 1000 for nominal, begun in fired]
    wanted = schedules * seconds
    verdicts = [
        Verdict(f"{title}: {len(fired)} of {wanted} have begun, a second", len(fired) / seconds, ""),
        Verdict("  how late, p50", median(late), "ms"),
        Verdict("  how late, p99", percentile(late, 0.99), "ms", bar),
    ]
    if bar is not None and len(fired) < wanted - schedules:  # the window begins and ends anywhere in a second
        raise SystemExit(f"{title}: only {len(fired)} of {wanted} firings have begun")
    return verdicts


async def make_databases(server: PostgresServer, names: Sequence[str]) -> None:
    connection = await asyncpg.connect(server.url)
    for name in names:
        await connection.execute(f"CREATE DATABASE {name}")
    await connection.close()


def main(plan: Sequence[tuple[str, str]], many: int, alone_seconds: int, many_seconds: int) -> bool:
    verdicts: list[Verdict] = []
    rounds = [("one schedule", 1, alone_seconds)] * bool(alone_seconds)
    rounds += [(f"{many} schedules together", many, many_seconds)] * bool(many_seconds)
    with PostgresServer() as server, tempfile.TemporaryDirectory() as directory:
        for number, (title, schedules, seconds) in enumerate(rounds):
            for system, store in plan:
                name = f"{system}_{number}"
                url = f"sqlite:///{directory}/{name}.db"
                if store == "postgresql":
                    asyncio.run(make_databases(server, [name]))
                    url = server.url_of(name)
                fired = measure(system, url, schedules, seconds, directory)
                bar = MOST_MS_LATE if system in OURS and schedules == 1 else None
                where = "" if system == "temporal" else f" on {'SQLite' if store == 'sqlite' else 'PostgreSQL'}"
                verdicts += judge(f"{title}, {NAMES[system]}{where}", fired, schedules, seconds, bar)
                print("\n".join(table(verdicts[-3:])), flush=True)
    return all(verdict.met for verdict in verdicts)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--systems", default="kagzi,server,dbos,temporal")
    parser.add_argument("--stores", default="postgresql,sqlite")
    parser.add_argument("--many", type=int, default=300)
    parser.add_argument("--alone-seconds", type=int, default=60, help="0 leaves that part out")
    parser.add_argument("--many-seconds", type=int, default=10, help="0 leaves that part out")
    asked = parser.parse_args()
    stores = asked.stores.split(",")
    chosen = [
        (system, store)
        for system in asked.systems.split(",")
        for store in stores
        if store == "postgresql" or system in ("kagzi", "dbos")
    ]
    raise SystemExit(not main(chosen, asked.many, asked.alone_seconds, asked.many_seconds))
