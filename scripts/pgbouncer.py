"""Kagzi behind PgBouncer in transaction mode, tried in earnest: python -m scripts.pgbouncer

Needs Debian's package `pgbouncer` (or another one on PATH), and PostgreSQL as the suite does. Runs the suite of the
store and the scenarios through it, then starts servers at once, kills a worker and a server, and measures; each of
these directly, behind PgBouncer with KAGZI_LISTEN_URL, and behind it without. Exit code 1 if something went wrong.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import asyncpg

from kagzi.testing.pgbouncer import MISSING, PgBouncer, find_pgbouncer
from kagzi.testing.postgres import PostgresServer, free_port
from scripts.load import LEDGER, LINKS, SURVIVORS
from scripts.processes import ROOT, Programs, answer, table

SERVERS = 5
SUITES = ("tests/store/test_conformance.py", "tests/store/test_equivalence.py", "tests/scenarios")
_LEASE = {"KAGZI_WORKER_VISIBILITY_TIMEOUT_SECS": "3", "KAGZI_COORDINATOR_WORKER_STALE_THRESHOLD_SECS": "5"}


class Way:
    """How processes reach the database."""

    def __init__(self, name: str, environment: Callable[[str], dict[str, str]]) -> None:
        self.name = name
        self._environment = environment
        self.results: dict[str, str] = {}

    def environment(self, database: str) -> dict[str, str]:
        return self._environment(database)


def main() -> int:
    program = find_pgbouncer()
    if program is None:
        print(MISSING, file=sys.stderr)
        return 2
    print(subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout.split("\n")[0])
    failures: list[str] = []
    suite = _suite()
    print(f"suite through PgBouncer: {suite}", flush=True)
    if "failed" in suite or "error" in suite or "passed" not in suite:
        failures.append(f"suite: {suite}")
    with PostgresServer() as server, PgBouncer(server, pool_size=8) as bouncer:
        ways = [
            Way("direct", lambda name: {"KAGZI_URL": server.url_of(name)}),
            Way(
                "PgBouncer, listening",
                lambda name: {"KAGZI_URL": bouncer.url_of(name), "KAGZI_LISTEN_URL": server.url_of(name)},
            ),
            Way("PgBouncer, looking", lambda name: {"KAGZI_URL": bouncer.url_of(name)}),
        ]
        trials = (_servers_at_once, _killed_worker, _killed_server, _latency, _throughput)
        for number, way in enumerate(ways):
            for trial in trials:
                database = f"trial_{number}{trial.__name__}"
                asyncio.run(_create(server, database))
                try:
                    way.results |= trial(way.environment(database))
                except Exception as error:
                    failures.append(f"{way.name}, {trial.__name__.strip('_')}: {error}")
                    way.results[trial.__name__.strip("_")] = "FAILED"
    names = list(dict.fromkeys(name for way in ways for name in way.results))
    table(
        "Behind PgBouncer in transaction mode",
        ["", *(way.name for way in ways)],
        [[name, *(way.results.get(name, "-") for way in ways)] for name in names],
    )
    for failure in failures:
        print(f"FAILED {failure}", file=sys.stderr)
    return 1 if failures else 0


def _suite() -> str:
    """The last line of what pytest says."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "scripts.pgbouncer_plugin", "-k", "postgres", *SUITES]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    lines = done.stdout.strip().split("\n")
    for line in lines:
        if line.startswith(("FAILED", "ERROR")):
            print(line)
    return lines[-1]


def _servers_at_once(environment: dict[str, str]) -> dict[str, str]:
    """On an empty database: one migrates, the others wait for it."""
    with Programs() as programs:
        before = time.monotonic()
        servers = [_server(programs, environment) for _ in range(SERVERS)]
        for server in servers:
            server.said("is ready")
        taken = time.monotonic() - before
        codes = [server.stop() for server in servers]
    if codes != [0] * SERVERS:
        raise RuntimeError(f"servers ended with {codes}")
    return {f"{SERVERS} servers at once, s": f"{taken:.1f}"}


def _killed_worker(environment: dict[str, str]) -> dict[str, str]:
    return {"after kill -9 of a worker": _survive(environment, through_server=False)}


def _killed_server(environment: dict[str, str]) -> dict[str, str]:
    return {"after kill -9 of a server": _survive(environment, through_server=True)}


def _survive(environment: dict[str, str], *, through_server: bool) -> str:
    """Kill what half of the runs depend on; they finish nevertheless, with the right results."""
    with Programs() as programs:
        environment = {**environment, **_LEASE, LEDGER: str(programs.directory / "ledger")}
        worker_environment = [environment, environment]
        victims = []
        if through_server:
            victims = [_server(programs, environment) for _ in range(2)]
            ports = [server.said(r"gRPC on 127\.0\.0\.1:(\d+)")[1] for server in victims]
            worker_environment = [{**environment, "KAGZI_URL": f"grpc://127.0.0.1:{port}"} for port in ports]
        workers = [
            programs.kagzi("worker", "scripts.load:app", "-c", "20", environment=env) for env in worker_environment
        ]
        for worker in workers:
            worker.said("is up")
        client = programs.start([sys.executable, "-m", "scripts.load", "survive"], environment)
        client.said("started")
        time.sleep(0.3)
        (victims or workers)[0].kill()
        found = json.loads(client.said(r'\{"runs".*\}', 120)[0])
    if found["wrong"] or found["steps"] != SURVIVORS * LINKS or found["runs"] != SURVIVORS:
        raise RuntimeError(f"{found}")
    return f"{found['runs']} of {SURVIVORS} right, {found['repeated']} steps again"


def _latency(environment: dict[str, str]) -> dict[str, str]:
    with Programs() as programs:
        programs.kagzi("worker", "scripts.load:app", environment=environment).said("is up")
        found = json.loads(answer("scripts.load", "latency", environment=environment))
    return {"start to result, other process, p50 ms": f"{found['p50']:.1f}", "  p95 ms": f"{found['p95']:.1f}"}


def _throughput(environment: dict[str, str]) -> dict[str, str]:
    found: dict[str, Any] = json.loads(answer("scripts.load", "throughput", environment=environment))
    return {"one-step runs/s": f"{found['runs']:,.0f}", "steps/s": f"{found['steps']:,.0f}"}


def _server(programs: Programs, environment: dict[str, str]) -> Any:
    ports = {"KAGZI_SERVER_PORT": str(free_port()), "KAGZI_HTTP_PORT": str(free_port())}
    return programs.kagzi("server", environment={**environment, **ports})


async def _create(server: PostgresServer, database: str) -> None:
    connection = await asyncpg.connect(server.url)
    try:
        await connection.execute(f'CREATE DATABASE "{re.sub(r"[^a-z0-9_]", "", database)}" TEMPLATE template0')
    finally:
        await connection.close()


if __name__ == "__main__":
    sys.exit(main())
