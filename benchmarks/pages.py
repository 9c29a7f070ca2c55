"""`python -m benchmarks.pages`: how long do the pages of the dashboard take with 100,000 runs in the table?

The table is filled by plain SQL as `benchmarks.search` does it, and there are a run of 2,000 steps and one of 10,000,
a hundred schedules, two hundred workers and a few limits. Every page is asked for one after the other over HTTP, from
the same process: what is measured is the time until the whole page is there, with what the client adds to it. The first
request of each page is measured like the others. `--pause` waits between two rounds, so that what the engine remembers
for a few seconds is asked for anew, too.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sqlite3
import sys
import time
from collections.abc import AsyncIterator

import asyncpg
import httpx

from benchmarks import databases
from benchmarks.search import fill_postgres, fill_sqlite
from kagzi.access import Gate
from kagzi.api.operations import StartRun
from kagzi.api.schedules import CreateSchedule
from kagzi.api.workers import Registration
from kagzi.clock import SystemClock
from kagzi.connect import connect
from kagzi.core.flow import Scope
from kagzi.core.instant import SECOND
from kagzi.core.worker import WorkflowType
from kagzi.dashboard import make_pages
from kagzi.engine.local import LocalEngine
from kagzi.http.door import Door
from kagzi.http.port import HttpPort
from kagzi.ids import RandomIds
from kagzi.ports.keyless import Keyless

MOST_MS = 100.0
MOST_STEPS_MS = 2000.0  # of a run with 2,000 steps
_DAY = 86_400 * SECOND
_WORKERS = 200
_SCHEDULES = 100

_STEPS = """
INSERT INTO {schema}step_runs (run_id, started_at, finished_at, attempt, completed_seq, namespace, step_id,
    kind, status, input, output)
SELECT {run}, {at} + n, {at} + n + 500, 1, n, 'default', 'step#' || (n + 1), 'FUNCTION', 'COMPLETED', {one}, {one}
FROM {numbers}
"""


async def add_steps(name: str, url: str, run_id: str, at: int, count: int) -> None:
    """Gives a run so many completed steps, each with a payload of a kilobyte in and one out."""
    if name == "sqlite":
        numbers = f"(WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < {count}) SELECT n FROM c)"
        payload = "CAST('\"' || printf('%.1000c', 'x') || '\"' AS BLOB)"
        statement = _STEPS.format(schema="", run=f"'{run_id}'", at=at, one=payload, numbers=numbers)
        with contextlib.closing(sqlite3.connect(url.removeprefix("sqlite:///"), timeout=60)) as file:
            file.execute(statement)
            file.commit()
        return
    payload = "convert_to('\"' || repeat('x', 1000) || '\"', 'UTF8')"
    numbers = f"generate_series(1, {count}) AS n"
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(
            _STEPS.format(schema="kagzi.", run=f"'{run_id}'::uuid", at=at, one=payload, numbers=numbers)
        )
    finally:
        await connection.close()


async def add_rest(engine: LocalEngine, ids: RandomIds) -> None:
    for number in range(_WORKERS):
        await engine.workers.register(
            Registration(
                namespace="default",
                worker_id=ids.run_id(),
                queues=("mail",) if number % 4 == 0 else ("default",),
                types=(WorkflowType("checkout", "1"), WorkflowType("refund", "1")),
                hostname=f"host-{number % 10}",
                pid=number,
                version="1",
                concurrency=10,
            )
        )
    for number in range(_SCHEDULES):
        await engine.schedules.create(
            CreateSchedule(
                namespace="default",
                schedule_id=ids.run_id(),
                name=f"nightly-{number}",
                workflow_type="refund",
                task_queue="default",
                cron_expr="0 2 * * *",
            )
        )
    await engine.limits.set("default", Scope.QUEUE, "mail", concurrency=20)
    await engine.limits.set("default", Scope.WORKFLOW, "refund", concurrency=5, key_concurrency=1)


@contextlib.asynccontextmanager
async def serving(engine: LocalEngine) -> AsyncIterator[str]:
    gate = Gate(engine.keys, engine.namespaces, audit=engine.audit)
    pages = make_pages(read_only=False, session_seconds=3600.0)
    port = HttpPort(engine, gate=gate, audit=engine.audit, ready=lambda: True, door=Door(Keyless.LOCAL), pages=pages)
    await port.start()
    try:
        yield port.url
    finally:
        await port.stop(grace=1.0)
        await gate.close()


async def measure(url: str, paths: dict[str, float], rounds: int, pause: float) -> bool:
    took: dict[str, list[float]] = {path: [] for path in paths}
    sizes: dict[str, int] = {}
    async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as http:
        for _ in range(rounds):
            for path in paths:
                began = time.perf_counter()
                answer = await http.get(path, headers={"accept": "text/html"})
                took[path].append((time.perf_counter() - began) * 1000)
                answer.raise_for_status()
                sizes[path] = len(answer.content)
            await asyncio.sleep(pause)
    met = True
    for path, most in paths.items():
        times = sorted(took[path])
        p50, p95 = times[len(times) // 2], times[min(len(times) - 1, int(len(times) * 0.95))]
        met &= p95 <= most
        missed = "" if p95 <= most else f"  MISSED {most:g}"
        print(
            f"  {path[:60]:60} {sizes[path] / 1024:7.0f} KiB  first {took[path][0]:7.1f}  p50 {p50:7.1f}"
            f"  p95 {p95:7.1f} ms{missed}",
            flush=True,
        )
    return met


async def look_at(name: str, url: str, options: argparse.Namespace) -> bool:
    start = int(time.time() * SECOND) - 30 * _DAY
    engine = connect(url, worker_stale=3600 * SECOND)
    assert isinstance(engine, LocalEngine)
    await engine.open()
    ids = RandomIds(SystemClock().now)
    try:
        began = time.perf_counter()
        if name == "sqlite":
            fill_sqlite(url, options.runs, start)
        else:
            await fill_postgres(url, options.runs, start)
        await add_rest(engine, ids)
        long_runs = []
        for count in (2_000, 10_000):
            started = await engine.workflows.start(
                StartRun(
                    namespace="default",
                    run_id=ids.run_id(),
                    workflow_type="long",
                    task_queue="nobody",
                    input=b"[1]",
                )
            )
            run = await engine.workflows.get("default", started.run_id)
            await add_steps(name, url, run.run_id, run.created_at, count)
            long_runs.append(run.run_id)
        print(f"{name}: {options.runs:,} runs, filled in {time.perf_counter() - began:.0f} s", flush=True)
        paths = dict.fromkeys(
            (
                "/",
                "/runs",
                "/runs?status=FAILED",
                "/runs?workflow=refund&status=SLEEPING",
                "/runs?id_prefix=order-99",
                "/workflows",
                "/workflows/refund",
                "/workflows/checkout",
                "/versions",
                "/schedules",
                "/queues",
                "/workers",
                "/jobs",
                "/system",
                "/start?workflow=refund",
                "/bulk?action=retry&of=search&status=FAILED",
                *options.path,
            ),
            MOST_MS,
        )
        paths |= {
            f"/runs/{long_runs[0]}": MOST_STEPS_MS,
            f"/runs/{long_runs[0]}?after=1500": MOST_STEPS_MS,
            f"/runs/{long_runs[1]}": MOST_STEPS_MS,
        }
        async with serving(engine) as address:
            return await measure(address, paths, options.rounds, options.pause)
    finally:
        await engine.close()


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=40, help="how often each page is asked for")
    parser.add_argument("--pause", type=float, default=0.2, help="seconds between two rounds")
    parser.add_argument("--path", action="append", default=[], help="another page")
    parser.add_argument("--store", choices=("sqlite", "postgres"), action="append")
    parser.add_argument("--url", help="a PostgreSQL server instead of one of its own")
    options = parser.parse_args()
    stores = options.store or ("sqlite", "postgres")
    met = True
    with databases.server(options.url) if "postgres" in stores else contextlib.nullcontext() as server:
        for name in stores:
            async with databases.fresh(name, server) as url:
                met &= await look_at(name, url, options)
    bounds = f"p95 of every page within {MOST_MS:g} ms, of long runs within {MOST_STEPS_MS:g} ms"
    print(f"{bounds}: {'met' if met else 'MISSED'}")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
