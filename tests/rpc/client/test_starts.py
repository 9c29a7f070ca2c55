"""What becomes of starts, alone and many in one call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from typing import Any, NamedTuple

import grpc
import pytest

from kagzi import Kagzi
from kagzi._proto.v1 import common_pb2, workflow_pb2
from kagzi.api.operations import StartRun
from kagzi.core.instant import SECOND
from kagzi.core.run import RunStatus
from kagzi.errors import Unavailable
from kagzi.rpc.client import starts
from kagzi.rpc.client.remote import RemoteEngine
from kagzi.rpc.server.server import RpcServer
from kagzi.rpc.server.services.waits import Waits
from kagzi.sdk.definitions import Workflow
from kagzi.sdk.worker import headstart
from tests.rpc.support import Client, GuardOf, detail_of, engine_on, payload, serving


def start(
    external_id: str, on_conflict: int = workflow_pb2.ON_CONFLICT_UNSPECIFIED
) -> workflow_pb2.StartWorkflowRequest:
    return workflow_pb2.StartWorkflowRequest(
        namespace="default",
        workflow_type="order",
        external_id=external_id,
        input=payload(b"{}"),
        on_conflict=on_conflict,  # type: ignore[arg-type]
    )


async def test_an_id_that_is_taken_is_returned_or_refused_as_the_caller_says() -> None:
    async with serving("memory://") as server, Client(server.target) as client:
        first = await client.workflows.StartWorkflow(start("one"))
        again = await client.workflows.StartWorkflow(start("one"))
        assert (again.run_id, again.already_exists) == (first.run_id, True)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await client.workflows.StartWorkflow(start("one", workflow_pb2.ON_CONFLICT_FAIL))
        assert refused.value.code() is grpc.StatusCode.ABORTED
        assert first.run_id in detail_of(refused.value).message


async def test_a_run_id_that_another_run_has_is_refused() -> None:
    async with serving("memory://") as server, Client(server.target) as client:
        mine = start("one")
        mine.run_id = "01900000-0000-7000-8000-00000000000a"
        other = start("two")
        other.run_id = mine.run_id
        first = await client.workflows.StartWorkflow(mine)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await client.workflows.StartWorkflow(other)
        assert refused.value.code() is grpc.StatusCode.ABORTED
        assert mine.run_id in detail_of(refused.value).message
        call = workflow_pb2.StartWorkflowsRequest(namespace="default", starts=[other, mine])
        refusal, again = (await client.workflows.StartWorkflows(call)).results
        assert refusal.error.code == common_pb2.ERROR_CODE_CONFLICT
        assert again.started == first


async def test_a_delay_and_a_moment_are_too_much() -> None:
    async with serving("memory://") as server, Client(server.target) as client:
        both = start("one")
        both.delay_us, both.start_at_us = 1, 1
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await client.workflows.StartWorkflow(both)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "delay and start_at are both given" in detail_of(refused.value).message


async def test_each_start_of_a_call_has_its_own_answer() -> None:
    async with serving("memory://") as server, Client(server.target) as client:
        first = await client.workflows.StartWorkflow(start("one"))
        wanted = [start("one"), start("one", workflow_pb2.ON_CONFLICT_FAIL), start("one", 77), start("two")]
        call = workflow_pb2.StartWorkflowsRequest(namespace="default", starts=wanted)
        returned, refused, unknown, new = (await client.workflows.StartWorkflows(call)).results
        assert (returned.started.run_id, returned.started.already_exists) == (first.run_id, True)
        assert refused.error.code == common_pb2.ERROR_CODE_CONFLICT
        assert unknown.error.code == common_pb2.ERROR_CODE_INVALID_ARGUMENT
        assert (await client.get(new.started.run_id)).external_id == "two"


# A run and its end in one call.


class Program(NamedTuple):
    app: Kagzi
    double: Workflow[[int], int]
    server: RpcServer
    calls: list[str]  # of clients
    driving: list[str]  # polls and commits of the worker


@asynccontextmanager
async def program(
    *, worker: bool = True, waits: bool = True, shared_may_go: asyncio.Event | None = None
) -> AsyncIterator[Program]:
    """With `waits` off, the server knows nothing of starts that wait, as one of yesterday does not."""
    calls: list[str] = []
    driving: list[str] = []

    async def guard(method: Any, request: Any, call: Any, handle: Any) -> Any:
        if method.service == "WorkflowService":
            calls.append(method.rpc)
        elif method.rpc in ("PollTasks", "CommitBatch"):
            driving.append(method.rpc)
        if method.rpc == "StartWorkflow" and not waits:
            request.ClearField("wait_us")
        if method.rpc == "StartWorkflows" and shared_may_go is not None:
            await shared_may_go.wait()
        return await handle(request, call)

    async with engine_on("memory://") as engine, RpcServer(engine, guard=GuardOf(guard)) as server:
        app = Kagzi(f"grpc://{server.target}")

        @app.step
        async def twice(number: int) -> int:
            return 2 * number

        @app.workflow
        async def doubled(number: int) -> int:
            return await twice(number)

        async with app, app.worker() if worker else nullcontext():
            yield Program(app, doubled, server, calls, driving)


async def test_who_runs_a_workflow_alone_makes_one_call() -> None:
    async with program() as (_, double, server, calls, _):
        assert await double.run(21) == 42
        assert calls == ["StartWorkflow"]
        assert server._workflows is not None
        assert not server._workflows._waits._waits  # what was told is not kept


async def test_a_worker_with_nothing_else_to_do_commits_before_it_polls_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(headstart, "_SECONDS", 10.0)  # the five milliseconds of a worker may be over on a busy machine
    async with program() as (_, double, _, _, driving):
        for number in range(3):
            assert await double.run(number) == 2 * number
            async with asyncio.timeout(10):
                while driving[-1] != "PollTasks":
                    await asyncio.sleep(0.001)
        assert driving == ["PollTasks", *["CommitBatch", "PollTasks"] * 3]


async def test_who_starts_a_run_does_not_wait_for_its_end() -> None:
    async with program(worker=False) as (_, double, _, calls, _):
        handle = await double.start(21)
        assert await handle.status() is RunStatus.PENDING
        assert calls == ["StartWorkflows", "GetWorkflow"]


async def test_a_run_that_takes_longer_is_waited_for_with_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starts, "_SOON", SECOND // 100)
    async with program(worker=False) as (app, double, _, calls, _):
        running = asyncio.create_task(double.run(21))
        async with asyncio.timeout(10):
            while "WaitWorkflows" not in calls:
                await asyncio.sleep(0.005)
        async with app.worker():
            assert await running == 42
        assert calls == ["StartWorkflow", "WaitWorkflows"]


async def test_a_server_that_knows_nothing_of_waiting_starts_answers_at_once() -> None:
    async with program(waits=False) as (_, double, _, calls, _):
        assert await double.run(21) == 42
        assert calls == ["StartWorkflow", "WaitWorkflows"]


async def test_of_many_who_come_together_few_come_alone() -> None:
    async with program() as (_, double, _, calls, _):
        numbers = list(range(100))
        assert await asyncio.gather(*map(double.run, numbers)) == [2 * n for n in numbers]
        assert calls.count("StartWorkflow") == starts._MOST_ALONE
        assert calls.count("StartWorkflows") <= 3


async def test_nobody_is_alone_while_others_start_runs() -> None:
    may_go = asyncio.Event()
    async with program(shared_may_go=may_go) as (_, double, _, calls, _):
        starting = asyncio.create_task(double.start(1))
        async with asyncio.timeout(10):
            while not calls:
                await asyncio.sleep(0.001)
            running = asyncio.create_task(double.run(2))
            while len(calls) < 2:
                await asyncio.sleep(0.001)
        assert calls == ["StartWorkflows", "StartWorkflows"]
        may_go.set()
        assert (await (await starting).result(), await running) == (2, 4)


async def test_who_waits_for_the_end_gets_that_of_the_run_which_has_the_id() -> None:
    async with program() as (_, double, server, _, _):
        first = await double.options(id="one").start(21)
        assert await first.result() == 42
        async with Client(server.target) as client:
            request = workflow_pb2.StartWorkflowRequest(
                namespace="default",
                workflow_type="doubled",
                task_queue="default",
                version=(await client.get(first.id)).version,
                external_id="one",
                input=(await client.get(first.id)).input,
                wait_us=10 * SECOND,
            )
            again = await client.workflows.StartWorkflow(request)
        assert (again.run_id, again.already_exists) == (first.id, True)
        assert (again.workflow.run_id, again.workflow.output.data) == (first.id, b"42")


async def test_a_wait_that_makes_no_sense_is_refused_and_nothing_is_stored() -> None:
    async with serving("memory://") as server, Client(server.target) as client:
        request = start("one")
        request.wait_us = -1
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await client.workflows.StartWorkflow(request)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "wait_us must not be negative" in detail_of(refused.value).message
        listed = await client.workflows.ListWorkflows(workflow_pb2.ListWorkflowsRequest(namespace="default"))
        assert not listed.workflows


async def test_a_start_is_answered_even_if_waiting_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    async def any_of(*_: object) -> Any:
        return [], [], Unavailable("the database is away")

    monkeypatch.setattr(Waits, "any_of", any_of)
    async with serving("memory://") as server, Client(server.target) as client:
        request = start("one")
        request.wait_us = 10 * SECOND
        answer = await client.workflows.StartWorkflow(request)
        assert (await client.get(answer.run_id)).external_id == "one"
        assert not answer.HasField("workflow")


async def test_a_server_that_closes_says_that_the_run_is_stored() -> None:
    async with engine_on("memory://") as engine:
        server = RpcServer(engine)
        await server.start()
        async with Client(server.target) as client:
            request = start("one")
            request.wait_us = 30 * SECOND
            starting = asyncio.ensure_future(client.workflows.StartWorkflow(request))
            async with asyncio.timeout(10):
                while not engine.results.expected_runs():
                    await asyncio.sleep(0.005)
                await server.stop()
                answer = await starting
        assert not answer.HasField("workflow")
        assert (await engine.workflows.get("default", answer.run_id)).external_id == "one"


async def test_an_engine_that_is_closed_waits_for_the_start_and_takes_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starts, "_SOON", SECOND // 10)
    async with serving("memory://") as server:
        remote = RemoteEngine(server.target)
        await remote.open()
        workflows = remote.workflows

        def awaited(number: int) -> Any:
            run_id = f"01890000-0000-7000-8000-{number:012}"
            named = {"namespace": "default", "run_id": run_id, "workflow_type": "w", "task_queue": "w", "version": "1"}
            run = StartRun(**named, input=b"1")
            return asyncio.ensure_future(workflows.start(run, awaited=True))

        starting = awaited(1)
        await asyncio.sleep(0)
        await remote.close()
        started = await starting
        assert (started.run_id[-1], started.end) == ("1", None)
        async with asyncio.timeout(2):
            with pytest.raises(Unavailable, match="closed"):
                await awaited(2)
