"""Other versions: they understand each other, or say clearly why not.

Old messages are made by hand here, from descriptors that know nothing of ours; newer ones by adding bytes that no
descriptor of ours explains.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2
from google.protobuf.message import Message

from kagzi import Kagzi, VersionMismatch
from kagzi._proto.v1 import admin_pb2, common_pb2, worker_pb2, workflow_pb2
from kagzi.api.admin import WorkerFilter
from kagzi.api.operations import Chunk, CompleteRun
from kagzi.api.workers import Poll
from kagzi.core.failure import Failure
from kagzi.core.health import ComponentHealth, Health, HealthStatus
from kagzi.core.run import RunStatus
from kagzi.core.step import StepStatus
from kagzi.core.worker import WorkerStatus, WorkflowType
from kagzi.rpc.client import handshake
from kagzi.rpc.client.remote import RemoteEngine
from kagzi.rpc.methods import METHODS
from kagzi.sdk.definitions import Workflow
from kagzi.version import __version__
from tests.rpc.support import Client, detail_of, serving
from tests.rpc.test_wire_contract import THEIR_ENUMS, THEIRS

Descriptor = descriptor_pb2.FieldDescriptorProto
SCALARS = {
    "string": Descriptor.TYPE_STRING,
    "bytes": Descriptor.TYPE_BYTES,
    "bool": Descriptor.TYPE_BOOL,
    "int32": Descriptor.TYPE_INT32,
    "int64": Descriptor.TYPE_INT64,
    "double": Descriptor.TYPE_DOUBLE,
}
WELL_KNOWN = {"Ts": ".google.protobuf.Timestamp", "Dur": ".google.protobuf.Duration"}
UUID = "0190a5f2-7c3e-7d31-9a51-0c8e6b1f2a44"
# A field 2040 with text, and one of a group of numbers nobody has used.
UNKNOWN = b"\xc2\x7f\x05later" + b"\xc8\x7f\x2a"


def old_contract() -> dict[str, type[Message]]:
    """The messages as an SDK of the field has them, compiled from the table alone."""
    file = descriptor_pb2.FileDescriptorProto(name="old.proto", package="old.v1", syntax="proto3")
    file.dependency[:] = ["google/protobuf/timestamp.proto", "google/protobuf/duration.proto"]
    for name, values in THEIR_ENUMS.items():
        enum = file.enum_type.add(name=name)
        enum.value.add(name=f"{name}_0", number=0)
        for value in values.split(", "):
            number, word = value.split()
            enum.value.add(name=f"{name}_{word}", number=int(number))
    for name, fields in THEIRS.items():
        message = file.message_type.add(name=name)
        for text in fields.split(", ") if fields else []:
            add_field(message, text)
    pool = descriptor_pool.DescriptorPool()
    for module in ("timestamp", "duration"):
        known = descriptor_pb2.FileDescriptorProto()
        source = descriptor_pool.Default().FindFileByName(f"google/protobuf/{module}.proto")
        source.CopyToProto(known)
        pool.Add(known)
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"old.v1.{name}")) for name in THEIRS}


def add_field(message: descriptor_pb2.DescriptorProto, text: str) -> None:
    number, name, kind = text.split(maxsplit=2)
    field = message.field.add(name=name, number=int(number), label=Descriptor.LABEL_OPTIONAL)
    if kind.startswith("map<"):
        key, value = kind[4:-1].split(",")
        entry = message.nested_type.add(name=f"{name.title().replace('_', '')}Entry")
        entry.options.map_entry = True
        add_field(entry, f"1 key {key}")
        add_field(entry, f"2 value {value}")
        field.label, field.type = Descriptor.LABEL_REPEATED, Descriptor.TYPE_MESSAGE
        field.type_name = f".old.v1.{message.name}.{entry.name}"
        return
    if kind.startswith("*"):
        field.label = Descriptor.LABEL_REPEATED
    elif kind.startswith("?"):
        field.proto3_optional = True
        field.oneof_index = len(message.oneof_decl)
        message.oneof_decl.add(name=f"_{name}")
    kind = kind.lstrip("*?")
    if kind in SCALARS:
        field.type = SCALARS[kind]
    elif kind in THEIR_ENUMS:
        field.type, field.type_name = Descriptor.TYPE_ENUM, f".old.v1.{kind}"
    else:
        field.type, field.type_name = Descriptor.TYPE_MESSAGE, WELL_KNOWN.get(kind, f".old.v1.{kind}")


OLD = old_contract()


class OldClient:
    """Calls with the old messages; `extra` bytes go along with every request."""

    def __init__(self, target: str, extra: bytes = b"") -> None:
        self.channel = grpc.aio.insecure_channel(target)
        self.extra = extra

    async def __call__(self, service: str, rpc: str, **fields: Any) -> Any:
        call = self.channel.unary_unary(f"/kagzi.v1.{service}/{rpc}")
        answer = await call(OLD[f"{rpc}Request"](**fields).SerializeToString() + self.extra, timeout=10)
        return OLD[f"{rpc}Response"].FromString(answer)


@pytest.mark.parametrize("extra", [b"", UNKNOWN], ids=["exactly", "with unknown fields"])
async def test_an_old_client_drives_a_run(extra: bytes) -> None:
    async with serving("memory://") as server:
        client = OldClient(server.target, extra)
        worker = await client(
            "WorkerService", "Register", namespace="default", task_queue="w", workflow_types=["w"], hostname="h", pid=1
        )
        assert worker.heartbeat_interval_secs >= 1
        run = await client("WorkflowService", "StartWorkflow", namespace="default", workflow_type="w")
        task = await client("WorkerService", "PollTask", namespace="default", worker_id=worker.worker_id)
        assert task.run_id.startswith(run.run_id)
        about = {"namespace": "default", "run_id": task.run_id}
        step = await client("WorkerService", "BeginStep", **about, step_name="s", kind=1)
        done = await client(
            "WorkerService", "CompleteStep", **about, step_id=step.step_id, output=OLD["Payload"](data=b"1")
        )
        assert (done.step.status, done.step.name, done.step.output.data) == (3, "s", b"1")
        assert (await client("WorkerService", "Heartbeat", worker_id=worker.worker_id)).accepted
        ended = await client("WorkerService", "FailWorkflow", **about, error=OLD["ErrorDetail"](message="no", code=7))
        assert ended.status == 5
        found = await client("WorkflowService", "GetWorkflow", namespace="default", run_id=run.run_id)
        assert (found.workflow.status, found.workflow.error.message) == (5, "no")
        listed = await client("WorkflowService", "ListWorkflows", namespace="default", status_filter=5)
        assert [workflow.run_id for workflow in listed.workflows] == [run.run_id]
        stats = await client("AdminService", "GetStats")
        assert (stats.total_workflows, stats.failed_workflows, stats.online_workers) == (1, 1, 1)
        again = await client("WorkflowService", "RetryWorkflow", namespace="default", run_id=run.run_id)
        assert again.new_run_id not in ("", run.run_id)
        gone = await client(
            "WorkflowService", "TerminateWorkflow", namespace="default", run_id=again.new_run_id, reason="enough"
        )
        assert (gone.terminated, gone.status) == (True, 6)
        await client.channel.close()


async def test_an_old_client_never_sees_a_status_it_does_not_know() -> None:
    async with serving("memory://") as server, Client(server.target) as client:
        run_id = await client.start("w", timeout_us=1)
        await client.workflows.WaitWorkflow(
            workflow_pb2.WaitWorkflowRequest(namespace="default", run_id=run_id, wait_us=10**7), timeout=15
        )
        old = OldClient(server.target)
        found = await old("WorkflowService", "GetWorkflow", namespace="default", run_id=run_id)
        assert (found.workflow.status, found.workflow.error.code) == (5, common_pb2.ERROR_CODE_TIMEOUT)
        cancelled = await old("WorkflowService", "CancelWorkflow", namespace="default", run_id=run_id)
        assert (cancelled.cancelled, cancelled.status) == (False, 5)
        await old.channel.close()


@pytest.mark.parametrize("path", METHODS)
async def test_unknown_fields_of_a_newer_client_change_nothing(path: str) -> None:
    async with serving("memory://") as server, Client(server.target) as client:
        raw = client.channel.unary_unary(path)
        seen = []
        for extra in (b"", UNKNOWN):
            try:
                await raw(extra, timeout=10)
                seen.append((grpc.StatusCode.OK, ""))
            except grpc.aio.AioRpcError as error:
                seen.append((error.code(), error.details() or ""))
        assert seen[0] == seen[1]


async def test_unknown_enum_values_of_a_newer_client_are_refused_by_name() -> None:
    async with serving("memory://") as server, Client(server.target) as client:
        run_id = await client.start("w")
        await client.register("w")
        task = await client.poll("w")
        chunk = worker_pb2.Chunk(run_id=run_id, token=task.run_id.partition(".")[2])
        chunk.steps.add(step_id="s", attempt=1, kind=1, status=77)  # type: ignore[arg-type]
        calls: list[tuple[Callable[[], Awaitable[Any]], str]] = [
            (lambda: client.start("w", on_conflict=77), "on_conflict 77"),
            (
                lambda: client.workflows.ListWorkflows(workflow_pb2.ListWorkflowsRequest(status_filter=77)),  # type: ignore[arg-type]
                "status_filter 77",
            ),
            (
                lambda: client.admin.ListWorkers(admin_pb2.ListWorkersRequest(status_filter=77)),  # type: ignore[arg-type]
                "status_filter 77",
            ),
            (lambda: client.begin(task.run_id, "s", kind=77), "kind 77"),
        ]
        for call, words in calls:
            with pytest.raises(grpc.aio.AioRpcError, match=words) as refused:
                await call()
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert words in detail_of(refused.value).message
        results = await client.workers.CommitBatch(worker_pb2.CommitBatchRequest(chunks=[chunk]))
        assert "status 77 of step 's'" in results.results[0].error.message
        # An end that only a newer server knows is no end at all.
        chunk = worker_pb2.Chunk.FromString(
            worker_pb2.Chunk(run_id=chunk.run_id, token=chunk.token).SerializeToString() + b"\xf2\x06\x00"
        )
        results = await client.workers.CommitBatch(worker_pb2.CommitBatchRequest(chunks=[chunk]))
        assert results.results[0].error.code == common_pb2.ERROR_CODE_INVALID_ARGUMENT
        assert not await client.steps(run_id)


# Our client, with servers of other versions.


class OtherServer:
    """A server of another version: answers what it is told to, and knows no other call."""

    def __init__(self, **answers: Message) -> None:
        self.answers = answers
        self.info = admin_pb2.GetServerInfoResponse(
            version="0.0.9", api_version="v1", supported_features=handshake.NEEDED, min_sdk_version="0.1.0"
        )
        self.answers.setdefault("GetServerInfo", self.info)

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        answer = self.answers.get(details.method.rpartition("/")[2])  # type: ignore[attr-defined]
        if answer is None:
            return None

        async def handle(request: bytes, context: Any) -> bytes:
            return answer.SerializeToString()

        return grpc.unary_unary_rpc_method_handler(handle)


@asynccontextmanager
async def other_server(other: OtherServer) -> AsyncIterator[str]:
    server = grpc.aio.server()
    server.add_generic_rpc_handlers([other])  # type: ignore[list-item]
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"supported_features": ["retry"]},
            r"0\.0\.9, this client .* lacks batches, packed-chunks, history-pages, wait",
        ),
        ({"api_version": "v2"}, r"0\.0\.9, this client .* speaks 'v2'"),
        ({"min_sdk_version": "999.1"}, r"0\.0\.9, this client .* needs clients of 999\.1 or later. Upgrade the client"),
    ],
)
async def test_a_server_that_does_not_suit_is_refused_when_connecting(changes: dict[str, Any], words: str) -> None:
    other = OtherServer()
    for field, value in changes.items():
        other.info.ClearField(field)  # type: ignore[arg-type]
        other.info.MergeFrom(admin_pb2.GetServerInfoResponse(**{field: value}))
    async with other_server(other) as target:
        engine = RemoteEngine(target)
        with pytest.raises(VersionMismatch, match=words) as refused:
            await engine.open()
        assert target in str(refused.value)
        assert __version__ in str(refused.value)
        await engine.close()


async def test_something_else_that_speaks_grpc() -> None:
    other = OtherServer()
    del other.answers["GetServerInfo"]
    async with other_server(other) as target:
        with pytest.raises(VersionMismatch, match="Check that it is a Kagzi server"):
            await RemoteEngine(target).open()


async def test_calls_that_an_old_server_lacks() -> None:
    async with other_server(OtherServer()) as target, RemoteEngine(target) as engine:
        for call in (
            lambda: engine.workflows.get("default", UUID),
            lambda: engine.admin.count_runs("default"),
            lambda: engine.namespaces.get("default"),
            lambda: engine.workers.deregister(UUID),
        ):
            with pytest.raises(VersionMismatch, match=f"version {__version__}; upgrade the server"):
                await call()  # type: ignore[no-untyped-call]


async def test_a_server_that_passes_over_what_it_does_not_know_has_stored_nothing() -> None:
    """One of several, say, that is older than the one whose version was looked at."""
    chunk = Chunk(namespace="default", run_id=UUID, token=UUID, operations=(CompleteRun(output=b"1"),))
    other = OtherServer(CommitBatch=worker_pb2.CommitBatchResponse())
    async with other_server(other) as target, RemoteEngine(target) as engine:
        with pytest.raises(VersionMismatch, match="0 answers to 1 chunks"):
            await engine.workers.commit(chunk)


class Fleet:
    """Apps whose workers serve the same workflow: one that the server does not understand, and one that it does."""

    def __init__(self, target: str) -> None:
        self.bodies: list[str] = []
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.new, self.order = self._app(target, "new")
        self.suited, _ = self._app(target, "suited")

    def _app(self, target: str, name: str) -> tuple[Kagzi, Workflow[[], str]]:
        app = Kagzi(f"grpc://{target}")

        @app.step
        async def work() -> str:
            self.bodies.append(name)
            await self.go_on.wait()
            return name

        @app.workflow
        async def order() -> str:
            return await work()

        return app, order

    async def __aenter__(self) -> Fleet:
        await self.new.open()
        await self.suited.open()
        workers: Any = self.new.engine.workers
        workers._chunks._send = self._pass_over
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.new.close()
        await self.suited.close()

    async def _pass_over(self, namespace: str, packed: list[bytes]) -> list[Any]:
        raise VersionMismatch("0 answers")


async def test_a_worker_whose_reports_are_not_understood_stops_and_others_go_on() -> None:
    """It would execute one run after the other for nothing, until they pass for poison."""
    async with serving("memory://") as server, Fleet(server.target) as fleet:
        async with fleet.new.worker() as worker:
            runs = [await fleet.order.start() for _ in range(3)]
            async with asyncio.timeout(20):
                await worker.told_to_stop.wait()
            assert isinstance(worker.refusal, VersionMismatch)
            assert not worker._held
        tried = fleet.bodies.count("new")
        async with fleet.suited.worker():  # whose lease is as long; the other one's runs came back when it left
            assert [await fleet.suited.handle(run.id).result(timeout=20) for run in runs] == ["suited"] * 3
        assert fleet.bodies.count("new") == tried <= 3


async def test_a_worker_that_is_stopping_does_not_wait_for_reports_that_are_not_understood() -> None:
    async with serving("memory://") as server, Fleet(server.target) as fleet:
        fleet.go_on.clear()
        hosting = AsyncExitStack()
        worker = await hosting.enter_async_context(fleet.new.worker())
        await fleet.order.start()
        async with asyncio.timeout(20):
            while not fleet.bodies:
                await asyncio.sleep(0.01)
            stopping = asyncio.create_task(hosting.aclose())
            while not worker.draining:
                await asyncio.sleep(0)
            fleet.go_on.set()
            await stopping
        assert worker.refusal is None


async def test_answers_without_our_fields_are_understood() -> None:
    moment = timestamp_pb2.Timestamp(seconds=5)
    error = common_pb2.ErrorDetail(code=common_pb2.ERROR_CODE_TIMEOUT, message="too late")
    workflow = workflow_pb2.Workflow(
        namespace="default", run_id=UUID, workflow_type="w", status=workflow_pb2.WORKFLOW_STATUS_FAILED, error=error
    )
    step = worker_pb2.Step(
        run_id=UUID,
        name="s",
        kind=worker_pb2.STEP_KIND_FUNCTION,
        status=worker_pb2.STEP_STATUS_FAILED,
        attempt_number=1,
        error=common_pb2.ErrorDetail(message="no"),
        started_at=moment,
    )
    worker = worker_pb2.Worker(
        worker_id=UUID, task_queue="q", status=worker_pb2.WORKER_STATUS_ONLINE, workflow_types=["w"]
    )
    other = OtherServer(
        GetWorkflow=workflow_pb2.GetWorkflowResponse(workflow=workflow),
        ListSteps=admin_pb2.ListStepsResponse(steps=[step]),
        ListWorkers=admin_pb2.ListWorkersResponse(workers=[worker]),
        GetStats=admin_pb2.GetStatsResponse(total_workflows=5),
        RetryWorkflow=workflow_pb2.RetryWorkflowResponse(new_run_id=UUID),
        HealthCheck=admin_pb2.HealthCheckResponse(
            status=admin_pb2.SERVING_STATUS_SERVING, message="degraded; workers: none", timestamp=moment
        ),
    )
    async with other_server(other) as target, RemoteEngine(target) as engine:
        assert await engine.health() == Health(
            (ComponentHealth("server", HealthStatus.DEGRADED, "workers: none"),), checked_at=5_000_000
        )
        run = await engine.workflows.get("default", UUID)
        assert run.status is RunStatus.TIMED_OUT
        assert run.error is not None
        assert Failure.decode(run.error).message == "too late"
        (found,) = await engine.workflows.steps("default", UUID)
        assert (found.step_id, found.status, found.started_at) == ("s", StepStatus.FAILED, 5_000_000)
        assert found.error is not None
        assert Failure.decode(found.error).message == "no"
        (seen,) = (await engine.admin.list_workers(WorkerFilter())).items
        assert (seen.queues, seen.types, seen.status) == (("q",), (WorkflowType("w"),), WorkerStatus.ONLINE)
        with pytest.raises(VersionMismatch, match="count of runs"):
            await engine.admin.count_runs("default")


async def test_what_a_newer_server_says_is_understood_as_far_as_possible() -> None:
    known = workflow_pb2.Workflow(run_id=UUID, status=workflow_pb2.WORKFLOW_STATUS_RUNNING, exact_status=77)  # type: ignore[arg-type]
    newer = workflow_pb2.GetWorkflowResponse.FromString(
        workflow_pb2.GetWorkflowResponse(workflow=known).SerializeToString() + UNKNOWN
    )
    unknown = worker_pb2.Worker(worker_id=UUID, status=77)  # type: ignore[arg-type]
    claim = worker_pb2.Claim(run_id=UUID, token=UUID, workflow_type="w", version="1", task_queue="q")
    claim.history.add(step_id="s", attempt=1, kind=77, status=3)  # type: ignore[arg-type]
    other = OtherServer(
        GetWorkflow=newer,
        GetWorker=admin_pb2.GetWorkerResponse(worker=unknown),
        PollTasks=worker_pb2.PollTasksResponse(claims=[claim]),
        ListSteps=admin_pb2.ListStepsResponse(steps=[worker_pb2.Step(name="s", kind=1, status=77)]),  # type: ignore[arg-type]
    )
    async with other_server(other) as target, RemoteEngine(target) as engine:
        assert (await engine.workflows.get("default", UUID)).status is RunStatus.RUNNING
        with pytest.raises(VersionMismatch, match="status 77 of a worker"):
            await engine.admin.get_worker(UUID)
        with pytest.raises(VersionMismatch, match="status 77 of a step"):
            await engine.workflows.steps("default", UUID)
        poll = Poll(namespace="default", worker_id=UUID, queues=("q",), types=(), limit=1, number=1, token=UUID, wait=0)
        with pytest.raises(VersionMismatch, match="kind 77 of a step"):
            await engine.workers.poll(poll)
