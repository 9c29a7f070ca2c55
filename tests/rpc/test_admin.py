"""AdminService and NamespaceService: looking after workers, counting, tenants."""

from __future__ import annotations

from collections.abc import AsyncIterator

import grpc
import pytest

from kagzi._proto.v1 import admin_pb2, common_pb2, namespace_pb2, worker_pb2, workflow_pb2
from kagzi.version import __version__
from tests.rpc.support import Client, detail_of, serving


@pytest.fixture
async def client(url: str) -> AsyncIterator[Client]:
    async with serving(url) as server, Client(server.target) as client:
        yield client


async def test_workers_are_listed_looked_at_and_drained(client: Client) -> None:
    limits = [worker_pb2.WorkflowTypeConcurrency(workflow_type="w", max_concurrent=3)]
    ids = [
        await client.register(
            "w", "v", labels={"zone": "a"}, queue_concurrency_limit=5, workflow_type_concurrency=limits
        )
        for _ in range(3)
    ]
    await client.start("w")
    await client.poll("w")
    page = common_pb2.PageRequest(page_size=2, include_total_count=True)
    first = await client.admin.ListWorkers(admin_pb2.ListWorkersRequest(page=page))
    assert [worker.worker_id for worker in first.workers] == ids[:0:-1]
    assert (first.page.has_more, first.page.total_count) == (True, 3)
    page.page_token = first.page.next_page_token
    second = await client.admin.ListWorkers(admin_pb2.ListWorkersRequest(page=page))
    assert ([worker.worker_id for worker in second.workers], second.page.has_more) == ([ids[0]], False)

    worker = (await client.admin.GetWorker(admin_pb2.GetWorkerRequest(worker_id=ids[2]))).worker
    assert (worker.task_queue, list(worker.workflow_types), worker.hostname) == ("w", ["v", "w"], "field")
    assert (worker.queue_concurrency_limit, list(worker.workflow_type_concurrency)) == (5, limits)
    assert (worker.active_workflow_count, dict(worker.labels)) == (1, {"zone": "a"})
    assert worker.status == worker_pb2.WORKER_STATUS_ONLINE

    drained = await client.admin.DrainWorker(admin_pb2.DrainWorkerRequest(worker_id=ids[2]))
    assert drained.success
    assert (await client.heartbeat()).should_drain
    draining = admin_pb2.ListWorkersRequest(status_filter=worker_pb2.WORKER_STATUS_DRAINING)
    assert [worker.worker_id for worker in (await client.admin.ListWorkers(draining)).workers] == [ids[2]]
    await client.workers.Deregister(worker_pb2.DeregisterRequest(worker_id=ids[0]))
    gone = await client.admin.DrainWorker(admin_pb2.DrainWorkerRequest(worker_id=ids[0]))
    assert (gone.success, gone.error.code) == (False, common_pb2.ERROR_CODE_PRECONDITION_FAILED)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await client.admin.GetWorker(admin_pb2.GetWorkerRequest(worker_id="00000000-0000-4000-8000-000000000009"))
    assert refused.value.code() is grpc.StatusCode.NOT_FOUND


async def test_everything_is_counted(client: Client) -> None:
    await client.register("w")
    for _ in range(3):
        await client.start("w")
    await client.start("v", task_queue="slow")
    task = await client.poll("w")
    await client.complete_workflow(task.run_id, b"1")
    await client.poll("w")

    depth = await client.admin.GetQueueDepth(admin_pb2.GetQueueDepthRequest())
    assert (depth.pending_count, depth.running_count, depth.sleeping_count) == (2, 1, 0)
    assert dict(depth.depth_by_queue) == {"w": 1, "slow": 1}
    only = await client.admin.GetQueueDepth(admin_pb2.GetQueueDepthRequest(task_queue="slow"))
    assert (only.pending_count, only.running_count) == (1, 0)
    for request in (admin_pb2.GetStatsRequest(), admin_pb2.GetStatsRequest(namespace="default")):
        stats = await client.admin.GetStats(request)
        assert (stats.total_workflows, stats.pending_workflows, stats.running_workflows) == (4, 2, 1)
        assert (stats.completed_workflows, stats.total_workers, stats.online_workers) == (1, 1, 1)
        assert dict(stats.workflows_by_type) == {"w": 3, "v": 1}
        assert dict(stats.workflows_by_status) == {"PENDING": 2, "RUNNING": 1, "COMPLETED": 1}
    types = await client.admin.ListWorkflowTypes(
        admin_pb2.ListWorkflowTypesRequest(page=common_pb2.PageRequest(page_size=1))
    )
    assert [(info.workflow_type, list(info.task_queues)) for info in types.workflow_types] == [("v", ["slow"])]
    rest = await client.admin.ListWorkflowTypes(
        admin_pb2.ListWorkflowTypesRequest(page=common_pb2.PageRequest(page_token=types.page.next_page_token))
    )
    assert [(info.workflow_type, info.total_runs, info.active_runs) for info in rest.workflow_types] == [("w", 3, 2)]


async def test_the_server_says_what_it_is(client: Client) -> None:
    info = await client.admin.GetServerInfo(admin_pb2.GetServerInfoRequest())
    assert (info.version, info.api_version) == (__version__, "v1")
    health = await client.admin.HealthCheck(admin_pb2.HealthCheckRequest())
    assert health.status == admin_pb2.SERVING_STATUS_SERVING
    await client.admin.HealthCheck(admin_pb2.HealthCheckRequest(service="WorkerService"))
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await client.admin.HealthCheck(admin_pb2.HealthCheckRequest(service="Nonsense"))
    assert refused.value.code() is grpc.StatusCode.NOT_FOUND


async def test_a_disabled_namespace_starts_no_runs(client: Client) -> None:
    made = await client.namespaces.CreateNamespace(
        namespace_pb2.CreateNamespaceRequest(namespace="team", display_name="Team", description="Ours")
    )
    assert (made.namespace.namespace, made.namespace.display_name, made.namespace.enabled) == ("team", "Team", True)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await client.namespaces.CreateNamespace(namespace_pb2.CreateNamespaceRequest(namespace="team"))
    assert refused.value.code() is grpc.StatusCode.ABORTED
    client.namespace = "team"
    run_id = await client.start("w")
    await client.namespaces.DisableNamespace(namespace_pb2.DisableNamespaceRequest(namespace="team"))
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await client.start("w")
    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert detail_of(refused.value).exact_code == "NAMESPACE_DISABLED"
    await client.register("w")
    task = await client.poll("w")  # what runs goes on
    assert task.run_id.startswith(run_id)
    await client.complete_workflow(task.run_id, b"1")
    retry = workflow_pb2.RetryWorkflowRequest(namespace="team", run_id=run_id)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await client.workflows.RetryWorkflow(retry)
    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    enabled = await client.namespaces.EnableNamespace(namespace_pb2.EnableNamespaceRequest(namespace="team"))
    assert enabled.namespace.enabled
    await client.start("w")
    changed = await client.namespaces.UpdateNamespace(
        namespace_pb2.UpdateNamespaceRequest(namespace="team", description="Theirs")
    )
    assert (changed.namespace.display_name, changed.namespace.description) == ("Team", "Theirs")
    listed = await client.namespaces.ListNamespaces(namespace_pb2.ListNamespacesRequest())
    assert [namespace.namespace for namespace in listed.namespaces] == ["default", "team"]
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await client.namespaces.GetNamespace(namespace_pb2.GetNamespaceRequest(namespace="nobody"))
    assert refused.value.code() is grpc.StatusCode.NOT_FOUND
