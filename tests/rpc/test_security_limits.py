"""What a server bounds, calls, starts, time and bytes, and how it stops."""

from __future__ import annotations

import asyncio
import gc
import time
from collections import Counter
from contextlib import AsyncExitStack
from types import FrameType
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from kagzi._proto.v1 import common_pb2, workflow_pb2
from kagzi._proto.v1.exchange_pb2 import ExchangedCall
from kagzi.access import Role
from kagzi.api.operations import StartRun
from kagzi.connect import connect
from kagzi.errors import LimitExceeded, Unavailable
from kagzi.rpc import limits
from kagzi.rpc.methods import EXCHANGE
from kagzi.rpc.server import server as rpc_server
from kagzi.rpc.server import unfinished
from kagzi.rpc.server.parts import MOST_PARTS
from kagzi.rpc.server.server import RpcServer
from kagzi.rpc.status import error_of_call
from tests.measures import MEBIBYTE
from tests.rpc.frames import Connection, beginning_of
from tests.rpc.guarded import IDS, Guarded, Keyed, guarded
from tests.rpc.streams import Stream, asked
from tests.rpc.support import detail_of

Code = grpc.StatusCode
LARGE = b'"' + b"x" * 1_500_000 + b'"'


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


async def test_compressed_requests_are_refused(light: Guarded) -> None:
    async with light.client(None) as client:
        call: Any = client.channel.unary_unary("/kagzi.v1.WorkflowService/GetWorkflow")
        stream: Any = client.channel.stream_stream(EXCHANGE.path)(compression=grpc.Compression.Gzip, timeout=10)
        for refusing in (call(b"", timeout=10, compression=grpc.Compression.Gzip), stream.read()):
            with pytest.raises(grpc.aio.AioRpcError, match="Compression algorithm 'gzip' is disabled") as refused:
                await refusing
            assert refused.value.code() is Code.UNIMPLEMENTED
        await client.call("GetServerInfo")


async def test_only_what_carries_payloads_may_be_large(light: Guarded) -> None:
    async with light.client(None) as client:
        refused = await client.refused("GetWorkflow", run_id="x" * limits.SMALL_BYTES)
        assert refused.code() is Code.INVALID_ARGUMENT
        assert (refused.details() or "").startswith("the GetWorkflowRequest has 524,")
        large = common_pb2.Payload(data=b'"' + b"x" * limits.SMALL_BYTES + b'"')
        await client.call("StartWorkflow", workflow_type="w", input=large)


@pytest.mark.parametrize("on_stream", [False, True])
async def test_a_request_of_too_many_parts_is_refused_before_it_is_read(light: Guarded, on_stream: bool) -> None:
    many = b"\x12\x00" * (MOST_PARTS + 1)
    path = "/kagzi.v1.WorkflowService/StartWorkflows"
    async with light.client(None) as client:
        if on_stream:
            stream = Stream(client.channel)
            await stream.ask(ExchangedCall(number=1, method=path, request=many))
            error = (await stream.answers(1))[1].error
        else:
            call: Any = client.channel.unary_unary(path)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await call(many, timeout=10)
            assert refused.value.code() is Code.INVALID_ARGUMENT
            error = detail_of(refused.value)
        assert "more than 100,000 parts" in error.message


async def test_a_stream_whose_messages_have_too_many_parts_ends(light: Guarded) -> None:
    async with light.client(None) as client:
        stream = Stream(client.channel)
        await stream.call.write(b"\x0a\x00" * (MOST_PARTS + 1))
        code, text = await stream.ended()
        assert code is Code.INVALID_ARGUMENT
        assert "more than 100,000 parts" in text


async def test_a_request_that_does_not_arrive_is_given_up(light: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "READING_SECONDS", 0.1)
    async with light.client(None) as client:
        call: Any = client.channel.stream_unary("/kagzi.v1.WorkflowService/GetWorkflow")(timeout=20)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call
        assert refused.value.code() is Code.DEADLINE_EXCEEDED
        empty: Any = client.channel.stream_unary("/kagzi.v1.WorkflowService/GetWorkflow")(iter(()), timeout=20)
        with pytest.raises(grpc.aio.AioRpcError, match="without a GetWorkflowRequest"):
            await empty


async def test_a_key_that_sends_more_than_its_share_waits_and_others_do_not() -> None:
    async with guarded("memory://") as server:
        keys = [await server.key(Role.CLIENT, namespace) for namespace in ("a", "b")]
        caller = await server.gate.recognise("", key=keys[0], peer="")
        room = server.gate.room("/kagzi.v1.WorkflowService/StartWorkflow", caller)
        most = 16 * 1024 * 1024
        await room.take(most)
        async with server.client(keys[0]) as client, server.client(keys[1]) as other:
            waiting = [
                asyncio.ensure_future(client.call("StartWorkflow", workflow_type="w", namespace="a")),
                asyncio.ensure_future(_large_on_stream(client)),
            ]
            await other.call("StartWorkflow", workflow_type="w", namespace="b")
            # What workers send has a room of its own.
            refused = await client.refused("Heartbeat", worker_id="x")
            assert refused.code() is Code.PERMISSION_DENIED
            assert not any(task.done() for task in waiting)
            room.give(most)
            await asyncio.gather(*waiting)
        await server.server.stop(0.0)
        assert not server.gate._bytes._taken
        assert not server.gate._bytes_of_workers._taken


@pytest.mark.skipif(not unfinished._KERNEL_TELLS, reason="only Linux tells what came on a connection")
async def test_what_came_of_messages_that_are_not_whole_is_known_and_what_goes_along_is_not_counted() -> None:
    async with guarded("memory://") as server:
        key = await server.key(Role.CLIENT, "a")
        bounds = server.server._unfinished
        assert bounds is not None
        host, port = server.server.target.split(":")
        async with server.client(key) as client, Connection.to(host, int(port)) as slow:
            stream = Stream(client.channel, client.metadata)
            for number in range(1000):
                await stream.ask(asked(number, "/kagzi.v1.AdminService/GetServerInfo"))
                await stream.answers(1)
            await client.call("StartWorkflow", workflow_type="w", namespace="a", input=common_pb2.Payload(data=LARGE))
            half = slow.open(EXCHANGE.path, ("authorization", f"Bearer {key}"))
            assert await half.send(beginning_of(10 * MEBIBYTE, bytes(9 * MEBIBYTE))) > 9 * MEBIBYTE
            hostile = 0
            async with asyncio.timeout(20):
                while hostile < 9 * MEBIBYTE - 64 * 1024:
                    await asyncio.sleep(0.01)
                    bounds._look_at_connections()
                    honest, hostile = (connection.unfinished for connection in bounds._connections.values())
        assert honest < 64 * 1024
        assert hostile < 9 * MEBIBYTE + 64 * 1024


async def _large_on_stream(client: Any) -> None:
    stream = Stream(client.channel, client.metadata)
    start = workflow_pb2.StartWorkflowRequest(
        workflow_type="w", input=common_pb2.Payload(data=b'"' + b"x" * 20_000 + b'"')
    )
    await stream.ask(asked(1, "/kagzi.v1.WorkflowService/StartWorkflow", start))
    assert not (await stream.answers(1))[1].status


async def test_a_failed_call_keeps_nothing_of_its_request() -> None:
    """Without the garbage being collected, which a server does seldom."""
    async with guarded("memory://") as server, server.client(None) as client:
        gc.collect()
        gc.disable()
        try:
            for rpc in ("GetWorkflow", "CancelWorkflow"):
                await client.refused(rpc, run_id="x" * 100_000)
            await client.refused("StartWorkflow", input=common_pb2.Payload(data=bytes(100_000)))
            assert [frame for frame in gc.get_objects() if type(frame) is FrameType and _holds_much(frame)] == []
        finally:
            gc.enable()


def _holds_much(frame: FrameType) -> bool:
    return any(isinstance(value, bytes) and len(value) >= 100_000 for value in frame.f_locals.values())


async def test_streams_of_one_key_are_bounded() -> None:
    async with guarded("memory://", streams_per_key=2) as server:
        key = await server.key(Role.WORKER, "a")
        async with server.client(key) as client, server.client(await server.key(Role.WORKER, "b")) as other:
            streams = [Stream(client.channel, client.metadata) for _ in range(3)]
            ended = asyncio.as_completed([stream.ended() for stream in streams])
            code, text = await next(ended)
            assert code is Code.RESOURCE_EXHAUSTED
            assert "more than 2 streams are under way with this key" in text
            stream = Stream(other.channel, other.metadata)
            await stream.ask(asked(1, "/kagzi.v1.AdminService/GetServerInfo"))
            assert not (await stream.answers(1))[1].status
            for stream in streams:
                stream.call.cancel()
            await asyncio.gather(*ended, return_exceptions=True)


async def test_reads_of_one_key_leave_the_database_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    async with guarded("memory://") as server:
        begun = 0
        go = asyncio.Event()
        count = server.engine.admin.count_workers

        async def slow(namespace: str | None) -> Any:
            nonlocal begun
            begun += 1
            await go.wait()
            return await count(namespace)

        monkeypatch.setattr(server.engine.admin, "count_workers", slow)
        key, worker = await server.key(Role.VIEWER, "a"), await server.key(Role.WORKER, "a")
        async with server.client(key) as client, server.client(worker) as other:
            flood = [asyncio.ensure_future(client.call("GetStats", 30, namespace="a")) for _ in range(20)]
            await server.under_way(20)
            worker_id = (await other.call("Register", task_queue="q", workflow_types=["w"])).worker_id
            await other.call("Heartbeat", worker_id=worker_id)
            await other.call("ListWorkflows")
            await other.call("StartWorkflow", workflow_type="w")
            assert begun == 4
            go.set()
            await asyncio.gather(*flood)


async def test_a_burst_is_told_that_it_is_too_much() -> None:
    """However many calls come before anybody looks at them: gRPC alone ends those beyond a thousand as CANCELLED."""
    async with guarded("memory://", calls_per_key=100) as server:
        key = await server.key(Role.WORKER, "a")
        async with AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(server.client(key)) for _ in range(20)]
            worker_id = (await clients[0].call("Register", task_queue="q", workflow_types=["w"])).worker_id
            refused: Counter[Code] = Counter()
            over = asyncio.Event()

            async def poll(client: Keyed) -> None:
                try:
                    await client.call("PollTask", 60, worker_id=worker_id, task_queue="q")
                except grpc.aio.AioRpcError as error:
                    refused[error.code()] += 1
                    if refused.total() == 1900:
                        over.set()

            polls = [asyncio.ensure_future(poll(client)) for client in clients for _ in range(100)]
            async with asyncio.timeout(50):
                await over.wait()
            for task in polls:
                task.cancel()
            await asyncio.wait(polls)
    assert refused.keys() == {Code.RESOURCE_EXHAUSTED}


async def test_too_much_metadata_is_refused(light: Guarded) -> None:
    async with light.client(None) as client:
        # Between two limits of gRPC chance would decide; several tries would hardly all be refused.
        for size in (3 * limits.METADATA_BYTES, *[limits.METADATA_BYTES + 100] * 20):
            client.metadata = (("x-large", "x" * size),)
            assert (await client.refused("GetServerInfo")).code() is Code.RESOURCE_EXHAUSTED
        client.metadata = (("x-large", "x" * (limits.METADATA_BYTES - 1000)),)
        for _ in range(20):
            await client.call("GetServerInfo")
