"""How well all is, told over the wire: as it is told in process, and also by a server that lost its database."""

from __future__ import annotations

import asyncio
from math import inf

import grpc
import pytest
from msgspec.structs import replace

from kagzi._proto.v1 import admin_pb2 as pb
from kagzi.access import Role
from kagzi.api.keys import LiveKeys
from kagzi.core.health import ComponentHealth, Health, HealthStatus
from kagzi.errors import Unavailable
from kagzi.rpc.client.remote import RemoteEngine
from kagzi.rpc.server import guard
from kagzi.rpc.server.server import RpcServer
from tests.rpc.guarded import Guarded
from tests.rpc.support import Client, engine_on

UNHEALTHY, DEGRADED = HealthStatus.UNHEALTHY, HealthStatus.DEGRADED
SECRET = "postgresql://user@db.internal:5432/x refused"


@pytest.mark.parametrize(
    ("name", "status", "serves", "message"),
    [
        ("database", UNHEALTHY, False, "unhealthy; database: it does not answer"),
        ("migrations", UNHEALTHY, False, "unhealthy; migrations: see there"),
        ("database", DEGRADED, True, "degraded; database: see there"),
        ("coordinator", UNHEALTHY, True, "unhealthy; coordinator: see there"),
        # Nobody takes what is due: no other server would do better.
        ("workers", UNHEALTHY, True, "unhealthy; workers: see there"),
        ("workers", HealthStatus.HEALTHY, True, "healthy"),
    ],
)
async def test_a_server_serves_if_it_is_ready(
    monkeypatch: pytest.MonkeyPatch, name: str, status: HealthStatus, serves: bool, message: str
) -> None:
    async def health() -> Health:
        return Health((ComponentHealth(name, status, "see there"),))

    async with engine_on("memory://") as engine, RpcServer(engine) as server, Client(server.target) as client:
        monkeypatch.setattr(engine, "health", health)
        told = await client.admin.HealthCheck(pb.HealthCheckRequest())
        assert told.status == (pb.SERVING_STATUS_SERVING if serves else pb.SERVING_STATUS_NOT_SERVING)
        assert told.message == message


async def test_the_wire_tells_of_every_component(url: str) -> None:
    async with engine_on(url) as engine, RpcServer(engine) as server, RemoteEngine(server.target) as remote:
        here, there = await engine.health(), await remote.health()
        assert [part.name for part in there.components] == ["database", "migrations", "coordinator", "workers"]
        assert there.components[1:] == here.components[1:]  # how long the database took is another matter
        assert there.checked_at is not None


async def test_where_the_database_is_stays_here(monkeypatch: pytest.MonkeyPatch) -> None:
    async def health() -> Health:
        return Health((ComponentHealth("database", UNHEALTHY, SECRET),))

    async with engine_on("memory://") as engine, RpcServer(engine) as server, RemoteEngine(server.target) as remote:
        monkeypatch.setattr(engine, "health", health)
        there = await remote.health()
        assert there == Health((ComponentHealth("database", UNHEALTHY, "it does not answer"),))


async def away() -> LiveKeys:
    raise Unavailable(SECRET)


async def silent() -> LiveKeys:
    await asyncio.Event().wait()
    raise AssertionError


@pytest.mark.parametrize("live", [away, silent])
async def test_a_server_that_cannot_read_its_keys_says_so_to_everybody_and_no_more(
    light: Guarded, monkeypatch: pytest.MonkeyPatch, live: object
) -> None:
    async def health() -> Health:
        parts = (ComponentHealth("database", UNHEALTHY, SECRET), ComponentHealth("workers", DEGRADED, "b has none"))
        return Health(parts)

    key = await light.key(Role.VIEWER)
    monkeypatch.setattr(light.engine, "health", health)
    monkeypatch.setattr(light.gate._source, "live", live)
    monkeypatch.setattr(guard, "PROBE_SECONDS", 0.1)
    light.gate._read_at = -inf
    for shown in (None, key):
        async with light.client(shown) as client:
            for namespace in ("", "a"):
                told = await client.call("HealthCheck", namespace=namespace)
                assert told.status == pb.SERVING_STATUS_NOT_SERVING
                assert told.message == "unhealthy; database: unhealthy; workers: degraded"
                assert {part.message for part in told.components} == {""}
            if live is away:
                assert (await client.refused("GetStats")).code() is grpc.StatusCode.UNAVAILABLE


async def test_a_client_that_comes_then_hears_it_too(light: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its other calls travel on a stream, into which nobody is let."""

    async def health() -> Health:
        return Health((ComponentHealth("database", UNHEALTHY, SECRET),))

    monkeypatch.setattr(light.engine, "health", health)
    monkeypatch.setattr(light.gate._source, "live", away)
    light.gate._read_at = -inf
    async with RemoteEngine(light.server.target) as remote:
        found = await remote.health()
    assert [replace(part, message="") for part in found.components] == [ComponentHealth("database", UNHEALTHY, "")]
