"""Nothing crosses namespaces."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import grpc
import msgspec
import pytest
from google.protobuf.message import Message

from kagzi._proto.v1 import common_pb2, worker_pb2, workflow_pb2
from kagzi.access import Role
from kagzi.core.health import ComponentHealth, Health, HealthStatus
from kagzi.core.instant import SECOND
from kagzi.rpc.methods import Method
from tests.rpc.guarded import IDS, IMPLEMENTED, Guarded, Keyed
from tests.rpc.support import detail_of

Code = grpc.StatusCode


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
            packed = msgspec.msgpack.encode([ids["bare_id"], ids["token"], [[14, b"9"]]])
            request.packed.append(packed)
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
    if method.service == "WorkerService" and method.rpc not in ("GetHistory", "ReadInbox") and takes_run:
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
        told, all_of_it = await tenant.call("HealthCheck"), await operator.call("HealthCheck")
        assert (told.message, told.components[0].message) == ("degraded; workers: degraded", "")
        assert all_of_it.message == "degraded; workers: b has none"
        assert all_of_it.components[0].message == "b has none"


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
        assert not any(part.message for part in (await mine.call("HealthCheck")).components)
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


async def test_runs_born_for_a_worker_are_out_of_reach_of_whoever_knows_its_id(server: Guarded) -> None:
    mine = server.client(await server.key(Role.WORKER, "a"))
    theirs = server.client(await server.key(Role.ADMIN, "b"))
    poll = {"queues": ["q"], "types": [worker_pb2.WorkflowType(name="w")], "limit": 10}
    async with mine, theirs:
        worker_id = (await theirs.call("Register", task_queue="q", workflow_types=["w"])).worker_id

        async def polled(caller: Keyed, number: int, wait: int = 0) -> list[str]:
            asked = {"worker_id": worker_id, "number": number, "token": IDS.token(), "wait_us": wait}
            return [claim.run_id for claim in (await caller.call("PollTasks", **poll, **asked)).claims]

        assert await polled(theirs, 1) == []
        run_id = (await theirs.call("StartWorkflow", workflow_type="w", task_queue="q")).run_id
        assert await polled(mine, 2) == []
        await mine.call("Deregister", worker_id=worker_id)  # says nothing about workers that are not one's own
        # With a wait: by now it may have been handed back to its queue, which takes a moment.
        assert await polled(theirs, 2, wait=5_000_000) == [run_id]
