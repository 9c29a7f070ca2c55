"""What bad input gets: documented codes, never INTERNAL, nothing written, and a server that serves on."""

from __future__ import annotations

import logging
import random
import re
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest
from google.protobuf.message import Message

from kagzi._proto.v1 import admin_pb2, common_pb2, job_pb2, namespace_pb2, worker_pb2, workflow_pb2
from kagzi._proto.v1.exchange_pb2 import ExchangedAnswer, ExchangedCall, ExchangeRequest, ExchangeResponse
from kagzi.connect import make_store
from kagzi.core.instant import SECOND
from kagzi.engine.local import LocalEngine
from kagzi.engine.settings import EngineSettings
from kagzi.rpc.methods import EXCHANGE, METHODS, Method
from kagzi.rpc.server.server import RpcServer
from tests.campaigns import length
from tests.rpc.dumps import Dump, PostgresDump, SqliteDump
from tests.rpc.hostile import UUID, Way, broken, hostile, spoiled, ways
from tests.rpc.streams import Stream
from tests.rpc.support import Client, detail_of, engine_on, payload, serving

OK = grpc.StatusCode.OK
CODES = {
    OK,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.ABORTED,
}
STATUSES = {status.value[0]: status for status in grpc.StatusCode}
LEAKS = re.compile(
    r"sqlite|select |insert |update |asyncpg|postgres|traceback|/home|/work|/tmp|\.py\b|kagzi\.workflow_runs|127\.0\.0",
    re.IGNORECASE,
)
SECONDS = 30.0  # for each call
# What has these done to it cannot have it done again.
CONSUMING = {
    "CancelWorkflow",
    "CommitBatch",
    "CompleteStep",
    "CompleteWorkflow",
    "CreateNamespace",
    "DeleteWorkflowSchedule",
    "Deregister",
    "DisableNamespace",
    "DrainWorker",
    "FailStep",
    "FailWorkflow",
    "Sleep",
    "SpawnChild",
    "StartJob",
    "TerminateWorkflow",
}
LEASE = 3600 * SECOND  # so that nothing changes by itself
STEP = worker_pb2.StepRecord(step_id="s", attempt=1, kind=1, status=3, completed_seq=1, started_at_us=1)


class World:
    """A server's world with something of everything in it, and of somebody else's; and a good request for each RPC."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.numbers = 0
        self.requests: dict[str, Message] = {}

    async def furnish(self) -> None:
        """Anew whenever a call has had an effect, so that the next one finds what it asks for."""
        client = self.client
        self.numbers += 1
        await client.namespaces.EnableNamespace(namespace_pb2.EnableNamespaceRequest(namespace="default"))
        queue = f"queue-{self.numbers}"
        worker_id = await client.register("w")
        run_id = await client.start("w", external_id=f"one-{self.numbers}", task_queue=queue)
        other_id = await client.start("w", external_id=f"other-{self.numbers}")
        handle = (await client.poll(queue)).run_id
        assert handle.startswith(run_id)
        step_id = (await client.begin(handle, "s")).step_id
        sleep_id = (await client.begin(handle, "nap", 2)).step_id
        child_id = (await client.begin(handle, "kid", 3)).step_id
        self.requests = self._requests(worker_id, run_id, other_id, handle, step_id, sleep_id, child_id)

    def _requests(
        self, worker_id: str, run_id: str, other_id: str, handle: str, step_id: str, sleep_id: str, child_id: str
    ) -> dict[str, Message]:
        token = handle.partition(".")[2]
        about: dict[str, Any] = {"namespace": "default", "run_id": other_id}
        held: dict[str, Any] = {"namespace": "default", "run_id": handle}
        page = common_pb2.PageRequest(page_size=5)
        start = workflow_pb2.StartWorkflowRequest(
            namespace="default", workflow_type="w", task_queue="w", input=payload(b"1"), version="1"
        )
        kid = workflow_pb2.StartWorkflowRequest(workflow_type="kid")
        chunk = worker_pb2.Chunk(run_id=run_id, token=token, steps=[STEP])
        error = common_pb2.ErrorDetail(message="no", code=common_pb2.ERROR_CODE_INTERNAL)
        retry = common_pb2.RetryPolicy(maximum_attempts=3)
        namespace = f"space-{self.numbers}"
        good = [
            start,
            workflow_pb2.StartWorkflowsRequest(namespace="default", starts=[start]),
            workflow_pb2.GetWorkflowRequest(**about),
            workflow_pb2.GetWorkflowByExternalIdRequest(namespace="default", external_id=f"one-{self.numbers}"),
            workflow_pb2.ListWorkflowsRequest(namespace="default", page=page),
            workflow_pb2.CancelWorkflowRequest(**about),
            workflow_pb2.TerminateWorkflowRequest(**about, reason="enough"),
            workflow_pb2.RetryWorkflowRequest(**about),
            workflow_pb2.WaitWorkflowRequest(**about),
            workflow_pb2.WaitWorkflowsRequest(namespace="default", run_ids=[other_id]),
            worker_pb2.RegisterRequest(namespace="default", task_queue="w", workflow_types=["w"], hostname="h", pid=1),
            worker_pb2.HeartbeatRequest(worker_id=worker_id),
            worker_pb2.DeregisterRequest(worker_id=worker_id),
            worker_pb2.PollTaskRequest(namespace="default", worker_id=worker_id, task_queue="none"),
            worker_pb2.PollTasksRequest(
                namespace="default", worker_id=worker_id, queues=["none"], limit=1, number=1, token=UUID
            ),
            worker_pb2.GetHistoryRequest(namespace="default", run_id=run_id, token=token),
            worker_pb2.CommitBatchRequest(namespace="default", chunks=[chunk]),
            worker_pb2.BeginStepRequest(**held, step_name="t", kind=1, input=payload(b"1"), retry_policy=retry),
            worker_pb2.CompleteStepRequest(**held, step_id=step_id, output=payload(b"1")),
            worker_pb2.FailStepRequest(**held, step_id=step_id, error=error),
            worker_pb2.SleepRequest(**held, step_id=sleep_id),
            worker_pb2.SpawnChildRequest(**held, step_id=child_id, start=kid),
            worker_pb2.AwaitChildRequest(**held, step_id=child_id),
            worker_pb2.CompleteWorkflowRequest(**held, output=payload(b"1")),
            worker_pb2.FailWorkflowRequest(**held, error=error),
            admin_pb2.ListWorkersRequest(namespace="default", page=page),
            admin_pb2.GetWorkerRequest(worker_id=worker_id),
            admin_pb2.DrainWorkerRequest(worker_id=worker_id),
            admin_pb2.GetStepRequest(namespace="default", step_id=step_id),
            admin_pb2.ListStepsRequest(namespace="default", run_id=run_id, page=page),
            admin_pb2.HealthCheckRequest(),
            admin_pb2.GetStatsRequest(namespace="default"),
            admin_pb2.GetQueueDepthRequest(namespace="default"),
            admin_pb2.ListWorkflowTypesRequest(namespace="default", page=page),
            admin_pb2.GetServerInfoRequest(),
            namespace_pb2.CreateNamespaceRequest(namespace=namespace),
            namespace_pb2.GetNamespaceRequest(namespace="tenant"),
            namespace_pb2.ListNamespacesRequest(page=page),
            namespace_pb2.UpdateNamespaceRequest(namespace="tenant", description="theirs"),
            namespace_pb2.EnableNamespaceRequest(namespace="tenant"),
            namespace_pb2.DisableNamespaceRequest(namespace="tenant"),
            job_pb2.GetJobRequest(namespace="default", job_id=other_id),
            job_pb2.ListJobsRequest(namespace="default", page=page),
            job_pb2.CancelJobRequest(namespace="default", job_id=other_id),
            job_pb2.DeleteWorkflowRequest(**about),
        ]
        some = workflow_pb2.ListWorkflowsRequest(namespace="default", task_queue="none")
        job = job_pb2.StartJobRequest(namespace="default", job_id=other_id, action="cancel", filter=some)
        requests: dict[str, Message] = {"StartJob": job, "PreviewJob": job}
        return requests | {type(message).__name__.removesuffix("Request"): message for message in good}

    def good(self, method: Method) -> Message:
        return self.requests.get(method.rpc) or method.request()


class Prober:
    """Makes calls and looks at what becomes of them."""

    def __init__(self, client: Client, dump: Dump, world: World) -> None:
        self.client = client
        self.dump = dump
        self.world = world
        self.seen: Counter[grpc.StatusCode] = Counter()
        self.thorough = isinstance(dump, SqliteDump)
        self.stream = Stream(client.channel, seconds=None)
        self._numbers = 0
        self._raw: dict[str, Any] = {}
        self.before: dict[str, str] = {}
        self._changes = 0

    async def begin(self) -> None:
        if self.world.numbers % 10 == 0:
            await self.dump.clear()
        await self.world.furnish()
        self.before = await self.dump()

    async def call(self, method: Method, data: bytes, metadata: Any = None) -> grpc.StatusCode:
        raw = self._raw.get(method.path)
        if raw is None:
            raw = self._raw[method.path] = self.client.channel.unary_unary(method.path)
        code, text = OK, ""
        try:
            await raw(data, timeout=SECONDS, metadata=metadata)
        except grpc.aio.AioRpcError as error:
            code, text = error.code(), error.details() or ""
            if code is not grpc.StatusCode.UNIMPLEMENTED:
                detail = detail_of(error)
                assert detail.message
                assert detail.code
                text = f"{text} {detail}"
        return await self._judge(method.rpc, data, code, text)

    async def call_on_stream(self, method: Method, data: bytes) -> grpc.StatusCode:
        """On the one that carries them all: whatever is asked, it goes on."""
        self._numbers += 1
        timeout_us = round(SECONDS * SECOND)
        await self.stream.ask(
            ExchangedCall(number=self._numbers, method=method.path, request=data, timeout_us=timeout_us)
        )
        answer = (await self.stream.answers(1))[self._numbers]
        return await self._judge(method.rpc, data, *_outcome(answer))

    async def send(self, data: bytes) -> grpc.StatusCode:
        """A message on a stream of its own; what becomes of that. The calls in it get codes like any others."""
        stream = Stream(self.client.channel, seconds=SECONDS)
        await stream.call.write(data)
        await stream.call.done_writing()
        code, text = OK, ""
        try:
            while (message := await stream.call.read()) is not grpc.aio.EOF:
                for answer in ExchangeResponse.FromString(message).answers:
                    await self._judge(EXCHANGE.rpc, data, *_outcome(answer))
        except grpc.aio.AioRpcError as error:
            code, text = error.code(), f"{error.details()} {detail_of(error)}"
        return await self._judge(EXCHANGE.rpc, data, code, text)

    async def _judge(self, rpc: str, data: bytes, code: grpc.StatusCode, text: str) -> grpc.StatusCode:
        self.seen[code] += 1
        about = (rpc, code, text[:500], data[:300])
        # On a stream the name of a method may be spoilt, too.
        assert code in CODES or (rpc == "Exchange" and code is grpc.StatusCode.UNIMPLEMENTED), about
        assert not LEAKS.search(text), about
        after = await self.dump()
        if after != self.before:
            changed = {table for table in after if after[table] != self.before[table]}
            assert code is OK, (*about, changed)
            self.before = after
            self._changes += 1
            if rpc in CONSUMING or self._changes % 50 == 0:
                await self.begin()
        return code


def _outcome(answer: ExchangedAnswer) -> tuple[grpc.StatusCode, str]:
    code = STATUSES[answer.status]
    if code is OK:
        return code, ""
    assert answer.error.message
    assert answer.error.code
    return code, str(answer.error)


@pytest.fixture
async def prober(
    url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Prober]:
    caplog.set_level(logging.ERROR)
    # Calls that wait do so until this long before their caller gives up, which is now; and whoever gave one up would
    # not know when it changes something.
    monkeypatch.setattr("kagzi.rpc.server.services.host.ANSWER_SECONDS", SECONDS)
    monkeypatch.setattr("kagzi.engine.heartbeats._LONGEST_WINDOW", 0)  # nobody else's heartbeat is waited for
    dump: SqliteDump | PostgresDump
    # Without background duties: what changes, a call has changed.
    engine = LocalEngine(make_store(url), settings=EngineSettings(lease=LEASE))
    await engine.open()
    async with RpcServer(engine) as server, Client(server.target) as client:
        dump = await PostgresDump.connect(url) if url.startswith("postgres") else SqliteDump(str(tmp_path / "kagzi.db"))
        theirs = Client(server.target, "tenant")
        await theirs.start("w")
        made = Prober(client, dump, World(client))
        await made.begin()
        yield made
        info = await client.admin.GetServerInfo(admin_pb2.GetServerInfoRequest(), timeout=5)
        assert info.api_version == "v1"
        assert await client.start("w")
        await theirs.channel.close()
        await dump.close()
    await engine.close()
    assert not caplog.records, caplog.text


# What a field of a packed chunk does not expect, or just so.
HOSTILE: list[Any] = [
    *(None, True, 0, -1, 2**31, 2**63, -(2**63), 1.5),
    *("", "\0", "x" * 5000, "ф", UUID, b"", b"\0", [], {}),
]
SERVICES = sorted({method.service for method in METHODS.values()})


def methods_of(service: str) -> list[Method]:
    return [method for method in METHODS.values() if method.service == service]


# How many of the bad things are tried.
THOROUGHLY, QUICKLY, ON_A_STREAM = length((0.15, 0.06, 0.07), (0.6, 0.25, 0.3))
BAD_ALL_OVER = length(2, 8)
# What is refused before a database is asked is so on the other one, too.
BOTH = ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)]
ONE_DATABASE_IN_THE_SUITE = pytest.mark.parametrize("url", length(["sqlite"], BOTH), indirect=True)


def spoiling(service: str, share: float) -> list[tuple[Method, Way]]:
    chance = random.Random(service)
    return [(method, way) for method in methods_of(service) for way in ways(method.request) if chance.random() < share]


def test_the_calls_are_thousands() -> None:
    """On both databases together, even without those that are made by hand."""
    shares = (THOROUGHLY, QUICKLY, *[ON_A_STREAM] * length(1, 2))
    one_bad_thing = sum(len(spoiling(service, share)) for service in SERVICES for share in shares)
    no_request = len(METHODS) * (len(list(broken(b"", random.Random(0)))) + BAD_ALL_OVER)
    assert one_bad_thing + length(1, 2) * no_request >= length(900, 5_000)


@pytest.mark.parametrize("service", SERVICES)
async def test_one_bad_thing_in_a_good_request(prober: Prober, service: str) -> None:
    for method, way in spoiling(service, THOROUGHLY if prober.thorough else QUICKLY):
        request = spoiled(prober.world.good(method), way)
        await prober.call(method, request.SerializeToString())
    assert sum(prober.seen.values()) >= length(12, 50), prober.seen
    if service != "WorkflowScheduleService":
        assert len(prober.seen) > 2, prober.seen  # some were good, and others bad in several ways


@ONE_DATABASE_IN_THE_SUITE
@pytest.mark.parametrize("service", SERVICES)
async def test_one_bad_thing_in_a_call_on_a_stream(prober: Prober, service: str) -> None:
    for method, way in spoiling(service, ON_A_STREAM):
        request = spoiled(prober.world.good(method), way)
        await prober.call_on_stream(method, request.SerializeToString())
    if service != "WorkflowScheduleService":
        assert len(prober.seen) > 2, prober.seen


@ONE_DATABASE_IN_THE_SUITE
@pytest.mark.parametrize("service", SERVICES)
async def test_everything_bad_at_once_and_what_is_no_request(prober: Prober, service: str) -> None:
    chance = random.Random(service)
    for method in methods_of(service):
        for data in broken(prober.world.good(method).SerializeToString(), chance):
            await prober.call(method, data)
        for _ in range(BAD_ALL_OVER):
            request = method.request()
            hostile(request, chance)
            await prober.call(method, request.SerializeToString())


@ONE_DATABASE_IN_THE_SUITE
async def test_messages_on_a_stream_that_are_none(prober: Prober) -> None:
    """One bad thing, everything bad, and no message at all. The stream may end; others and the server go on."""
    chance = random.Random(4)
    calls = [
        ExchangedCall(number=number, method=method.path, request=prober.world.good(method).SerializeToString())
        for number, method in enumerate(METHODS.values())
        if method.rpc in ("WaitWorkflow", "GetWorkflow", "GetServerInfo")
    ]
    good = ExchangeRequest(calls=calls, given_up=[99])
    messages = [spoiled(good, way).SerializeToString() for way in ways(ExchangeRequest)]
    for _ in range(5):
        messages += broken(good.SerializeToString(), chance)
    for _ in range(50):
        request = ExchangeRequest()
        hostile(request, chance)
        messages.append(request.SerializeToString())
    twice = ExchangeRequest(calls=[*calls, calls[0]]).SerializeToString()
    before, ends = prober.before, Counter([await prober.send(message) for message in (*messages, twice)])
    assert ends.keys() == {OK, grpc.StatusCode.INVALID_ARGUMENT}, ends
    assert prober.seen.keys() > ends.keys(), prober.seen  # calls in them were refused in other ways
    assert await prober.send(twice) is grpc.StatusCode.INVALID_ARGUMENT
    assert await prober.send(good.SerializeToString()) is OK
    assert prober.before == before


async def test_packed_chunks_that_were_tampered_with(prober: Prober) -> None:
    """Each is answered by itself; one that is refused changes nothing."""
    chance = random.Random(3)
    answers: Counter[str] = Counter()
    for _ in range(150 if prober.thorough else 60):
        request: Any = prober.world.requests["CommitBatch"]
        run_id, token = request.chunks[0].run_id, request.chunks[0].token
        step = [2, "t", 1, "FUNCTION", chance.randrange(9), 1, 2, None, None, b"1", 7, b"2", None]
        parts: list[Any] = [run_id, token, [step, [14, b"9"]][: chance.randrange(1, 3)]]
        match chance.randrange(4):
            case 0:
                step[chance.randrange(len(step))] = chance.choice(HOSTILE)
            case 1:
                parts[chance.randrange(3)] = chance.choice(HOSTILE)
            case 2:
                parts[2] = [[chance.randrange(20), *[chance.choice(HOSTILE) for _ in range(chance.randrange(13))]]]
        packed = bytearray(msgspec.msgpack.encode(parts))
        if chance.random() < 0.3:
            packed[chance.randrange(len(packed))] = chance.randrange(256)
        sent = worker_pb2.CommitBatchRequest(namespace="default", packed=[bytes(packed)])
        (result,) = (await prober.client.workers.CommitBatch(sent, timeout=SECONDS)).results
        after = await prober.dump()
        if result.HasField("error"):
            # An operation that it does not know may be one of a newer worker.
            unknown = result.error.exact_code == "VERSION_MISMATCH"
            assert unknown or result.error.code == common_pb2.ERROR_CODE_INVALID_ARGUMENT, (result, packed)
            assert not LEAKS.search(result.error.message), result
            assert after == prober.before, (result, packed)
        answers[worker_pb2.ChunkAnswer.Name(result.answer)] += 1
        if after != prober.before:
            await prober.begin()
    assert len(answers) == 3, answers  # done, no such lease, refused


async def test_forged_page_tokens(prober: Prober) -> None:
    client = prober.client
    for number in range(6):
        await client.start("w", external_id=f"more-{number}")
        await client.register("w")
        await client.namespaces.CreateNamespace(namespace_pb2.CreateNamespaceRequest(namespace=f"more-{number}"))
    await prober.begin()
    chance = random.Random(1)
    tokens = []
    for rpc in ("ListWorkflows", "ListWorkers", "ListNamespaces"):
        request: Any = prober.world.requests[rpc]
        request.page.page_size = 1
        method = next(method for method in METHODS.values() if method.rpc == rpc)
        raw = client.channel.unary_unary(method.path)
        token = method.response.FromString(await raw(request.SerializeToString(), timeout=10)).page.next_page_token  # type: ignore[attr-defined]
        tokens.append((method, request, token))
    for method, request, token in tokens:
        assert token
        forgeries = [other for _, _, other in tokens if other != token]
        forgeries += [token[:-2], token + "A", token.swapcase(), "=" * 50, "A" * 3000, "ф" * 20]
        for _ in range(20):
            place = chance.randrange(len(token) - 2)  # the last letter holds fewer bits than it could
            forgeries.append(token[:place] + chance.choice("xyzXYZ019_-") + token[place + 1 :])
        for forged in forgeries:
            if forged == token:
                continue
            request.page.page_token = forged
            code = await prober.call(method, request.SerializeToString())
            assert code is grpc.StatusCode.INVALID_ARGUMENT, (method.rpc, forged)
        request.page.page_token = token
        if hasattr(request, "namespace"):
            request.namespace = "tenant"  # a good token, for somebody else's list
            assert await prober.call(method, request.SerializeToString()) is grpc.StatusCode.INVALID_ARGUMENT


async def test_what_is_somebody_elses_is_answered_like_what_is_not_there(prober: Prober) -> None:
    """Run ids, handles and steps of the default namespace, asked for in another one, and made-up ones beside them."""
    unknown = UUID
    for rpc in sorted(prober.world.requests.keys() - {"StartWorkflow"}):
        request = prober.world.requests[rpc]
        fields = request.DESCRIPTOR.fields_by_name
        if "namespace" not in fields or not {"run_id", "step_id", "external_id"} & set(fields):
            continue
        method = next(method for method in METHODS.values() if method.rpc == rpc)
        answers = []
        for forged in (False, True):
            asked: Any = method.request()
            asked.CopyFrom(request)
            asked.namespace = "tenant"
            own = [getattr(request, name) for name in ("run_id", "step_id", "external_id") if name in fields]
            if forged:
                run_id = own[0].partition(".")[0]
                for name in ("run_id", "step_id", "external_id"):
                    if name in fields:
                        setattr(asked, name, getattr(asked, name).replace(run_id, unknown))
            raw = prober.client.channel.unary_unary(method.path)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await raw(asked.SerializeToString(), timeout=10.0)
            text = detail_of(refused.value).message.replace(own[0].partition(".")[0], unknown)
            answers.append((refused.value.code(), text))
        assert answers[0] == answers[1], rpc
        assert await prober.dump() == prober.before


@ONE_DATABASE_IN_THE_SUITE
@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("traceparent", ["", "00-0-0-0", "x" * 500, "00-" + "f" * 32 + "-" + "f" * 16 + "-ff", "'; DROP TABLE"]),
        ("tracestate", ["a=b," * 200, "=", "~" * 600]),
        ("authorization", ["Bearer", "Bearer " + "x" * 4000, "Basic Og==", "bearer kagzi_..", "Negotiate"]),
        ("x-kagzi-key", ["", "%00", "k" * 4000]),
        ("baggage", ["a" * 4000]),
        ("grpc-status-details-bin", [b"\x00\xff" * 100]),
        ("garbage-bin", [b"", bytes(range(256))]),
        ("kagzi-version", ["999.0", "-1"]),
    ],
)
async def test_metadata_that_is_garbage(prober: Prober, key: str, values: list[str | bytes]) -> None:
    for rpc in ("StartWorkflow", "GetWorkflow", "PollTask", "CommitBatch", "GetStats", "ListNamespaces"):
        method = next(method for method in METHODS.values() if method.rpc == rpc)
        for value in values:
            await prober.call(method, prober.world.good(method).SerializeToString(), ((key, value),))
    assert prober.seen[OK] > len(values)


async def test_what_is_too_large_is_refused_and_the_server_serves_on() -> None:
    async with serving("memory://") as server, Client(server.target) as client:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await client.start("w", b"x" * 20_000_000)
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await client.start("w", b"x" * 3_000_000)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert detail_of(refused.value).exact_code == "PAYLOAD_TOO_LARGE"
        with pytest.raises(grpc.aio.AioRpcError):
            await client.workflows.GetWorkflow(
                workflow_pb2.GetWorkflowRequest(run_id=UUID), metadata=[("x-large", "x" * 60_000)], timeout=5
            )
        listing = await client.workflows.ListWorkflows(workflow_pb2.ListWorkflowsRequest(), timeout=5)
        assert not listing.workflows


async def test_what_nobody_foresaw_has_an_id_and_no_detail(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with engine_on("memory://") as engine:

        async def broken(*_: object) -> None:
            raise RuntimeError("SELECT secret FROM /var/lib/kagzi.db")

        monkeypatch.setattr(engine.workflows, "get", broken)
        async with RpcServer(engine) as server, Client(server.target) as client:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await client.get(UUID)
    assert refused.value.code() is grpc.StatusCode.INTERNAL
    detail = detail_of(refused.value)
    assert "secret" not in f"{refused.value.details()} {detail}"
    assert detail.code == common_pb2.ERROR_CODE_INTERNAL
    request = detail.metadata["request_id"]
    assert request in detail.message
    assert request in caplog.text
    assert "SELECT secret" in caplog.text
