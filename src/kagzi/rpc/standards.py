"""The standard services beside ours: grpc.health.v1 and reflection. Without their packages, a server without them."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any

import grpc

from kagzi.rpc.methods import PACKAGE

log = logging.getLogger("kagzi.rpc")


class Health:
    """For Kubernetes probes, grpcurl and the like."""

    def __init__(self, server: grpc.aio.Server, services: Iterable[str]) -> None:
        self._names = ["", *(f"{PACKAGE}.{service}" for service in services)]
        self._servicer: Any = None
        try:
            from grpc_health.v1 import health, health_pb2, health_pb2_grpc
        except ModuleNotFoundError:
            log.info("grpcio-health-checking is not installed: no grpc.health.v1")
            return
        self._statuses = health_pb2.HealthCheckResponse
        self._servicer = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)

    async def serving(self, value: bool) -> None:
        if self._servicer is not None:
            status = self._statuses.SERVING if value else self._statuses.NOT_SERVING
            for name in self._names:
                await self._servicer.set(name, status)


def enable_reflection(server: grpc.aio.Server, services: Iterable[str], answers: Callable[[], Awaitable[bool]]) -> None:
    """So that tools need no .proto at hand; for as long as `answers` says so."""
    try:
        from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc
    except ModuleNotFoundError:
        log.info("grpcio-reflection is not installed: no reflection")
        return
    names = [f"{PACKAGE}.{service}" for service in services]

    inner: Any = reflection.aio.ReflectionServicer((*names, "grpc.health.v1.Health", reflection.SERVICE_NAME))

    class Reflection:
        async def ServerReflectionInfo(self, requests: Any, context: Any) -> AsyncIterator[Any]:
            if not await answers():
                await context.abort(grpc.StatusCode.UNIMPLEMENTED, "no reflection: this server asks for keys")
            async for response in inner.ServerReflectionInfo(requests, context):
                yield response

    add: Any = reflection_pb2_grpc.add_ServerReflectionServicer_to_server
    add(Reflection(), server)
