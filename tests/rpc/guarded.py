"""A server that asks for keys, and callers who show one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
from google.protobuf.message import Message

from kagzi.access import Gate, Role
from kagzi.clock import SystemClock
from kagzi.core.instant import SECOND
from kagzi.engine.local import LocalEngine
from kagzi.ids import RandomIds
from kagzi.rpc.methods import METHODS, Method
from kagzi.rpc.server.guard import GateGuard
from kagzi.rpc.server.server import RpcServer
from tests.rpc.support import engine_on

IDS = RandomIds(SystemClock().now)
# There is no service behind the others yet.
IMPLEMENTED = [method for method in METHODS.values() if method.service != "WorkflowScheduleService"]


class Guarded:
    def __init__(self, engine: LocalEngine, gate: Gate, server: RpcServer) -> None:
        self.engine = engine
        self.gate = gate
        self.server = server

    async def key(self, role: Role = Role.ADMIN, namespace: str | None = None) -> str:
        """A key that opens at once, and its namespace."""
        if namespace is not None and namespace not in {
            found.namespace for found in (await self.engine.namespaces.list()).items
        }:
            await self.engine.namespaces.create(namespace)
        made = await self.engine.keys.create(name="test", role=role, namespace=namespace, actor="test")
        await self.gate._read()  # rather than wait a second
        return made.text

    def client(self, key: str | None) -> Keyed:
        return Keyed(self.server.target, key)

    async def under_way(self, count: int) -> None:
        """Until so many calls have been let in and wait for something."""
        while len(self.gate._calls) < count:
            await asyncio.sleep(0.01)


class Keyed:
    """Calls anything with a key."""

    def __init__(self, target: str, key: str | None, tls: grpc.ChannelCredentials | None = None) -> None:
        self.metadata = () if key is None else (("authorization", f"Bearer {key}"),)
        options = [("grpc.use_local_subchannel_pool", 1)]  # a connection of its own
        self.channel = (
            grpc.aio.insecure_channel(target, options)
            if tls is None
            else grpc.aio.secure_channel(target, tls, options=options)
        )

    async def __aenter__(self) -> Keyed:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.channel.close()

    async def send(self, method: Method, request: Message, timeout: float = 10) -> Any:
        call: Any = self.channel.unary_unary(
            method.path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString,
        )
        return await call(request, timeout=timeout, metadata=self.metadata)

    async def call(self, rpc: str, timeout: float = 10, **fields: Any) -> Any:
        method = next(method for method in METHODS.values() if method.rpc == rpc)
        return await self.send(method, method.request(**fields), timeout)

    async def refused(self, rpc: str, timeout: float = 10, **fields: Any) -> grpc.aio.AioRpcError:
        try:
            answer = await self.call(rpc, timeout, **fields)
        except grpc.aio.AioRpcError as error:
            return error
        raise AssertionError(f"{rpc} was answered: {answer}")


@asynccontextmanager
async def guarded(
    url: str, host: str = "127.0.0.1", *, lease: int = 60 * SECOND, **options: Any
) -> AsyncIterator[Guarded]:
    async with engine_on(url, lease=lease) as engine:
        gate = Gate(engine.keys, engine.namespaces, audit=engine.audit, **options)
        guard = GateGuard(gate, engine.audit, IDS)

        async def open_to_all() -> bool:
            return not await gate.configured()

        async with RpcServer(engine, host, guard=guard, reflection=open_to_all) as server:
            try:
                yield Guarded(engine, gate, server)
            finally:
                await server.stop(0.0)
                await gate.close()
