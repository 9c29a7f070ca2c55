"""Errors that workers report are checked when they come in, and whatever a row holds can be looked at."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import grpc
import pytest
from msgspec.structs import replace

from kagzi import Kagzi, WorkflowFailed
from kagzi._proto.v1 import workflow_pb2 as pb
from kagzi.api.engine import Engine
from kagzi.api.operations import (
    Chunk,
    CompleteStep,
    FailRun,
    FailStep,
    Operation,
    ParkRun,
    SendSignal,
    StartRun,
    StartSignal,
)
from kagzi.clock import SystemClock
from kagzi.connect import connect
from kagzi.core.conflict import OnConflict
from kagzi.core.failure import FAILURE_BYTES
from kagzi.core.instant import NEVER, SECOND
from kagzi.engine.local import LocalEngine
from kagzi.errors import InvalidRequest, LimitExceeded
from kagzi.ids import RandomIds
from kagzi.rpc.convert import signals
from kagzi.rpc.server.server import RpcServer
from kagzi.store.postgres import signals as postgres_signals
from kagzi.store.sqlite import signals as sqlite_signals
from tests.http.support import Client as HttpClient
from tests.http.support import serving as serving_http
from tests.rpc.support import Client, engine_on

DEEP = b'{"type":"a","cause":' * 5000 + b"null" + b"}" * 5000
CAUSES = b'{"type":"builtins.ValueError","cause":' * 300 + b"null" + b"}" * 300
VALUES = b'{"type":"builtins.ValueError","attributes":{"x":' + b"[" * 300 + b"]" * 300 + b"}}"
LARGE = b'{"type":"a","message":"' + b"m" * FAILURE_BYTES + b'"}'
DELAYS = [
    b'{"type":"a","attributes":{"delay":1e308}}',
    b'{"type":"kagzi.errors.RetryAfter","attributes":{"delay":1e308}}',
    b'{"type":"kagzi.errors.RetryAfter","attributes":{"delay":' + b"9" * 300 + b"}}",
]
POISON = [DEEP, CAUSES, VALUES, *DELAYS, b"\xff", b"", b'{"type":"\\ud800"}', b'{"type":"x","kind":7}']


class Ports:
    def __init__(self, engine: LocalEngine, remote: Engine, field: Client, http: HttpClient, url: str) -> None:
        self.engine = engine
        self.remote = remote
        self.field = field
        self.http = http
        self.url = url

    async def begun(self) -> tuple[str, str, str]:
        """A run that a worker in the field drives, its handle, and a step of it that has begun."""
        run_id = await self.field.start("w", retry_policy=None)
        task = await self.field.poll("w")
        return run_id, task.run_id, (await self.field.begin(task.run_id, "s")).step_id

    async def look(self, run_id: str) -> None:
        """Everything that shows the error of a run or of its steps."""
        stub = self.field.workflows
        await self.field.get(run_id)
        await stub.ListWorkflows(pb.ListWorkflowsRequest(namespace="default"), timeout=10)
        waited = await stub.WaitWorkflows(
            pb.WaitWorkflowsRequest(namespace="default", run_ids=[run_id], wait_us=SECOND), timeout=10
        )
        assert [run.run_id for run in waited.workflows] == [run_id]
        await self.field.steps(run_id)
        await self.http.get(f"/api/v1/runs/{run_id}")
        await self.http.get("/api/v1/runs")
        await self.http.get(f"/api/v1/runs/{run_id}/steps")
        for url in (self.url, f"grpc://{self.field.target}"):
            async with Kagzi(url) as app:
                handle = app.handle(run_id)
                await handle.get()
                await handle.steps()
                with pytest.raises(WorkflowFailed):
                    await handle.result(timeout=10)


@pytest.fixture
async def ports(url: str) -> AsyncIterator[Ports]:
    async with (
        engine_on(url) as engine,
        RpcServer(engine) as server,
        Client(server.target) as field,
        serving_http(engine) as port,
        HttpClient(port.url) as http,
    ):
        await field.register("w")
        remote = connect(f"grpc://{server.target}")
        await remote.open()
        yield Ports(engine, remote, field, http, url)
        await remote.close()


@asynccontextmanager
async def by_hand(url: str) -> AsyncIterator[Any]:
    """A function that executes a statement in the database, past everything of ours, with one value for `$1`."""
    if url.startswith("sqlite"):
        connection = sqlite3.connect(url.removeprefix("sqlite:///"), timeout=10, isolation_level=None)

        async def execute(statement: str, *values: object) -> None:
            connection.execute(statement.replace("$1", "?"), values)

        await execute("DROP TRIGGER finished_is_final")
        yield execute
        connection.close()
        return
    postgres = await asyncpg.connect(url, server_settings={"search_path": "kagzi"})
    await postgres.execute("DROP TRIGGER finished_is_final ON workflow_runs")
    yield postgres.execute
    await postgres.close()


async def test_what_is_stored_can_be_read_whatever_it_is(ports: Ports) -> None:
    run_id, handle, step_id = await ports.begun()
    await ports.field.fail(handle, step_id, message="final", non_retryable=True)
    await ports.field.fail_workflow(handle, message="failed", non_retryable=True)
    await ports.look(run_id)
    async with by_hand(ports.url) as execute:
        for poison in POISON:
            await execute("UPDATE workflow_runs SET error = $1", poison)
            await execute("UPDATE step_runs SET error = $1", poison)
            await ports.look(run_id)
        for moment in (NEVER + 1, 2**63 - 1, -(2**62)):
            await execute("UPDATE workflow_runs SET started_at = $1", moment)
            await execute("UPDATE step_runs SET started_at = $1", moment)
            await ports.look(run_id)


@pytest.mark.parametrize("error", [DEEP, CAUSES, VALUES, LARGE], ids=["deep", "causes", "values", "large"])
async def test_errors_that_are_too_much_are_refused_when_they_come_in(ports: Ports, error: bytes) -> None:
    run_id, handle, step_id = await ports.begun()
    for call in (ports.field.fail(handle, step_id, failure=error), ports.field.fail_workflow(handle, failure=error)):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "error.failure is" in (refused.value.details() or "")
    operations: list[Operation] = [
        FailRun(error=error),
        FailStep(step_id="s", started_at=1, finished_at=1, error=error),
    ]
    for operation in operations:
        await _refused(ports, handle, operation, r"error of (run|step) .* is (nested too deeply|[\d,]+ bytes)")
    await ports.field.fail(handle, step_id, message="final", non_retryable=True)
    await ports.field.fail_workflow(handle, message="failed", non_retryable=True)
    await ports.look(run_id)


@pytest.mark.parametrize("error", DELAYS)
async def test_numbers_that_are_too_large_do_not_spoil_the_answers(ports: Ports, error: bytes) -> None:
    run_id, handle, step_id = await ports.begun()
    retry = await ports.field.fail(handle, step_id, failure=error)
    assert retry.scheduled_retry  # at the pace of the policy
    await ports.field.steps(run_id)
    other_id, handle, _ = await ports.begun()
    await ports.field.fail_workflow(handle, failure=error)
    await ports.look(other_id)


async def test_moments_that_no_calendar_shows_are_refused(ports: Ports) -> None:
    _, handle, _ = await ports.begun()
    for absurd in (-1, NEVER + 1, 2**63 - 1):
        for operation in (
            CompleteStep(step_id="s", completed_seq=1, started_at=absurd, finished_at=1, output=b"1"),
            CompleteStep(step_id="s", completed_seq=1, started_at=1, finished_at=absurd, output=b"1"),
            FailStep(step_id="s", started_at=1, finished_at=1, retry_at=absurd, error=b"{}"),
            ParkRun(available_at=absurd, inbox_seq=0),
        ):
            await _refused(ports, handle, operation, "_at of (step|run) .* must lie between the years 1970 and 9999")


async def test_a_policy_that_cannot_be_read_is_refused_and_a_stored_one_is_passed_over(
    ports: Ports, caplog: pytest.LogCaptureFixture
) -> None:
    for policy in (b"nonsense", b'{"factor":-1}', b'{"x":' + b"[" * 100_000):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await ports.field.start("w", exact_retry_policy=policy)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    run_id, handle, step_id = await ports.begun()
    async with by_hand(ports.url) as execute:
        await execute("UPDATE workflow_runs SET retry_policy = $1", b"nonsense")
    assert (await ports.field.fail(handle, step_id, message="once more")).scheduled_retry
    assert "goes on without the retry policy stored with it" in caplog.text
    assert run_id in caplog.text


async def test_an_inbox_that_is_full_says_so_at_every_door_at_once(
    ports: Ports, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (postgres_signals, sqlite_signals):
        monkeypatch.setattr(module, "MOST_UNTAKEN", 1)
    run_id = await ports.field.start("w", external_id="order-1")
    first = SendSignal(namespace="default", run_id=run_id, name="paid", key="1", value=b"1")
    await ports.engine.workflows.signal(first)
    second = replace(first, key="2")
    again = StartRun(
        namespace="default",
        run_id=RandomIds(SystemClock().now).run_id(),
        workflow_type="w",
        task_queue="w",
        external_id="order-1",
        on_conflict=OnConflict.RESTART_FINISHED,
        signal=StartSignal(name="paid", value=b"1", key="3"),
    )
    began = asyncio.get_running_loop().time()
    for engine in (ports.engine, ports.remote):
        for call in (engine.workflows.signal(second), engine.workflows.start(again)):
            with pytest.raises(LimitExceeded, match="signals wait in the inbox"):
                await call
        assert (await engine.workflows.signal(first)).repeated
    for url in (ports.url, f"grpc://{ports.field.target}"):
        async with Kagzi(url) as app:
            with pytest.raises(LimitExceeded, match="signals wait in the inbox"):
                await app.handle(run_id).signal("paid", 2)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await ports.field.workflows.SignalWorkflow(signals.send_to_wire(second), timeout=30)
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    status, problem = await ports.http.problem("POST", f"/api/v1/runs/{run_id}/signals", json={"name": "paid"})
    assert (status, problem["code"]) == (429, "LIMIT_EXCEEDED")
    assert asyncio.get_running_loop().time() - began < 25  # nobody tries for half a minute


async def _refused(ports: Ports, handle: str, operation: Operation, reason: str) -> None:
    """In this process and over the wire, where workers of ours send their chunks."""
    run_id, _, token = handle.partition(".")
    chunk = Chunk(namespace="default", run_id=run_id, token=token, operations=(operation,))
    for engine in (ports.engine, ports.remote):
        with pytest.raises(InvalidRequest, match=reason):
            await engine.workers.commit(chunk)
