"""`python -m benchmarks.server`: what a server costs while workers wait, sleepers wake and a million runs pass."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

from benchmarks import databases, machine
from benchmarks.__main__ import names, save, say
from benchmarks.environments import bench_directory
from benchmarks.server.bars import Verdict, table
from benchmarks.server.idle import idle
from benchmarks.server.memory import Sample, memory
from benchmarks.server.site import site
from benchmarks.server.telling import telling
from benchmarks.server.waking import waking

PARTS = ("idle", "waking", "telling", "memory")


@dataclass(frozen=True, slots=True)
class Options:
    parts: tuple[str, ...]
    workers: int
    idle_seconds: float
    sleepers: int
    signals: int
    runs: int
    url: str | None


def main() -> int:
    options = parse()
    with server(options.url) as url:
        return asyncio.run(measure(options, url))


def parse() -> Options:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.server", description=__doc__)
    parser.add_argument("--only", type=names(PARTS), default=PARTS, metavar="IDLE,WAKING,TELLING,MEMORY")
    parser.add_argument("--workers", type=int, default=200, help="idle workers")
    parser.add_argument("--idle-seconds", type=float, default=60.0, help="how long they are looked at")
    parser.add_argument("--sleepers", type=int, default=10_000, help="runs that are due over 10 seconds")
    parser.add_argument("--signals", type=int, default=200, help="signals to parked runs, one after the other")
    parser.add_argument("--runs", type=int, default=1_000_000, help="runs over which memory is looked at")
    parser.add_argument("--url", help="a PostgreSQL server with pg_stat_statements, else one is started")
    found = parser.parse_args()
    return Options(found.only, found.workers, found.idle_seconds, found.sleepers, found.signals, found.runs, found.url)


@contextlib.contextmanager
def server(url: str | None) -> Iterator[str]:
    """A PostgreSQL server that counts statements."""
    if url is not None:
        yield url
        return
    from kagzi.testing.postgres import PostgresServer

    counting = {"shared_preload_libraries": "pg_stat_statements", "pg_stat_statements.track_utility": "off"}
    with PostgresServer(settings=counting) as started:
        yield started.url


async def measure(options: Options, url: str) -> int:
    settings = await databases.check_durable(url)
    limits = await machine.look(url, seconds=0.3)
    verdicts: list[Verdict] = []
    samples: list[Sample] = []
    failures: list[str] = []
    for part in options.parts:
        say(f"{part}: starting")
        try:
            async with site(url) as started:
                match part:
                    case "idle":
                        found = await idle(started, options.workers, options.idle_seconds, say)
                    case "waking":
                        found = await waking(started, options.sleepers)
                    case "telling":
                        found = await telling(started, options.signals)
                    case _:
                        found, samples = await memory(started, options.runs, say)
        except Exception as failed:
            failures.append(f"{part}: {type(failed).__name__}: {failed}")
            say(failures[-1])
        else:
            verdicts += found
    record = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "options": asdict(options) | {"url": None},
        "machine": limits.to_json(),
        "postgresql": settings,
        "verdicts": [asdict(verdict) | {"met": verdict.met} for verdict in verdicts],
        "memory": [asdict(sample) for sample in samples],
        "failures": failures,
    }
    saved = save(record, "server-")
    print("\n".join([*limits.lines(), "", *(table(verdicts) if verdicts else [])]))
    for failure in failures:
        print(f"\nfailed: {failure}")
    print(f"\nSaved to {saved.relative_to(bench_directory().parent)}")
    return 0 if not failures and all(verdict.met for verdict in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
