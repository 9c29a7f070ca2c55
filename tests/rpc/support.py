"""A server on SQLite in memory or on a file, and a client that knows the wire alone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
from google.protobuf.duration_pb2 import Duration

from kagzi._proto.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    common_pb2,
    namespace_pb2_grpc,
    worker_pb2,
    worker_pb2_grpc,
    workflow_pb2,
    workflow_pb2_grpc,
)
from kagzi.connect import connect
from kagzi.core.instant import SECOND
from kagzi.engine.local import LocalEngine
from kagzi.rpc.server.respond import Guard
from kagzi.rpc.server.server import RpcServer

LEASE = 30 * SECOND  # so long that no pause of a busy machine ends one
SHORT = 3 * SECOND  # for tests that wait until one has run out


@asynccontextmanager
async def engine_on(url: str, lease: int = LEASE) -> AsyncIterator[LocalEngine]:
    engine = connect(url, lease=lease, tick=SECOND // 10, step_grace=SECOND // 10)
    assert isinstance(engine, LocalEngine)
    await engine.open()
    try:
        yield engine
    finally:
        await engine.close()


@asynccontextmanager
async def serving(url: str, lease: int = LEASE) -> AsyncIterator[RpcServer]:
    async with engine_on(url, lease) as engine, RpcServer(engine) as server:
        yield server


class GuardOf(Guard):
    """A guard that is a function."""

    def __init__(self, look: Any) -> None:
        self._look = look

    async def __call__(self, method: Any, request: Any, call: Any, handle: Any) -> Any:
        return await self._look(method, request, call, handle)


def payload(data: bytes, **metadata: str) -> common_pb2.Payload:
    return common_pb2.Payload(data=data, metadata=metadata)


class Client:
    """What an SDK in the field calls; no tokens, no histories, no fields from 50 up."""

    def __init__(self, target: str, namespace: str = "default") -> None:
        self.target = target
        self.channel = grpc.aio.insecure_channel(target)
        self.namespace = namespace
        self.workflows = workflow_pb2_grpc.WorkflowServiceStub(self.channel)
        self.workers = worker_pb2_grpc.WorkerServiceStub(self.channel)
        self.admin = admin_pb2_grpc.AdminServiceStub(self.channel)
        self.namespaces = namespace_pb2_grpc.NamespaceServiceStub(self.channel)
        self.worker_id = ""

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.channel.close()

    # As a client.

    async def start(self, workflow_type: str, input: bytes = b"{}", **fields: Any) -> str:
        request = workflow_pb2.StartWorkflowRequest(
            namespace=self.namespace, workflow_type=workflow_type, input=payload(input), **fields
        )
        return (await self.workflows.StartWorkflow(request, timeout=10)).run_id

    async def get(self, run_id: str) -> workflow_pb2.Workflow:
        request = workflow_pb2.GetWorkflowRequest(namespace=self.namespace, run_id=run_id)
        return (await self.workflows.GetWorkflow(request, timeout=10)).workflow

    # As a worker.

    async def register(self, *types: str, **fields: Any) -> str:
        request = worker_pb2.RegisterRequest(
            namespace=self.namespace,
            task_queue=types[0],
            workflow_types=types,
            hostname="field",
            pid=7,
            version="0.1",
            **fields,
        )
        self.worker_id = (await self.workers.Register(request, timeout=10)).worker_id
        return self.worker_id

    async def heartbeat(self) -> worker_pb2.HeartbeatResponse:
        return await self.workers.Heartbeat(worker_pb2.HeartbeatRequest(worker_id=self.worker_id), timeout=10)

    async def poll(self, queue: str, timeout: float = 10) -> worker_pb2.PollTaskResponse:
        request = worker_pb2.PollTaskRequest(namespace=self.namespace, worker_id=self.worker_id, task_queue=queue)
        return await self.workers.PollTask(request, timeout=timeout)

    async def polled_nothing(self, queue: str) -> bool:
        """Whether a poll ends without a task, by the server's clock or, on a busy machine, by ours."""
        try:
            return not (await self.poll(queue, timeout=1.5)).run_id
        except grpc.aio.AioRpcError as error:
            return error.code() is grpc.StatusCode.DEADLINE_EXCEEDED

    async def begin(self, handle: str, name: str, kind: int = 1, **fields: Any) -> worker_pb2.BeginStepResponse:
        request = worker_pb2.BeginStepRequest(
            namespace=self.namespace, run_id=handle, step_name=name, kind=kind, input=payload(b"1"), **fields
        )
        return await self.workers.BeginStep(request, timeout=10)

    async def complete(self, handle: str, step_id: str, output: bytes) -> worker_pb2.Step:
        request = worker_pb2.CompleteStepRequest(
            namespace=self.namespace, run_id=handle, step_id=step_id, output=payload(output)
        )
        return (await self.workers.CompleteStep(request, timeout=10)).step

    async def fail(self, handle: str, step_id: str, **error: Any) -> worker_pb2.FailStepResponse:
        request = worker_pb2.FailStepRequest(
            namespace=self.namespace, run_id=handle, step_id=step_id, error=common_pb2.ErrorDetail(**error)
        )
        return await self.workers.FailStep(request, timeout=10)

    async def sleep(self, handle: str, step_id: str, seconds: float) -> None:
        duration = Duration()
        duration.FromMilliseconds(round(seconds * 1000))
        request = worker_pb2.SleepRequest(namespace=self.namespace, run_id=handle, step_id=step_id, duration=duration)
        await self.workers.Sleep(request, timeout=10)

    async def spawn(self, handle: str, step_id: str, start: workflow_pb2.StartWorkflowRequest, policy: str = "") -> str:
        request = worker_pb2.SpawnChildRequest(
            namespace=self.namespace, run_id=handle, step_id=step_id, start=start, parent_policy=policy
        )
        return (await self.workers.SpawnChild(request, timeout=10)).child_run_id

    async def await_child(self, handle: str, step_id: str) -> bool:
        """Whether the run was parked."""
        request = worker_pb2.AwaitChildRequest(namespace=self.namespace, run_id=handle, step_id=step_id)
        return (await self.workers.AwaitChild(request, timeout=10)).parked

    async def complete_workflow(self, handle: str, output: bytes) -> int:
        request = worker_pb2.CompleteWorkflowRequest(namespace=self.namespace, run_id=handle, output=payload(output))
        return (await self.workers.CompleteWorkflow(request, timeout=10)).status

    async def fail_workflow(self, handle: str, **error: Any) -> int:
        request = worker_pb2.FailWorkflowRequest(
            namespace=self.namespace, run_id=handle, error=common_pb2.ErrorDetail(**error)
        )
        return (await self.workers.FailWorkflow(request, timeout=10)).status

    async def steps(self, run_id: str) -> list[worker_pb2.Step]:
        request = admin_pb2.ListStepsRequest(namespace=self.namespace, run_id=run_id)
        return list((await self.admin.ListSteps(request, timeout=10)).steps)


def detail_of(error: grpc.aio.AioRpcError) -> common_pb2.ErrorDetail:
    (value,) = [value for key, value in error.trailing_metadata() or () if key == "grpc-status-details-bin"]
    assert isinstance(value, bytes)
    return common_pb2.ErrorDetail.FromString(value)
