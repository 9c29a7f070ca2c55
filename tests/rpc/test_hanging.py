"""Servers that hang, and servers that cannot reach their database: what callers notice, and how soon."""

from __future__ import annotations

import asyncio
import time

import grpc
import pytest

from kagzi._proto.v1 import workflow_pb2
from kagzi.core.instant import SECOND
from kagzi.errors import NotFound, Unavailable
from kagzi.rpc import limits
from kagzi.rpc.client import exchange
from kagzi.rpc.client.remote import RemoteEngine
from kagzi.rpc.server.server import RpcServer
from tests.rpc.support import Client, engine_on, serving
from tests.rpc.test_keepalive import Cable
from tests.rpc.test_remote import IDS, poll_of

UNKNOWN = "0190a5f2-7c3e-7d31-9a51-0c8e6b1f2a44"
LARGE = b'"' + b"x" * limits.EXCHANGE_BYTES + b'"'


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Signs and looks ten times as often."""
    monkeypatch.setattr(limits, "SIGN_SECONDS", limits.SIGN_SECONDS / 10)
    monkeypatch.setattr(exchange, "LOOK_SECONDS", exchange.LOOK_SECONDS / 10)


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.usefixtures("hurried")
async def test_a_server_that_says_nothing_is_given_up_whatever_it_is_asked(large: bool) -> None:
    """A large request goes beside the stream on which signs come, and is given up as well."""
    cable = Cable()
    async with serving("memory://") as server, cable.to(server.port) as target, RemoteEngine(target) as remote:
        with pytest.raises(NotFound):
            await remote.workflows.get("default", UNKNOWN)
        cable.cut = True
        channel = remote._opened._line.channel
        request = workflow_pb2.StartWorkflowRequest(workflow_type="w")
        if large:
            request.input.data = LARGE
        began = time.monotonic()
        with pytest.raises(Unavailable, match="said nothing"):
            await channel.call("WorkflowService", "StartWorkflow", request, workflow_pb2.StartWorkflowResponse, 60.0)
        assert time.monotonic() - began < 30  # it takes 0.3 s, and the call may take a minute
        await server.stop(0.0)


@pytest.mark.usefixtures("hurried")
async def test_a_poll_that_finds_nothing_and_a_client_that_is_blocked_are_no_silence() -> None:
    async with serving("memory://") as server, RemoteEngine(server.target) as remote:
        polling = asyncio.create_task(remote.workers.poll(poll_of(IDS.token(), wait=2 * SECOND)))
        await asyncio.sleep(0.5)
        time.sleep(3 * exchange.LOOK_SECONDS * exchange.SILENT_LOOKS)  # noqa: ASYNC251 (as workflow code may do)
        assert (await polling).claims == ()


async def test_a_server_that_is_not_ready_refuses_at_once_and_ends_what_waits() -> None:
    reachable = True
    async with engine_on("memory://") as engine, RpcServer(engine, ready=lambda: reachable) as server:
        async with RemoteEngine(server.target) as remote, Client(server.target) as client:
            run_id = await client.start("w")
            polling = asyncio.create_task(remote.workers.poll(poll_of(IDS.token(), wait=60 * SECOND)))
            waiting = asyncio.ensure_future(client.workflows.WaitWorkflow(_wait_for(run_id)))
            await asyncio.sleep(0.2)
            reachable = False
            await server.serving(False)
            with pytest.raises(Unavailable, match="cannot reach its database"):
                await polling
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await waiting
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await client.start("w")
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
            with pytest.raises(Unavailable, match="cannot reach its database"):
                await remote.workers.poll(poll_of(IDS.token(), wait=0))
            assert (await remote.health()).components  # what is wrong is told
            reachable = True
            await server.serving(True)
            assert (await remote.workflows.get("default", run_id)).run_id == run_id


def _wait_for(run_id: str) -> workflow_pb2.WaitWorkflowRequest:
    return workflow_pb2.WaitWorkflowRequest(run_id=run_id, wait_us=60 * SECOND)
