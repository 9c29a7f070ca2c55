"""What a server bounds, calls, starts, time and bytes, and how it stops."""

from __future__ import annotations

import asyncio
import gzip
import time
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from kagzi._proto.v1 import common_pb2, workflow_pb2
from kagzi.access import Role
from kagzi.api.operations import StartRun
from kagzi.connect import connect
from kagzi.errors import LimitExceeded, Unavailable
from kagzi.rpc import limits
from kagzi.rpc import server as rpc_server
from kagzi.rpc.server import RpcServer
from kagzi.rpc.status import error_of_call
from tests.rpc.guarded import IDS, Guarded, guarded
from tests.rpc.support import detail_of

Code = grpc.StatusCode


async def test_calls_of_one_key_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    async with guarded("memory://", calls_per_key=2) as server:
        key = await server.key(Role.WORKER, "a")
        async with server.client(key) as client, server.client(await server.key()) as other:
            worker_id = (await client.call("Register", task_queue="q", workflow_types=["w"])).worker_id
            polls = [
                asyncio.ensure_future(client.call("PollTask", 60, worker_id=worker_id, task_queue="q"))
                for _ in range(2)
            ]
            await server.under_way(2)
            refused = await client.refused("GetServerInfo")
            assert refused.code() is Code.RESOURCE_EXHAUSTED
            assert detail_of(refused).exact_code == "LIMIT_EXCEEDED"
            assert not detail_of(refused).non_retryable
            await other.call("GetServerInfo")
            for _ in polls:
                await other.call("StartWorkflow", workflow_type="w", task_queue="q", namespace="a")
            assert all(task.run_id for task in await asyncio.gather(*polls))
            await client.call("GetServerInfo")


async def test_starts_in_one_namespace_are_bounded() -> None:
    async with guarded("memory://", starts_per_second=3) as server, server.client(None) as client:
        # So many that their time has not passed when the next one comes, however slow the machine is.
        starts = [workflow_pb2.StartWorkflowRequest(workflow_type="w")] * 300
        await client.call("StartWorkflows", namespace="a", starts=starts)
        refused = await client.refused("StartWorkflow", namespace="a", workflow_type="w")
        assert refused.code() is Code.RESOURCE_EXHAUSTED
        assert not detail_of(refused).non_retryable
        await client.call("StartWorkflow", namespace="b", workflow_type="w")
        # Our own client tries again until it may.
        async with connect(f"grpc://{server.server.target}") as engine:  # type: ignore[attr-defined]
            await asyncio.gather(
                *[
                    engine.workflows.start(
                        StartRun(namespace="c", run_id=IDS.run_id(), workflow_type="w", task_queue="q", input=b"[]")
                    )
                    for _ in range(4)
                ]
            )


async def test_all_calls_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAXIMUM_CALLS", 2)
    async with guarded("memory://") as server, server.client(None) as client:
        worker_id = (await client.call("Register", task_queue="q", workflow_types=["w"])).worker_id
        polls = [
            asyncio.ensure_future(client.call("PollTask", 60, worker_id=worker_id, task_queue="q")) for _ in range(2)
        ]
        await server.under_way(2)
        refused = await client.refused("GetServerInfo")
        assert isinstance(error_of_call(refused), LimitExceeded)
        for _ in polls:
            await server.engine.workflows.start(
                StartRun(namespace="default", run_id=IDS.run_id(), workflow_type="w", task_queue="q")
            )
        assert all(task.run_id for task in await asyncio.gather(*polls))
        await client.call("GetServerInfo")


async def test_connections_are_made_anew_now_and_then_and_nobody_notices(monkeypatch: pytest.MonkeyPatch) -> None:
    aged = {"grpc.max_connection_age_ms": 300, "grpc.max_connection_age_grace_ms": 60_000}
    assert aged.keys() <= dict(rpc_server._OPTIONS).keys()
    options = tuple((name, aged.get(name, value)) for name, value in rpc_server._OPTIONS)
    monkeypatch.setattr(rpc_server, "_OPTIONS", options)
    async with guarded("memory://") as server, connect(f"grpc://{server.server.target}") as engine:  # type: ignore[attr-defined]
        async with server.client(None) as client:
            worker_id = (await client.call("Register", task_queue="q", workflow_types=["w"])).worker_id
            poll = asyncio.ensure_future(client.call("PollTask", 60, worker_id=worker_id, task_queue="q"))
            until = time.monotonic() + 2.0
            while time.monotonic() < until:
                assert (await engine.namespaces.get("default")).enabled
                await asyncio.sleep(0.02)
            run_id = (await client.call("StartWorkflow", workflow_type="w", task_queue="q")).run_id
            assert (await poll).run_id.startswith(run_id)


async def test_calls_have_a_deadline_of_the_servers_own(light: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(*_: object, **__: object) -> None:
        await asyncio.sleep(60)

    monkeypatch.setattr(limits, "LONGEST_WAIT_SECONDS", 0.0)
    monkeypatch.setattr(limits, "CALL_SECONDS", 0.1)
    monkeypatch.setattr(light.engine.admin, "count_workers", never)
    async with light.client(None) as client:
        refused = await client.refused("GetStats", 20)
    assert refused.code() is Code.DEADLINE_EXCEEDED
    assert detail_of(refused).code == common_pb2.ERROR_CODE_TIMEOUT


async def test_a_server_that_stops_says_so_and_answers_those_who_wait(light: Guarded) -> None:
    async with light.client(None) as client, light.client(None) as prober:
        worker_id = (await client.call("Register", task_queue="q", workflow_types=["w"])).worker_id
        poll = asyncio.ensure_future(client.call("PollTask", 60, worker_id=worker_id, task_queue="q"))
        health: Any = health_pb2_grpc.HealthStub(prober.channel)
        seen = aiter(health.Watch(health_pb2.HealthCheckRequest(), timeout=60))
        assert (await anext(seen)).status == health_pb2.HealthCheckResponse.SERVING
        await light.under_way(1)
        stopping = asyncio.ensure_future(light.server.stop(grace=30.0))
        async with asyncio.timeout(10):
            assert (await anext(seen)).status == health_pb2.HealthCheckResponse.NOT_SERVING
            assert not (await poll).run_id
        await light.server.stop(grace=0.0)  # the probe would watch for as long as it may
        await stopping


async def test_two_servers_on_one_port_are_a_mistake(light: Guarded) -> None:
    with pytest.raises(Unavailable, match="is another server running there"):
        await RpcServer(light.engine, port=light.server.port).start()


async def test_what_unpacks_to_too_much_is_refused(light: Guarded) -> None:
    async with light.client(None) as client:
        call: Any = client.channel.unary_unary("/kagzi.v1.WorkflowService/GetWorkflow")
        bomb = b"\0" * (limits.MESSAGE_BYTES + 1)
        assert len(gzip.compress(bomb)) < limits.MESSAGE_BYTES // 100
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call(bomb, timeout=10, compression=grpc.Compression.Gzip)
        assert refused.value.code() is Code.RESOURCE_EXHAUSTED
        await client.call("GetServerInfo")


async def test_too_much_metadata_is_refused(light: Guarded) -> None:
    async with light.client(None) as client:
        # Between two limits of gRPC chance would decide; several tries would hardly all be refused.
        for size in (3 * limits.METADATA_BYTES, *[limits.METADATA_BYTES + 100] * 20):
            client.metadata = (("x-large", "x" * size),)
            assert (await client.refused("GetServerInfo")).code() is Code.RESOURCE_EXHAUSTED
        client.metadata = (("x-large", "x" * (limits.METADATA_BYTES - 1000)),)
        for _ in range(20):
            await client.call("GetServerInfo")
