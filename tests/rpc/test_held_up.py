"""A worker behind a network that holds up what the server says: its sleeps last as long as they should."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from kagzi import Kagzi
from tests.scenarios.conftest import served

HELD_UP = 1.2
LENGTH = 1.5


class Proxy:
    """Passes bytes on, to a server at once and back as late as it was told."""

    def __init__(self, target: str) -> None:
        self._host, _, port = target.rpartition(":")
        self._port = int(port)
        self._ways: set[asyncio.Task[None]] = set()
        self.delay = 0.0

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[str]:
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        try:
            yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finally:
            server.close()
            for way in self._ways:
                way.cancel()
            await asyncio.gather(*self._ways, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(self._host, self._port)
        for way in (self._pass_on(reader, back, late=False), self._pass_on(there, writer, late=True)):
            self._ways.add(asyncio.create_task(way))

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, late: bool) -> None:
        try:
            while data := await reader.read(1 << 16):
                if late and self.delay:
                    await asyncio.sleep(self.delay)
                writer.write(data)
                await writer.drain()
        finally:
            writer.close()


class Program:
    """Looks at something and then sleeps. Notes when the step ended and when the sleep did."""

    def __init__(self, url: str, claimed: Callable[[], None]) -> None:
        self.app = Kagzi(url)
        self.looked = self.woke = 0.0

        @self.app.step
        async def look() -> None:
            claimed()
            self.looked = time.monotonic()

        @self.app.workflow
        async def sleeper() -> None:
            await look()
            await asyncio.sleep(LENGTH)
            self.woke = time.monotonic()

        self.sleeper = sleeper


async def test_sleeps_are_not_shorter_behind_a_slow_network(tmp_path: Path) -> None:
    async with served(f"sqlite:///{tmp_path / 'kagzi.db'}") as address:
        proxy = Proxy(address.removeprefix("grpc://"))

        def be_quick() -> None:
            proxy.delay = 0.0

        async with proxy.serve() as slow:
            near, far = Program(address, be_quick), Program(f"grpc://{slow}", be_quick)
            async with near.app, far.app, far.app.worker():
                await asyncio.sleep(0.3)  # a poll waits at the server now
                proxy.delay = HELD_UP
                await near.sleeper.run()

    assert far.woke - far.looked >= LENGTH
