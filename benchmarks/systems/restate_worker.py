"""Restate: its server, granian with the services, and the callers' process, over HTTP on this machine.

A caller makes one HTTP request for each run, which starts it and brings its result. The server keeps its data in
RocksDB and syncs its log before it answers, as it ships. The PostgreSQL of the task is not used.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks.environments import bench_directory
from benchmarks.systems import restate_services
from benchmarks.systems.driver import Rows, System, main
from benchmarks.systems.processes import Process, free_port
from benchmarks.systems.stopwatch import SHARED, stopwatch
from benchmarks.workloads import Task

FINISHED = """SELECT count(*) AS found FROM sys_invocation
              WHERE status = 'completed' AND completion_result = 'success' AND target_handler_name = '{workflow}'"""
STEPS = "SELECT count(*) AS found FROM sys_journal WHERE entry_type IN ('Notification: Run', 'Notification: Sleep')"


class Restate:
    counted = False
    times_itself = False

    def __init__(self, task: Task) -> None:
        self._options = task.options
        self._ingress, self._admin, self._services = free_port(), free_port(), free_port()
        self._opened = contextlib.AsyncExitStack()
        self._session: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        # Not in the temporary directory of the system, which may be in memory.
        directory = Path(
            self._opened.enter_context(tempfile.TemporaryDirectory(prefix="restate-", dir=bench_directory()))
        )
        times = directory / "times"
        granian = await Process.start(
            Path(sys.executable).with_name("granian"), f"{restate_services.__name__}:app",
            "--interface", "asginl", "--http", "2", "--port", str(self._services), "--workers-kill-timeout", "1",
            *self._options["granian"],
            log=directory / "granian.log",
            env={SHARED: str(times)},
        )  # fmt: skip
        self._opened.push_async_callback(granian.stop)
        server = await Process.start(
            server_binary(), "--no-logo", "--base-dir", directory / "data", "--node-name", "bench",
            log=directory / "server.log",
            env={
                "RESTATE_DISABLE_TELEMETRY": "true",
                "RESTATE_LISTEN_MODE": "tcp",
                "RESTATE_BIND_IP": "127.0.0.1",
                "RESTATE_BIND_PORT": str(free_port()),
                "RESTATE_INGRESS__BIND_PORT": str(self._ingress),
                "RESTATE_ADMIN__BIND_PORT": str(self._admin),
                "RESTATE_LOG_FILTER": "warn",
                **self._options["server"],
            },
        )  # fmt: skip
        # Ends before granian does, which waits for its connections.
        self._opened.push_async_callback(server.kill)
        stopwatch.follow(times)
        # A connection for each run in flight, all of them kept.
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=600)
        timeout = aiohttp.ClientTimeout(total=None)
        session = aiohttp.ClientSession(connector=connector, timeout=timeout, raise_for_status=True)
        self._session = await self._opened.enter_async_context(session)
        await granian.listens(self._services)
        await server.listens(self._ingress)
        await server.listens(self._admin)
        await _answered(self._register)
        await _answered(lambda: self.rows(""))

    async def close(self) -> None:
        await self._opened.aclose()

    async def start(self, workflow: str, x: int) -> Any:
        return asyncio.ensure_future(self.run(workflow, x))

    async def tell(self, handle: Any, x: int) -> None:  # noqa: ARG002
        await self._call(f"talking/{x}/go", x)

    async def result(self, handle: Any) -> Any:
        return await handle

    async def count_finished(self) -> int:
        raise NotImplementedError("its callers wait for their results")

    async def rows(self, workflow: str) -> Rows:
        """What its journal says. The outputs have been compared by the callers, each its own."""
        finished = await self._query(FINISHED.format(workflow=workflow))
        return Rows(finished_runs=finished, steps=await self._query(STEPS), wrong_outputs=0)

    async def run(self, workflow: str, x: int) -> Any:
        # What can be told something has a key; the others have none.
        return await self._call(f"talking/{x}/told" if workflow == "told" else f"bench/{workflow}", x)

    async def _call(self, handler: str, x: int) -> Any:
        assert self._session is not None
        url = f"http://127.0.0.1:{self._ingress}/{handler}"
        async with self._session.post(url, json=x) as answer:
            return await answer.json(content_type=None)

    async def _register(self) -> None:
        """Tell the server where the services are."""
        assert self._session is not None
        deployment = {"uri": f"http://127.0.0.1:{self._services}"}
        async with self._session.post(f"http://127.0.0.1:{self._admin}/deployments", json=deployment):
            pass

    async def _query(self, sql: str) -> int:
        assert self._session is not None
        url, headers = f"http://127.0.0.1:{self._admin}/query", {"accept": "application/json"}
        async with self._session.post(url, json={"query": sql}, headers=headers) as answer:
            (row,) = (await answer.json())["rows"]
            return int(row["found"])


def server_binary() -> Path:
    """npm installs the one for this platform."""
    (found,) = Path(sys.prefix).glob("npm/node_modules/@restatedev/restate-server-*/bin/restate-server")
    return found


async def _answered(call: Callable[[], Awaitable[Any]]) -> None:
    """A new server forms its cluster of one first; until then it answers with errors."""
    for last_try in (False,) * 200 + (True,):
        try:
            await call()
        except aiohttp.ClientResponseError:
            if last_try:
                raise
            await asyncio.sleep(0.1)
        else:
            return


def make(task: Task) -> System:
    return Restate(task)


if __name__ == "__main__":
    main(make)
