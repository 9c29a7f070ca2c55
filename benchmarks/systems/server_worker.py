"""Kagzi's server: `kagzi server`, one worker process and the callers' process, over gRPC on this machine.

The workflows, the callers and the checks are those of `kagzi_worker`; only the URL is another one. All three processes
use gRPC's poller as the `kagzi` command does (docs/server.md, Speed).
"""

# ruff: noqa: E402
from __future__ import annotations

from kagzi.cli.grpc_core import prepare_grpc

prepare_grpc(verbose=False)  # before gRPC is imported; the worker inherits it

import contextlib
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.systems.driver import Rows, System, main
from benchmarks.systems.kagzi_worker import RESULT_TIMEOUT, PostgresDatabase
from benchmarks.systems.kagzi_worker import __spec__ as worker_module
from benchmarks.systems.kagzi_workflows import define
from benchmarks.systems.processes import Process, cpu_seconds, free_port, peak_memory_mb
from benchmarks.systems.stopwatch import SHARED, stopwatch
from benchmarks.workloads import Task, Values
from kagzi import Kagzi


class KagziServer:
    counted = False
    times_itself = False

    def __init__(self, task: Task) -> None:
        self._task = task
        self._port = free_port()
        self._url = f"grpc://127.0.0.1:{self._port}"
        self._app = Kagzi(self._url)
        self._workflows = define(self._app)
        self._database = PostgresDatabase(task.url)
        self._opened = contextlib.AsyncExitStack()
        self._pids: dict[str, int] = {}
        self._cpu_before: dict[str, float] = {}
        self._cpu: dict[str, float] = {}
        self._peaks: Values = {}

    async def open(self) -> None:
        directory = Path(self._opened.enter_context(tempfile.TemporaryDirectory(prefix="kagzi-bench-")))
        server = await start_server(self._task.url, self._port, directory)
        self._opened.push_async_callback(server.stop)
        times = directory / "times"
        worker = await Process.start(
            sys.executable, "-m", worker_module.name, "worker", self._url, str(self._task.sizes.slots),
            log=directory / "worker.log", env={SHARED: str(times)},
        )  # fmt: skip
        self._opened.push_async_callback(worker.stop)
        stopwatch.follow(times)
        await self._opened.enter_async_context(self._app)
        self._pids = {"server": server.pid, "worker": worker.pid, "client": os.getpid()}
        self._cpu_before = {name: cpu_seconds(pid) for name, pid in self._pids.items()}

    async def close(self) -> None:
        self._cpu = {name: cpu_seconds(pid) - self._cpu_before[name] for name, pid in self._pids.items()}
        self._peaks = {f"{name}_mb": peak_memory_mb(pid) for name, pid in self._pids.items()}
        await self._opened.aclose()

    async def run(self, workflow: str, x: int) -> Any:
        return await self._workflows[workflow].run(x)

    async def start(self, workflow: str, x: int) -> Any:
        return await self._workflows[workflow].start(x)

    async def tell(self, handle: Any, x: int) -> None:
        await handle.signal("go", x)

    async def result(self, handle: Any) -> Any:
        return await handle.result(timeout=RESULT_TIMEOUT)

    async def count_finished(self) -> int:
        return (await self.rows("one_step")).finished_runs

    async def rows(self, workflow: str) -> Rows:
        return await self._database.rows(workflow)

    async def idle(self) -> Values:
        raise NotImplementedError("`python -m benchmarks.server` looks at idle servers")

    async def extras(self, runs: int, steps: int) -> Values:  # noqa: ARG002
        """What each process spent on a run, from start to end and the warming up included: where to look next."""
        spent = {f"{name}_cpu_ms": 1000 * seconds / runs for name, seconds in self._cpu.items()}
        return spent | self._peaks


async def start_server(database: str, port: int, directory: Path) -> Process:
    """A `kagzi server` that is ready."""
    kagzi = Path(sys.executable).with_name("kagzi")
    ports = ("--port", str(port), "--http-port", "0")
    server = await Process.start(kagzi, "server", "--url", database, *ports, log=directory / "server.log")
    await server.says("is ready")
    return server


def make(task: Task) -> System:
    return KagziServer(task)


if __name__ == "__main__":
    main(make)
