"""A cable between a server and its database, which can be cut: then both ends stay open and nothing comes through."""

from __future__ import annotations

import asyncio
import contextlib
from urllib.parse import urlsplit


class Cable:
    def __init__(self, url: str) -> None:
        self._address = urlsplit(url)
        self._whole = asyncio.Event()
        self._whole.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._listener: asyncio.Server | None = None
        self.url = ""

    def cut(self) -> None:
        self._whole.clear()

    def mend(self) -> None:
        self._whole.set()

    async def __aenter__(self) -> Cable:
        self._listener = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        port = self._listener.sockets[0].getsockname()[1]
        user = self._address.netloc.rpartition("@")[0]
        self.url = self._address._replace(netloc=f"{user}@127.0.0.1:{port}" if user else f"127.0.0.1:{port}").geturl()
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._listener is not None
        self._listener.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        await self._whole.wait()
        far_reader, far_writer = await asyncio.open_connection(self._address.hostname, self._address.port)
        try:
            await asyncio.gather(self._carry(reader, far_writer), self._carry(far_reader, writer))
        except asyncio.CancelledError:
            pass  # the test is over
        finally:
            for end in (writer, far_writer):
                end.close()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                await self._whole.wait()
                writer.write(data)
                await writer.drain()
        writer.close()
