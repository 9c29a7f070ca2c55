"""Keys on the wire: who gets in, and when a key ends."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from kagzi import Kagzi
from kagzi._proto.v1 import common_pb2
from kagzi._proto.v1.job_pb2 import JobOptions
from kagzi._proto.v1.workflow_pb2 import ListWorkflowsRequest
from kagzi.access import ACTIONS, Role
from kagzi.access import gate as gates
from kagzi.connect import Credentials, connect
from kagzi.core.key import write_key
from kagzi.errors import PermissionDenied, Unauthenticated
from kagzi.rpc.methods import Method
from tests.rpc.guarded import IMPLEMENTED, Guarded, Keyed
from tests.rpc.support import detail_of

Code = grpc.StatusCode


# Who gets in.


async def test_without_keys_anybody_gets_in_and_with_the_first_one_nobody_without(light: Guarded) -> None:
    async with light.client(None) as client:
        await client.call("StartWorkflow", workflow_type="w", namespace="new")  # made by using it
        key = await light.key()
        refused = await client.refused("StartWorkflow", workflow_type="w")
        assert refused.code() is Code.UNAUTHENTICATED
        detail = detail_of(refused)
        assert (detail.code, detail.exact_code) == (common_pb2.ERROR_CODE_UNAUTHORIZED, "UNAUTHENTICATED")
        assert detail.non_retryable
    async with light.client(key) as client:
        await client.call("StartWorkflow", workflow_type="w", namespace="new")
        assert (await client.refused("StartWorkflow", workflow_type="w", namespace="newer")).code() is Code.NOT_FOUND
        assert (await client.refused("GetNamespace", namespace="newer")).code() is Code.NOT_FOUND


@pytest.mark.parametrize("method", IMPLEMENTED, ids=lambda method: method.rpc)
async def test_every_rpc_asks_for_a_key_of_the_right_role(light: Guarded, method: Method) -> None:
    rule = ACTIONS[method.path]
    everything = await light.key()
    async with light.client(None) as client:
        assert (await client.refused(method.rpc)).code() is Code.UNAUTHENTICATED
    async with light.client(write_key("0" * 16, bytes(32))) as client:
        assert (await client.refused(method.rpc)).code() is Code.UNAUTHENTICATED
    async with light.client(everything[:-1]) as client:
        assert (await client.refused(method.rpc)).code() is Code.UNAUTHENTICATED
    for role in Role:
        async with light.client(await light.key(role, "a")) as client:
            code = await _code(client, method)
            allowed = role in rule.roles and not rule.everywhere
            assert (code is not Code.PERMISSION_DENIED) is allowed, (role, code)
            assert code is not Code.UNAUTHENTICATED


async def _code(client: Keyed, method: Method) -> grpc.StatusCode:
    try:
        await client.send(method, method.request())
    except grpc.aio.AioRpcError as error:
        return error.code()
    return Code.OK


async def test_only_probes_need_no_key(light: Guarded) -> None:
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    async with light.client(None) as client:
        reflect = reflection_pb2_grpc.ServerReflectionStub(client.channel)
        assert [reply async for reply in reflect.ServerReflectionInfo(iter([request]), timeout=5)]
        await light.key()
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            _ = [reply async for reply in reflect.ServerReflectionInfo(iter([request]), timeout=5)]
        assert refused.value.code() is Code.UNIMPLEMENTED
        health: Any = health_pb2_grpc.HealthStub(client.channel)
        answer = await health.Check(health_pb2.HealthCheckRequest(), timeout=5)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_a_key_may_be_written_with_or_without_its_scheme(light: Guarded) -> None:
    key = await light.key()
    for value in (f"Bearer {key}", f"bearer  {key}", f"BEARER {key}", key):
        async with light.client(None) as client:
            client.metadata = (("authorization", value),)
            await client.call("GetServerInfo")
    async with light.client(None) as client:
        client.metadata = (("authorization", f"Basic {key}"),)
        assert (await client.refused("GetServerInfo")).code() is Code.UNAUTHENTICATED


# Keys that end.


async def test_a_revoked_key_cuts_its_long_polls(light: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gates, "_FRESH_SECONDS", 0.2)
    key = await light.key(Role.WORKER, "a")
    async with light.client(key) as client:
        worker_id = (await client.call("Register", task_queue="q", workflow_types=["w"])).worker_id
        poll = asyncio.ensure_future(client.refused("PollTask", 30, worker_id=worker_id, task_queue="q"))
        await light.under_way(1)
        await light.engine.keys.revoke(key.split("_")[1], actor="test")
        # Long before it would have ended by itself, and then with an answer.
        assert (await poll).code() is Code.UNAUTHENTICATED
        assert (await client.refused("GetServerInfo")).code() is Code.UNAUTHENTICATED


async def test_rotation_interrupts_nobody(light: Guarded) -> None:
    old = await light.key(Role.CLIENT, "a")
    new = (await light.engine.keys.rotate(old.split("_")[1], overlap=3600 * 10**6, actor="test")).text
    await light.gate._read()
    for key in (old, new):
        async with light.client(key) as client:
            await client.call("StartWorkflow", workflow_type="w")


async def test_keys_made_with_another_pepper_open_nothing(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/kagzi.db"
    async with connect(url, key_pepper=b"salt and") as seasoned, connect(url) as plain:  # type: ignore[attr-defined]
        made = await seasoned.keys.create(name="x", role=Role.ADMIN, namespace=None, actor="test")
        secret = bytes.fromhex(made.text.split("_")[2])
        assert seasoned.keys.matches(made.key, secret)
        assert not plain.keys.matches(made.key, secret)


async def test_a_job_that_moves_runs_takes_the_right_to_move_runs(light: Guarded) -> None:
    some = ListWorkflowsRequest(workflow_type="w")
    options = JobOptions(from_version="1", version="2")
    async with light.client(await light.key(Role.CLIENT, "a")) as client:
        refused = await client.refused("StartJob", action="move", filter=some, options=options)
        assert refused.code() is Code.PERMISSION_DENIED
        await client.call("StartJob", action="fork", filter=some)
    async with light.client(await light.key(Role.ADMIN, "a")) as client:
        refused = await client.refused("StartJob", action="move", filter=some, options=options)
        assert refused.code() is Code.INVALID_ARGUMENT


# Our own client.


async def test_an_app_shows_its_key(light: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    target = light.server.target
    key = await light.key(Role.ADMIN, "a")
    app = Kagzi(f"grpc://{target}", key=key, namespace="a")

    @app.workflow
    async def double(number: int) -> int:
        return 2 * number

    async with app, app.worker():
        assert await (await double.start(21)).result(timeout=20) == 42

    for url, options in (
        (f"grpc://:{key}@{target}", {}),
        (f"grpc://{target}", {"credentials": Credentials(key=key)}),
    ):
        async with connect(url, **options) as engine:  # type: ignore[attr-defined]
            assert (await engine.namespaces.get("a")).namespace == "a"
    async with connect(f"grpc://{target}") as engine:  # type: ignore[attr-defined]
        with pytest.raises(Unauthenticated, match="KAGZI_AUTH_KEY"):
            await engine.namespaces.get("a")
    async with connect(f"grpc://:{key}@{target}") as engine:  # type: ignore[attr-defined]
        with pytest.raises(PermissionDenied):
            await engine.namespaces.get("default")
