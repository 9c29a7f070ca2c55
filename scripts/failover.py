"""Primaries killed under load, and what callers notice: python -m scripts.failover [--rounds 3] [--asynchronous]

Three PostgreSQL servers under Patroni, one app that reaches them by a URL with all three hosts, and callers that start
runs of several steps all the time. In every round the primary and its Patroni are killed with SIGKILL. Then:

  write gap       the longest time without an acknowledged start, step or result
  of that, ours   from the moment at which somebody who knows all servers could write to the next acknowledgement
  lost starts     starts that were acknowledged and are not in the database afterwards
  lost steps      steps whose body ran again although the next one had begun, which needs the result to be durable
  lost results    results that callers have, and the database does not

With synchronous mode, which is what this tries unless told otherwise, nothing may be lost: exit code 1 if something
was. With --asynchronous the last commits of a killed primary may be: they are counted, and the exit code is 0.

Needs Debian's packages patroni and etcd-server, and a PostgreSQL with its programs.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
import time
from itertools import pairwise

import asyncpg

import kagzi
from kagzi import Kagzi
from kagzi.errors import KagziError, NotFound
from scripts.patroni import TTL_SECONDS, Cluster, missing, running
from scripts.processes import table

CALLERS = 20
STEPS = 5
STEADY_SECONDS = 5.0


class Load:
    """An app with a worker in this process, its callers, and what they were told."""

    def __init__(self, url: str) -> None:
        self.app = app = Kagzi(url)
        self.started: dict[str, float] = {}  # by id: when its start was acknowledged
        self.finished: dict[str, int] = {}
        self.bodies: dict[str, list[int]] = {}  # by id: which bodies ran, in their order
        self.acknowledged: list[float] = []
        self._noted = asyncio.Event()
        self._stop = False
        self._number = 0

        @app.step
        async def body(tag: str, phase: int) -> int:
            self.bodies.setdefault(tag, []).append(phase)
            if phase:
                self._note()  # it would not have begun before the result of the one before was stored
            return phase

        @app.workflow
        async def chain(tag: str) -> int:
            total = 0
            for phase in range(STEPS):
                total += await body(tag, phase)
            if tag.endswith("7"):
                await kagzi.sleep("nap", "1500ms")  # parks, and is claimed again
            return total + await body(tag, STEPS)

        self._chain = chain

    async def run(self) -> None:
        await asyncio.gather(*(self._call() for _ in range(CALLERS)))

    def stop(self) -> None:
        self._stop = True

    async def _call(self) -> None:
        while not self._stop:
            self._number += 1
            tag = f"run-{self._number}"
            run = None
            while run is None:
                try:
                    run = await self._chain.options(id=tag).start(tag)
                except KagziError:
                    await asyncio.sleep(0.05)  # nobody knows whether it was stored; the id makes repeating harmless
            self.started[tag] = time.monotonic()
            self._note()
            try:
                self.finished[tag] = await run.result(timeout=300)
            except NotFound:
                continue  # acknowledged and gone: `losses` counts it
            self._note()

    def _note(self) -> None:
        self.acknowledged.append(time.monotonic())
        self._noted.set()

    async def acknowledged_after(self, moment: float) -> None:
        while self.acknowledged[-1] < moment:
            self._noted.clear()
            await self._noted.wait()

    def gap(self, since: float) -> float:
        """The longest time without an acknowledgement that ended after this moment."""
        return max(later - earlier for earlier, later in pairwise(self.acknowledged) if later >= since)

    def repeated(self) -> int:
        """Bodies that ran again although a later one had begun: their results had been acknowledged, and were lost."""
        return sum(
            phase < max(phases[:place], default=phase)
            for phases in self.bodies.values()
            for place, phase in enumerate(phases)
        )


async def losses(load: Load, url: str) -> tuple[int, int]:
    """Acknowledged starts and results that the database does not have."""
    started, finished = list(load.started), list(load.finished)  # before looking: callers go on meanwhile
    connection = await asyncpg.connect(url)
    try:
        rows = await connection.fetch("SELECT external_id, status FROM kagzi.workflow_runs")
    finally:
        await connection.close()
    statuses = {row["external_id"]: row["status"] for row in rows}
    lost = sum(tag not in statuses for tag in started)
    return lost, sum(statuses.get(tag) != "COMPLETED" for tag in finished)


async def first_write(hosts: list[str]) -> float:
    """The moment at which a commit on one of these servers was acknowledged to somebody who only wants that."""

    async def write(host: str) -> float:
        while True:
            try:
                connection = await asyncpg.connect(f"postgresql://postgres@{host}/postgres", timeout=2)
                try:
                    await connection.execute("CREATE TABLE IF NOT EXISTS written (at timestamptz)")
                    await connection.execute("INSERT INTO written VALUES (now())")
                    return time.monotonic()
                finally:
                    connection.terminate()
            except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
                await asyncio.sleep(0.05)

    tasks = [asyncio.create_task(write(host)) for host in hosts]
    done, waiting = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED, timeout=180)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    return min(task.result() for task in done)


async def trial(cluster: Cluster, rounds: int) -> list[list[str]]:
    rows: list[list[str]] = []
    load = Load(cluster.url)
    async with load.app, load.app.worker(concurrency=200):
        calling = asyncio.create_task(load.run())
        for number in range(1, rounds + 1):
            leader = await asyncio.to_thread(cluster.settle)
            await asyncio.sleep(STEADY_SECONDS)
            known = len(load.started)
            await asyncio.to_thread(leader.kill)
            killed = time.monotonic()
            possible = await first_write([node.host for node in cluster.nodes if node is not leader])
            await load.acknowledged_after(killed + 1.0)
            first = next(moment for moment in load.acknowledged if moment >= killed + 1.0)
            await asyncio.sleep(STEADY_SECONDS)
            gap = load.gap(killed)
            starts, results = await losses(load, cluster.url)
            rows.append(
                [
                    f"{number}: {leader.name} killed",
                    str(known),
                    f"{gap:.1f}",
                    f"{max(first - possible, 0.0):.2f}",
                    str(starts),
                    str(load.repeated()),
                    str(results),
                ]
            )
            print("  ".join(rows[-1]), flush=True)
            cluster.restart(leader)
        await asyncio.to_thread(cluster.settle)
        load.stop()
        await calling
        starts, results = await losses(load, cluster.url)
        wrong = sum(value != sum(range(STEPS + 1)) for value in load.finished.values())
        rows.append(
            ["at the end", str(len(load.started)), "", "", str(starts), str(load.repeated()), str(results + wrong)]
        )
    return rows


def main() -> int:
    options = argparse.ArgumentParser(description="Kill primaries of a Patroni cluster under load.")
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--asynchronous", action="store_true", help="without waiting for a standby: may lose the last")
    chosen = options.parse_args()
    if packages := missing():
        print(f"not installed; Debian: apt install {' '.join(packages)}", file=sys.stderr)
        return 2
    for name in [name for name in os.environ if name.startswith(("KAGZI_", "PG"))]:
        del os.environ[name]
    logging.basicConfig(level=logging.ERROR)
    with running(size=3, synchronous=not chosen.asynchronous) as cluster:
        rows = asyncio.run(trial(cluster, chosen.rounds))
    mode = "asynchronous" if chosen.asynchronous else "synchronous"
    table(
        f"Failover, {mode} mode; Patroni waits {TTL_SECONDS} s before it gives up on a leader",
        ["", "starts", "write gap, s", "of that, ours, s", "lost starts", "lost steps", "lost results"],
        rows,
    )
    lost = any(int(value) for row in rows for value in row[4:])
    return 1 if lost and not chosen.asynchronous else 0


if __name__ == "__main__":
    sys.exit(main())
