"""A stream of calls, written and read by hand."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc

from kagzi._proto.v1.exchange_pb2 import ExchangedAnswer, ExchangedCall, ExchangeRequest, ExchangeResponse
from kagzi.core.instant import SECOND
from kagzi.rpc.methods import EXCHANGE
from kagzi.rpc.server.server import RpcServer


class Stream:
    def __init__(self, channel: grpc.aio.Channel, metadata: Any = (), *, seconds: float | None = 20) -> None:
        self.call: Any = channel.stream_stream(EXCHANGE.path)(metadata=metadata, timeout=seconds)

    async def ask(self, *calls: ExchangedCall, given_up: tuple[int, ...] = ()) -> None:
        await self.call.write(ExchangeRequest(calls=calls, given_up=given_up).SerializeToString())

    async def answers(self, count: int) -> dict[int, ExchangedAnswer]:
        found: dict[int, ExchangedAnswer] = {}
        while len(found) < count:
            data = await self.call.read()
            assert data is not grpc.aio.EOF
            found |= {answer.number: answer for answer in ExchangeResponse.FromString(data).answers}
        return found

    async def ended(self) -> tuple[grpc.StatusCode, str]:
        try:
            assert await self.call.read() is grpc.aio.EOF
        except grpc.aio.AioRpcError as error:
            return error.code(), error.details() or ""
        return await self.call.code(), ""


@asynccontextmanager
async def streaming(server: RpcServer, metadata: Any = ()) -> AsyncIterator[Stream]:
    async with grpc.aio.insecure_channel(server.target) as channel:
        yield Stream(channel, metadata)


def asked(number: int, method: str, request: Any = None, timeout_us: int = 10 * SECOND) -> ExchangedCall:
    data = b"" if request is None else request.SerializeToString()
    return ExchangedCall(number=number, method=method, request=data, timeout_us=timeout_us)
