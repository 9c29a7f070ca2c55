"""A server on a fresh database, and workers in processes of their own."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg

from benchmarks import databases
from benchmarks.server import workers
from benchmarks.systems.processes import Process, free_port
from benchmarks.systems.server_worker import start_server
from benchmarks.systems.stopwatch import SHARED, stopwatch

ASK_EVERY_SECONDS = 0.5


class Site:
    def __init__(
        self, database: str, port: int, server: Process, directory: Path, opened: contextlib.AsyncExitStack
    ) -> None:
        self.url = f"grpc://127.0.0.1:{port}"
        self.server = server
        self.database = database
        self._directory = directory
        self._opened = opened
        self._processes = 0

    async def start_workers(self, workers_each: int, *, slots: int = 100) -> Process:
        """Return when all of them are registered. Their stopwatch is this process's, too."""
        self._processes += 1
        times = self._directory / "times"
        process = await Process.start(
            sys.executable, "-m", workers.__name__, self.url, str(workers_each), str(slots),
            log=self._directory / f"workers-{self._processes}.log", env={SHARED: str(times)},
        )  # fmt: skip
        self._opened.push_async_callback(process.stop)
        await process.says("working")
        stopwatch.follow(times)
        return process

    async def ask(self, sql: str) -> Any:
        """One value, straight from the database."""
        connection = await asyncpg.connect(self.database)
        try:
            return await connection.fetchval(sql)
        finally:
            await connection.close()

    async def reaches(self, sql: str, wanted: int, *, by: float) -> int:
        """Ask until the answer is `wanted` or more, or it is too late; the last answer."""
        while True:
            found = int(await self.ask(sql))
            if found >= wanted or time.time() >= by:
                return found
            await asyncio.sleep(ASK_EVERY_SECONDS)


@contextlib.asynccontextmanager
async def site(server_url: str) -> AsyncIterator[Site]:
    async with contextlib.AsyncExitStack() as opened:
        directory = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="kagzi-bench-")))
        database = await opened.enter_async_context(databases.fresh("postgresql", server_url))
        port = free_port()
        server = await start_server(database, port, directory)
        opened.push_async_callback(server.stop)
        yield Site(database, port, server, directory, opened)
