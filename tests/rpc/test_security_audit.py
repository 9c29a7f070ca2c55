"""Who changed what, as the audit log tells."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import grpc
import pytest
from msgspec.structs import replace

from kagzi._proto.v1.worker_pb2 import WORKER_STATUS_ONLINE
from kagzi.access import Role
from kagzi.api.keys import AuditFilter
from kagzi.core.audit import AuditEntry
from kagzi.core.declaration import Declaration
from kagzi.core.worker import WorkflowType
from kagzi.rpc.convert.work import registration_to_wire
from kagzi.rpc.methods import METHODS
from tests.engine.support import WORKER, new_registration
from tests.rpc.guarded import IDS, Guarded, guarded


async def test_changes_are_audited_and_starts_are_not(server: Guarded) -> None:
    everything = await server.key()
    key = await server.key(Role.CLIENT, "a")
    async with server.client(key) as client, server.client(everything) as admin:
        client.metadata += (("x-request-id", "req-1"),)
        run_id = (await client.call("StartWorkflow", workflow_type="w")).run_id
        await client.call("TerminateWorkflow", run_id=run_id, reason="enough")
        await client.refused("CancelWorkflow", run_id=IDS.run_id())
        await client.refused("DrainWorker", worker_id=WORKER)
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
    assert (refused.target, refused.request_id) == (f"worker {WORKER}", "req-1")
    assert terminated.peer.startswith(("ipv4:", "ipv6:"))
    assert "kgz_" not in str(entries)


async def written(server: Guarded) -> list[tuple[str, str | None, str, str]]:
    await server.engine.audit.close()
    entries = (await server.engine.audit.list(AuditFilter(), page_size=100)).items
    return [
        (entry.action.rpartition("/")[2], entry.namespace, entry.target, entry.result) for entry in reversed(entries)
    ]


async def test_a_job_is_started_by_its_caller_whatever_the_request_says(light: Guarded) -> None:
    key = await light.key(Role.CLIENT, "a")
    async with light.client(key) as client:
        fields: dict[str, Any] = {"namespace": "a", "action": "cancel", "created_by": "cli:root", "everything": True}
        job = (await client.call("StartJob", **fields)).job
        assert job.created_by == f"key:{key.split('_')[1]}"
        for namespace in ("b", "default"):
            refused = await client.refused("StartJob", **fields, filter={"namespace": namespace})
            assert refused.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert f"the filter names namespace '{namespace}' and the request 'a'" in (refused.details() or "")


REGISTER = next(method for method in METHODS.values() if method.rpc == "Register")


async def test_a_worker_declares_schedules_of_what_it_serves_and_the_log_names_its_key(light: Guarded) -> None:
    key = await light.key(Role.WORKER, "a")
    nightly = Declaration(name="nightly", workflow_type="report", task_queue="night", cron_expr="@daily", hash="h")
    serving = replace(new_registration(), namespace="a", queues=("night",), types=(WorkflowType("report"),))
    async with light.client(key) as client:
        for foreign in (replace(nightly, task_queue="mail"), replace(nightly, workflow_type="pay")):
            wrong = registration_to_wire(replace(serving, schedules=(foreign,)))
            with pytest.raises(grpc.aio.AioRpcError) as refusal:
                await client.send(REGISTER, wrong)
            refused = refusal.value
            assert refused.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert "which this worker does not" in (refused.details() or "")
        await client.send(REGISTER, registration_to_wire(replace(serving, schedules=(nightly,))))
    async with asyncio.timeout(30):
        while not (entries := await _declarations(light)):
            await asyncio.sleep(0.02)
    (entry,) = entries
    assert (entry.actor, entry.target, entry.result) == (f"key:{key.split('_')[1]}", "schedule nightly", "OK")
    assert entry.peer.startswith("ipv4:127.0.0.1:")


async def _declarations(light: Guarded) -> list[AuditEntry]:
    entries = (await light.engine.audit.list(AuditFilter(namespace="a"))).items
    return [entry for entry in entries if entry.action == "declare schedule"]


async def test_the_drain_of_a_worker_is_told_with_its_namespace_and_what_came_of_it(light: Guarded) -> None:
    await light.engine.workers.register(new_registration(namespace="shop"))
    unknown = IDS.token()
    async with light.client(None) as client:
        assert (await client.call("DrainWorker", worker_id=WORKER)).success
        await light.engine.workers.deregister(WORKER, "shop")
        answer = await client.call("DrainWorker", worker_id=WORKER)
        assert (answer.success, answer.error.exact_code) == (False, "CONFLICT")
        await client.refused("DrainWorker", worker_id=unknown)
    assert await written(light) == [
        ("DrainWorker", "shop", f"worker {WORKER}", "OK"),
        ("DrainWorker", "shop", f"worker {WORKER}", "CONFLICT"),
        ("DrainWorker", None, f"worker {unknown}", "NOT_FOUND"),
    ]


async def test_leaving_by_draining_takes_the_right_to_drain_and_is_told_like_it(server: Guarded) -> None:
    boss, worker = await server.key(Role.ADMIN, "a"), await server.key(Role.WORKER, "a")
    async with server.client(boss) as admin, server.client(worker) as client:
        worker_id = (await client.call("Register", workflow_types=["w"])).worker_id
        refused = await client.refused("Deregister", worker_id=worker_id, drain=True)
        assert refused.code() is grpc.StatusCode.PERMISSION_DENIED
        assert (await admin.call("GetWorker", worker_id=worker_id)).worker.status == WORKER_STATUS_ONLINE
        await admin.call("Deregister", worker_id=worker_id, drain=True)
        await client.call("Deregister", worker_id=worker_id)  # to leave by oneself takes no more than before
    told = [entry for entry in await written(server) if entry[0] == "Deregister" or entry[0] == "DrainWorker"]
    assert [(namespace, target, result) for _, namespace, target, result in told] == [
        (None, f"worker {worker_id} to drain", "PERMISSION_DENIED"),
        ("a", f"worker {worker_id} to drain", "OK"),
    ]


async def test_a_run_that_begins_from_scratch_is_told_from_one_that_goes_on(light: Guarded) -> None:
    async with light.client(None) as client:
        run_id = (await client.call("StartWorkflow", workflow_type="w")).run_id
        await client.call("TerminateWorkflow", run_id=run_id)
        await client.call("RetryWorkflow", run_id=run_id)
        await client.call("RetryWorkflow", run_id=run_id, from_scratch=True)
    assert [target for action, _, target, _ in await written(light) if action == "RetryWorkflow"] == [
        f"run {run_id}",
        f"run {run_id} from scratch",
    ]


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
