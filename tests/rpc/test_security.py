"""Keys on the wire: who gets in, how far, and that nothing crosses namespaces."""

from __future__ import annotations

import asyncio
import gzip
import re
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from kagzi import Kagzi
from kagzi._proto.v1 import common_pb2, worker_pb2, workflow_pb2
from kagzi.access import ACTIONS, Role
from kagzi.access import gate as gates
from kagzi.api.keys import AuditFilter
from kagzi.api.operations import StartRun
from kagzi.connect import Credentials, connect
from kagzi.core.health import ComponentHealth, Health, HealthStatus
from kagzi.core.instant import SECOND
from kagzi.core.key import write_key
from kagzi.errors import LimitExceeded, PermissionDenied, Unauthenticated, Unavailable
from kagzi.rpc import limits
from kagzi.rpc import server as rpc_server
from kagzi.rpc.methods import METHODS, Method
from kagzi.rpc.server import RpcServer
from kagzi.rpc.status import error_of_call
from tests.rpc.guarded import IDS, Guarded, Keyed, guarded
from tests.rpc.support import detail_of

Code = grpc.StatusCode
# There is no service behind these yet.
IMPLEMENTED = [method for method in METHODS.values() if method.service != "WorkflowScheduleService"]


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/kagzi.db"
    found: str = request.getfixturevalue("postgres_database")
    return found


@pytest.fixture
async def server(url: str) -> AsyncIterator[Guarded]:
    async with guarded(url) as made:
        yield made


@pytest.fixture
async def light() -> AsyncIterator[Guarded]:
    async with guarded("memory://") as made:
        yield made


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


# Namespaces.


class Tenant:
    """A namespace with one of everything: a finished and a leased run with steps, and a worker."""

    def __init__(self, client: Keyed) -> None:
        self.client = client
        self.worker_id = self.run_id = self.handle = self.step_id = self.finished = ""

    async def furnish(self, external_id: str) -> Tenant:
        call = self.client.call
        self.worker_id = (await call("Register", task_queue="q", workflow_types=["w"])).worker_id
        self.finished = (await call("StartWorkflow", workflow_type="w", task_queue="q")).run_id
        done = await call("PollTask", worker_id=self.worker_id, task_queue="q")
        await call("CompleteWorkflow", run_id=done.run_id, output=common_pb2.Payload(data=b"1"))
        started = await call("StartWorkflow", workflow_type="w", task_queue="q", external_id=external_id)
        self.run_id = started.run_id
        self.handle = (await call("PollTask", worker_id=self.worker_id, task_queue="q")).run_id
        begun = await call("BeginStep", run_id=self.handle, step_name="s", input=common_pb2.Payload(data=b"1"))
        self.step_id = begun.step_id
        return self

    async def look(self) -> list[Message]:
        call = self.client.call
        worker = (await call("GetWorker", worker_id=self.worker_id)).worker
        worker.ClearField("last_heartbeat_at")
        stats = await call("GetStats")
        return [
            (await call("GetWorkflow", run_id=self.run_id)).workflow,
            (await call("GetWorkflow", run_id=self.finished)).workflow,
            (await call("ListSteps", run_id=self.run_id)),
            worker,
            stats,
            await call("GetQueueDepth"),
        ]


def _aimed(method: Method, ids: dict[str, Any]) -> Message:
    """A request that names these things wherever it can."""
    request: Any = method.request()
    for field in request.DESCRIPTOR.fields:
        if field.name in ids:
            setattr(request, field.name, ids[field.name])
    match request:
        case worker_pb2.HeartbeatRequest():
            request.held.runs.add(run_id=ids["bare_id"], token=ids["token"])
            request.heard = 99
        case worker_pb2.CommitBatchRequest():
            request.chunks.add(run_id=ids["bare_id"], token=ids["token"]).complete.output = b"9"
        case workflow_pb2.WaitWorkflowsRequest():
            request.run_ids.append(ids["bare_id"])
            request.wait_us = SECOND  # with none it is chance whether the database was quick enough
        case workflow_pb2.StartWorkflowRequest() | workflow_pb2.StartWorkflowsRequest():
            request.ClearField("run_id") if hasattr(request, "run_id") else None
        case worker_pb2.RegisterRequest():
            request.ClearField("worker_id")
            request.task_queue = "q"
            request.workflow_types.append("w")
        case worker_pb2.PollTasksRequest():
            request.queues.append("q")
            request.types.add(name="w")
            request.limit, request.number, request.token = 10, 1, IDS.token()
    return request


def _ids(run_id: str, token: str, worker_id: str, step_id: str, external_id: str) -> dict[str, Any]:
    return {
        "bare_id": run_id,
        "run_id": run_id,
        "token": token,
        "worker_id": worker_id,
        "step_id": step_id,
        "external_id": external_id,
        "workflow_type": "w",
        "step_name": "s",
    }


_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}")


async def _outcome(client: Keyed, method: Method, ids: dict[str, Any]) -> tuple[str, str]:
    """The code and text of what came of it, without what differs between any two calls."""
    request: Any = _aimed(method, ids)
    takes_run = "run_id" in method.request.DESCRIPTOR.fields_by_name
    if method.service == "WorkerService" and method.rpc != "GetHistory" and takes_run:
        request.run_id = f"{ids['bare_id']}.{ids['token']}"  # the handle of a lease
    try:
        answer = await client.send(method, request, timeout=20)
    except grpc.aio.AioRpcError as error:
        detail = detail_of(error)
        text = f"{error.details()} {detail.code} {detail.exact_code} {detail.subject} {dict(detail.metadata)}"
        code = error.code().name
    else:
        text, code = str(answer), "OK"
    for value in sorted({str(value) for value in ids.values()}, key=len, reverse=True):
        if len(value) > 3:
            text = text.replace(value, "<id>")
    text = re.sub(r"order-\d", "<id>", _UUID.sub("<id>", text))
    return code, re.sub(r"(seconds|nanos|now_us|available_at_us): \d+", "", text)


async def test_a_key_of_one_namespace_neither_reads_nor_disturbs_another(server: Guarded) -> None:
    mine = server.client(await server.key(Role.ADMIN, "a"))
    theirs = server.client(await server.key(Role.ADMIN, "b"))
    async with mine, theirs:
        tenant = await Tenant(theirs).furnish("order-1")
        before = await tenant.look()
        run_id, _, token = tenant.handle.partition(".")
        foreign = _ids(run_id, token, tenant.worker_id, tenant.step_id, "order-1")
        # As alike as can be, but nobody's.
        unknown_run = IDS.run_id()
        unknown = _ids(unknown_run, IDS.token(), IDS.token(), tenant.step_id.replace(run_id, unknown_run), "order-2")
        for method in IMPLEMENTED:
            if method.has_namespace:
                named: Any = _aimed(method, foreign)
                named.namespace = "b"
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await mine.send(method, named)
                assert refused.value.code() is Code.PERMISSION_DENIED, method.rpc
            if method.service != "NamespaceService":
                got = await _outcome(mine, method, foreign)
                expected = await _outcome(mine, method, unknown)
                assert got == expected, method.rpc
                assert got[0] not in ("INTERNAL", "UNKNOWN"), (method.rpc, got)
        finished = _ids(tenant.finished, token, tenant.worker_id, tenant.step_id, "order-1")
        for rpc in ("RetryWorkflow", "GetWorkflow", "CancelWorkflow", "TerminateWorkflow", "ListSteps"):
            assert (await mine.refused(rpc, run_id=finished["run_id"])).code() is Code.NOT_FOUND
        # The ways of one call that lead elsewhere.
        assert (await mine.refused("Heartbeat", worker_id=tenant.worker_id)).code() is Code.NOT_FOUND
        draining = await mine.refused("Deregister", worker_id=tenant.worker_id, drain=True)
        assert draining.code() is Code.NOT_FOUND
        assert await tenant.look() == before
        # The lease still holds.
        await theirs.call(
            "CompleteStep", run_id=tenant.handle, step_id=tenant.step_id, output=common_pb2.Payload(data=b"1")
        )
        await theirs.call("CompleteWorkflow", run_id=tenant.handle, output=common_pb2.Payload(data=b"1"))


async def test_what_is_inside_a_request_does_not_cross_either(light: Guarded) -> None:
    await light.key(Role.CLIENT, "b")
    async with light.client(await light.key(Role.CLIENT, "a")) as client:
        inner = workflow_pb2.StartWorkflowRequest(workflow_type="w", namespace="b")
        assert (await client.refused("StartWorkflows", starts=[inner])).code() is Code.INVALID_ARGUMENT
        inner.namespace = "a"
        assert (await client.call("StartWorkflows", starts=[inner])).results[0].started.run_id
        assert (await client.call("GetStats")).total_workflows == 1


async def test_nobody_waits_along_with_another_namespace(light: Guarded) -> None:
    mine, theirs = light.client(await light.key(Role.CLIENT, "a")), light.client(await light.key(Role.CLIENT, "b"))
    async with mine, theirs:
        run_id = (await theirs.call("StartWorkflow", workflow_type="w")).run_id
        waiting = asyncio.ensure_future(theirs.call("WaitWorkflows", 60, run_ids=[run_id], wait_us=30 * SECOND))
        await light.under_way(1)
        told = await mine.call("WaitWorkflows", run_ids=[run_id], wait_us=SECOND)
        assert (list(told.unknown_run_ids), list(told.workflows)) == ([run_id], [])
        await theirs.call("TerminateWorkflow", run_id=run_id)
        assert [run.run_id for run in (await waiting).workflows] == [run_id]


async def test_what_health_tells_of_all_namespaces_is_not_for_those_who_see_one(
    light: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ill() -> Health:
        return Health((ComponentHealth("workers", HealthStatus.DEGRADED, "b has none"),))

    monkeypatch.setattr(light.engine, "health", ill)
    tenant, operator = light.client(await light.key(Role.VIEWER, "a")), light.client(await light.key(Role.VIEWER))
    async with tenant, operator:
        assert (await tenant.call("HealthCheck")).message == "degraded"
        assert (await operator.call("HealthCheck")).message == "degraded; workers: b has none"


async def test_errors_nobody_foresaw_say_nothing(light: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: object) -> None:
        raise RuntimeError("SELECT secret FROM /etc/passwd")

    monkeypatch.setattr(light.engine.admin, "count_workers", broken)
    async with light.client(None) as client:
        refused = await client.refused("GetStats")
    assert refused.code() is Code.INTERNAL
    assert "secret" not in f"{refused.details()} {detail_of(refused)}"
    assert detail_of(refused).metadata["request_id"] in detail_of(refused).message


async def test_lists_and_counts_show_one_namespace_only(server: Guarded) -> None:
    mine = server.client(await server.key(Role.VIEWER, "a"))
    theirs = server.client(await server.key(Role.ADMIN, "b"))
    async with mine, theirs:
        await Tenant(theirs).furnish("order-1")
        assert not (await mine.call("ListWorkflows")).workflows
        assert not (await mine.call("ListWorkers")).workers
        assert not (await mine.call("ListWorkflowTypes")).workflow_types
        stats = await mine.call("GetStats")
        assert (stats.total_workflows, stats.total_workers, dict(stats.workflows_by_type)) == (0, 0, {})
        depth = await mine.call("GetQueueDepth")
        assert (depth.running_count, dict(depth.depth_by_queue)) == (0, {})
        assert (await theirs.call("GetStats")).total_workflows == 2
        assert (await mine.call("HealthCheck")).message in ("healthy", "degraded", "unhealthy")
        assert (await mine.call("GetNamespace", namespace="a")).namespace.namespace == "a"


async def test_page_tokens_do_not_cross(server: Guarded) -> None:
    mine = server.client(await server.key(Role.CLIENT, "a"))
    theirs = server.client(await server.key(Role.CLIENT, "b"))
    async with mine, theirs:
        for _ in range(3):
            await theirs.call("StartWorkflow", workflow_type="w")
        page = (await theirs.call("ListWorkflows", page=common_pb2.PageRequest(page_size=1))).page
        assert page.next_page_token
        stolen = common_pb2.PageRequest(page_size=1, page_token=page.next_page_token)
        assert (await mine.refused("ListWorkflows", page=stolen)).code() is Code.INVALID_ARGUMENT


async def test_workers_of_a_namespace_are_out_of_reach_of_polls_from_another(server: Guarded) -> None:
    mine = server.client(await server.key(Role.WORKER, "a"))
    theirs = server.client(await server.key(Role.ADMIN, "b"))
    async with mine, theirs:
        worker_id = (await theirs.call("Register", task_queue="q", workflow_types=["w"])).worker_id
        # Registering their id as one's own changes nothing for them.
        await mine.call("Register", worker_id=worker_id, task_queue="mine", workflow_types=["mine"])
        worker = (await theirs.call("GetWorker", worker_id=worker_id)).worker
        assert (worker.namespace, list(worker.queues), list(worker.workflow_types)) == ("b", ["q"], ["w"])
        assert (await mine.refused("PollTask", worker_id=worker_id, task_queue="q")).code() is Code.NOT_FOUND
        run_id = (await theirs.call("StartWorkflow", workflow_type="w", task_queue="q")).run_id
        claimed = await theirs.call("PollTask", worker_id=worker_id, task_queue="q")
        assert claimed.run_id.startswith(run_id)


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


# Limits.


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
        client.metadata = (("x-large", "x" * (3 * limits.METADATA_BYTES)),)
        assert (await client.refused("GetServerInfo")).code() is Code.RESOURCE_EXHAUSTED
        client.metadata = ()
        await client.call("GetServerInfo")


# The audit log.


async def test_changes_are_audited_and_starts_are_not(server: Guarded) -> None:
    everything = await server.key()
    key = await server.key(Role.CLIENT, "a")
    async with server.client(key) as client, server.client(everything) as admin:
        client.metadata += (("x-request-id", "req-1"),)
        run_id = (await client.call("StartWorkflow", workflow_type="w")).run_id
        await client.call("TerminateWorkflow", run_id=run_id, reason="enough")
        await client.refused("CancelWorkflow", run_id=IDS.run_id())
        await client.refused("DrainWorker", worker_id=IDS.token())
        await admin.call("CreateNamespace", namespace="made")
    await server.engine.audit.close()
    entries = (await server.engine.audit.list(AuditFilter(), page_size=100)).items
    told = [(entry.actor, entry.action.rpartition("/")[2], entry.namespace, entry.result) for entry in entries]
    actor, boss = f"key:{key.split('_')[1]}", f"key:{everything.split('_')[1]}"
    assert set(told) >= {
        (boss, "CreateNamespace", "made", "OK"),
        (actor, "DrainWorker", None, "PERMISSION_DENIED"),
        (actor, "CancelWorkflow", "a", "NOT_FOUND"),
        (actor, "TerminateWorkflow", "a", "OK"),
        ("test", "keys create", None, "OK"),
        ("test", "keys create", "a", "OK"),
    }
    assert len(told) == 6
    terminated = next(entry for entry in entries if entry.action.endswith("TerminateWorkflow"))
    assert (terminated.target, terminated.request_id) == (f"run {run_id}", "req-1")
    refused = next(entry for entry in entries if entry.action.endswith("DrainWorker"))
    assert refused.request_id == "req-1"
    assert terminated.peer.startswith(("ipv4:", "ipv6:"))
    assert "kgz_" not in str(entries)


async def test_a_change_that_was_given_up_is_not_said_to_have_been_made(
    light: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = asyncio.Event()

    async def never(*_: object, **__: object) -> None:
        begun.set()
        await asyncio.sleep(60)

    monkeypatch.setattr(light.engine.namespaces, "create", never)
    async with light.client(None) as client:
        asking = asyncio.ensure_future(client.call("CreateNamespace", namespace="made"))
        await begun.wait()
        asking.cancel()
        async with asyncio.timeout(10):
            while not (entries := (await light.engine.audit.list(AuditFilter())).items):
                await asyncio.sleep(0.05)
    assert [(entry.target, entry.result) for entry in entries] == [("namespace made", "CANCELLED")]


@pytest.mark.skipif(not socket.has_ipv6, reason="this machine has no IPv6")
async def test_the_audit_log_names_peers_by_readable_addresses() -> None:
    async with guarded("memory://", "::1") as server:
        async with server.client(await server.key()) as admin:
            await admin.call("CreateNamespace", namespace="made")
        await server.engine.audit.close()
        entries = (await server.engine.audit.list(AuditFilter(namespace="made"), page_size=10)).items
    assert entries[0].peer.startswith("ipv6:[::1]:")


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
