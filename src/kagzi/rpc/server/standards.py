"""The standard services beside ours: grpc.health.v1 and reflection. Without their packages, a server without them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError

from kagzi.rpc import limits
from kagzi.rpc.methods import PACKAGE

log = logging.getLogger("kagzi.rpc")

_PROBES: Final = 2  # are listened to at a time; each may send as much as a message may hold
_PROBE_SECONDS: Final = 0.5
_PROBE_BYTES: Final = 1024
_REFLECTIONS: Final = 2


class Health:
    """The standard health service, for Kubernetes probes, grpcurl and the like.

    Anybody may ask, so nobody is waited for: whoever does not say at once which service is meant is told of the server
    as a whole, which is the same."""

    def __init__(self, server: grpc.aio.Server, services: Iterable[str]) -> None:
        self._names = ["", *(f"{PACKAGE}.{service}" for service in services)]
        self._servicer: Any = None
        self._reading = 0
        self._watching = 0
        try:
            from grpc_health.v1 import health, health_pb2
        except ModuleNotFoundError:
            log.info("grpcio-health-checking is not installed: no grpc.health.v1")
            return
        self._messages = health_pb2
        self._servicer = health.aio.HealthServicer()
        write = health_pb2.HealthCheckResponse.SerializeToString
        # Streams of requests, because of others gRPC reads everything before it says that there is one.
        handlers: dict[str, Any] = {
            "Check": grpc.stream_unary_rpc_method_handler(self._check, response_serializer=write),
            "Watch": grpc.stream_stream_rpc_method_handler(self._watch, response_serializer=write),
        }
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("grpc.health.v1.Health", handlers)])

    async def serving(self, value: bool) -> None:
        if self._servicer is not None:
            statuses = self._messages.HealthCheckResponse
            status = statuses.SERVING if value else statuses.NOT_SERVING
            for name in self._names:
                await self._servicer.set(name, status)

    async def _check(self, _: object, context: Any) -> Any:
        return await self._servicer.Check(await self._asked(context), context)

    async def _watch(self, _: object, context: Any) -> None:
        if self._watching >= limits.WATCHES:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many watch already; Check is always answered")
        self._watching += 1
        try:
            await self._servicer.Watch(await self._asked(context), context)
        finally:
            self._watching -= 1

    async def _asked(self, context: Any) -> Any:
        request = self._messages.HealthCheckRequest()
        if self._reading < _PROBES:
            self._reading += 1
            try:
                async with asyncio.timeout(_PROBE_SECONDS):
                    data = await context.read()
                if isinstance(data, bytes) and len(data) <= _PROBE_BYTES:
                    request.ParseFromString(data)
            except (TimeoutError, DecodeError):
                pass
            finally:
                self._reading -= 1
        return request


def enable_reflection(server: grpc.aio.Server, services: Iterable[str], answers: Callable[[], Awaitable[bool]]) -> None:
    """Offers the standard reflection service, with which tools need no .proto at hand, for as long as `answers` says
    so."""
    try:
        from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc
    except ModuleNotFoundError:
        log.info("grpcio-reflection is not installed: no reflection")
        return
    names = [f"{PACKAGE}.{service}" for service in services]

    inner: Any = reflection.aio.ReflectionServicer((*names, "grpc.health.v1.Health", reflection.SERVICE_NAME))

    class Reflection:
        under_way = 0

        async def ServerReflectionInfo(self, requests: Any, context: Any) -> AsyncIterator[Any]:
            if not await answers():
                await context.abort(grpc.StatusCode.UNIMPLEMENTED, "no reflection: this server asks for keys")
            if self.under_way >= _REFLECTIONS:
                await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "others are asking; trying again later is safe")
            self.under_way += 1
            try:
                async for response in inner.ServerReflectionInfo(requests, context):
                    yield response
            finally:
                self.under_way -= 1

    add: Any = reflection_pb2_grpc.add_ServerReflectionServicer_to_server
    add(Reflection(), server)
