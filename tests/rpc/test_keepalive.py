"""A server that is gone without a word: no packet says so, and only keepalive finds out."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

import pytest

from kagzi.core.instant import SECOND
from kagzi.errors import Unavailable
from kagzi.rpc import limits
from kagzi.rpc.client import channel
from kagzi.rpc.client.remote import RemoteEngine
from tests.rpc.support import serving
from tests.rpc.test_remote import IDS, poll_of


class Cable:
    """Between a client and a server, until it is cut: then both ends stay open and nothing comes through."""

    def __init__(self) -> None:
        self.cut = False

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            if not self.cut:
                writer.write(data)
                await writer.drain()
        writer.close()

    @contextlib.asynccontextmanager
    async def to(self, port: int) -> AsyncIterator[str]:
        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
            with contextlib.suppress(ConnectionError):
                await asyncio.gather(self._carry(reader, far_writer), self._carry(far_reader, writer))

        listener = await asyncio.start_server(connected, "127.0.0.1", 0)
        async with listener:
            yield f"127.0.0.1:{listener.sockets[0].getsockname()[1]}"


@pytest.mark.parametrize("idle", [False, True])
async def test_a_connection_that_carries_nothing_any_more_is_given_up(
    idle: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred times as soon as it really is, which is half a minute."""
    hurried = {
        "grpc.keepalive_time_ms": limits.KEEPALIVE_MS // 100,
        "grpc.keepalive_timeout_ms": limits.KEEPALIVE_TIMEOUT_MS // 100,
        "grpc.http2.ping_timeout_ms": limits.PING_TIMEOUT_MS // 100,
    }
    assert {name: value // 100 for name, value in channel._OPTIONS if name in hurried} == hurried  # type: ignore[operator]
    options = tuple((name, hurried.get(name, value)) for name, value in channel._OPTIONS)
    monkeypatch.setattr(channel, "_OPTIONS", options)
    cable = Cable()
    async with serving("memory://") as server, cable.to(server.port) as target, RemoteEngine(target) as remote:
        polling = asyncio.create_task(remote.workers.poll(poll_of(IDS.token(), wait=60 * SECOND)))
        await remote.admin.count_workers("default")  # goes to and fro behind the poll
        if idle:
            await asyncio.sleep(0.5)
        cable.cut = True
        began = time.monotonic()
        with pytest.raises(Unavailable):
            await polling
        assert time.monotonic() - began < 30  # rather than the minute that the poll may take
