"""What a server loses to callers without a key, and to messages that never end: real requests to a real process."""

from __future__ import annotations

import gzip
import threading
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from kagzi.access import Role
from kagzi.connect import connect
from kagzi.engine.local import LocalEngine
from tests.faults.processes import ServerProcess
from tests.measures import MEBIBYTE, Measures
from tests.rpc.frames import Connection, beginning_of
from tests.rpc.guarded import Keyed
from tests.rpc.streams import Stream, asked

WARM_UP = 10
STARTS = "/kagzi.v1.WorkflowService/StartWorkflows"
# What a message of the largest size may say: empty items, each of which would become an object.
EMPTY_ITEMS = b"\x12\x00" * (8 * MEBIBYTE - 1)


class Tenant:
    """A server that asks for keys, and one of its keys."""

    def __init__(self, server: ServerProcess, key: str, host: str, port: int, http: str) -> None:
        self.server = server
        self.key = key
        self.host = host
        self.port = port
        self.http = http


@pytest.fixture
async def tenant(tmp_path: Path) -> AsyncIterator[Tenant]:
    url = f"sqlite:///{tmp_path}/runs.db"
    engine = connect(url)
    assert isinstance(engine, LocalEngine)
    async with engine:
        key = await engine.keys.create(name="test", role=Role.ADMIN, namespace=None, actor="test")
    server = ServerProcess(tmp_path, url, lease=30)
    try:
        host, port = (await server.url()).removeprefix("grpc://").split(":")
        yield Tenant(server, key.text, host, int(port), server.http_url())
    finally:
        server.close()


class Looking(threading.Thread):
    """Asks /livez again and again, and remembers how long that took."""

    def __init__(self, tenant: Tenant) -> None:
        super().__init__()
        self._address = f"{tenant.http}/livez"
        self._warm = threading.Event()
        self._over = threading.Event()
        self.taken: list[float] = []

    def run(self) -> None:
        with httpx.Client(timeout=30) as client:
            for _ in range(WARM_UP):
                client.get(self._address)
            self._warm.set()
            while not self._over.wait(0.01):
                began = time.perf_counter()
                client.get(self._address).raise_for_status()
                self.taken.append(time.perf_counter() - began)

    def __enter__(self) -> Looking:
        self.start()
        assert self._warm.wait(30)
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()


async def test_strangers_cost_neither_memory_nor_time(tenant: Tenant, measures: Measures) -> None:
    packed = gzip.compress(EMPTY_ITEMS)
    assert len(packed) < 20_000
    requests = [
        # What unpacks to millions of items, the same as it is, and some whose end never comes.
        *[(STARTS, b"\1" + len(packed).to_bytes(4, "big") + packed, "gzip")] * 10,
        *[(STARTS, beginning_of(len(EMPTY_ITEMS), EMPTY_ITEMS), "identity")] * 10,
        *[
            (path, beginning_of(15 * MEBIBYTE, bytes(14 * MEBIBYTE)), "identity")
            for path in (STARTS, "/kagzi.v1.ExchangeService/Exchange", "/grpc.health.v1.Health/Check", "/no/where")
            for _ in range(10)
        ],
    ]
    async with AsyncExitStack() as stack:
        connection = await stack.enter_async_context(Connection.to(tenant.host, tenant.port))
        looking = stack.enter_context(Looking(tenant))
        before = tenant.server.memory()
        for path, data, encoding in requests:
            await connection.open(path, ("grpc-encoding", encoding)).send(data, patience=0.05)
        after = tenant.server.memory()
    # It was 1.25 GiB and 9.5 s.
    measures.memory("server grown by", after - before, below=50 * MEBIBYTE)
    measures.slowest("/livez", looking.taken, below=0.1)
    measures.hold()


async def test_messages_that_never_end_cost_no_more_than_a_key_may_have(tenant: Tenant, measures: Measures) -> None:
    key = ("authorization", f"Bearer {tenant.key}")
    info = asked(1, "/kagzi.v1.AdminService/GetServerInfo")
    async with AsyncExitStack() as stack:
        quiet = await stack.enter_async_context(Keyed(f"{tenant.host}:{tenant.port}", tenant.key))
        honest = Stream(quiet.channel, quiet.metadata, seconds=None)
        await honest.ask(info)
        await honest.answers(1)
        looking = stack.enter_context(Looking(tenant))
        before, grown = tenant.server.memory(), 0
        for _ in range(4):
            connection = await stack.enter_async_context(Connection.to(tenant.host, tenant.port))
            for _ in range(20):
                # Each of them takes less than a message may have.
                unfinished = connection.open("/kagzi.v1.ExchangeService/Exchange", key)
                await unfinished.send(beginning_of(15 * MEBIBYTE, bytes(14 * MEBIBYTE)), patience=0.2)
                grown = max(grown, tenant.server.memory() - before)
        await honest.ask(info)
        await honest.answers(1)  # and whoever has sent what it began is not sent away with the others
    # It was 1.1 GiB, and could be 16 MiB times the streams of a key.
    measures.memory("server grown by", grown, below=300 * MEBIBYTE)
    measures.slowest("/livez", looking.taken, below=0.25)
    measures.hold()


async def test_compressed_requests_are_refused_and_who_has_no_key_hears_it(tenant: Tenant) -> None:
    async with Keyed(f"{tenant.host}:{tenant.port}", tenant.key) as client:
        call: Any = client.channel.unary_unary(STARTS)
        for compression, metadata, status in (
            (grpc.Compression.Gzip, client.metadata, grpc.StatusCode.UNIMPLEMENTED),
            (grpc.Compression.Deflate, client.metadata, grpc.StatusCode.UNIMPLEMENTED),
            (grpc.Compression.NoCompression, (), grpc.StatusCode.UNAUTHENTICATED),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await call(b"\x12\x00" * 1000, timeout=30, compression=compression, metadata=metadata)
            assert refused.value.code() is status
        await client.call("GetServerInfo")
