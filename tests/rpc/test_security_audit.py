"""Who changed what, as the audit log tells."""

from __future__ import annotations

import asyncio
import socket

import pytest

from kagzi.access import Role
from kagzi.api.keys import AuditFilter
from tests.rpc.guarded import IDS, Guarded, guarded


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
