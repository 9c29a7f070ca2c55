"""RemoteEngine and the server's edges: restarts, blocked loops, lost answers, closing, probes."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest
from grpc import _channel as channel_of_grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from kagzi import Kagzi, MissingDependency, Unavailable
from kagzi._proto.v1 import worker_pb2, workflow_pb2
from kagzi.api.operations import Chunk, ChunkAnswer, CompleteRun, CompleteStep, StartRun, TerminateRun
from kagzi.api.reply import Reply
from kagzi.api.workers import Heartbeat, Poll, Registration
from kagzi.connect import connect
from kagzi.core.instant import SECOND
from kagzi.core.worker import WorkflowType
from kagzi.errors import (
    InvalidRequest,
    KagziError,
    LeaseLost,
    LimitExceeded,
    NotFound,
    PermissionDenied,
    VersionMismatch,
)
from kagzi.ids import RandomIds
from kagzi.rpc import limits
from kagzi.rpc.client import channel
from kagzi.rpc.client.remote import RemoteEngine
from kagzi.rpc.convert.packed import pack_chunk
from kagzi.rpc.convert.work import poll_from_wire, poll_to_wire
from kagzi.rpc.limits import CALL_ITEMS
from kagzi.rpc.methods import METHODS
from kagzi.rpc.server.server import RpcServer
from kagzi.rpc.server.services import histories
from kagzi.rpc.status import error_of
from tests.rpc.support import SHORT, Client, GuardOf, engine_on, serving

IDS = RandomIds(lambda: time.time_ns() // 1000)


def start_of(run_id: str, **fields: Any) -> StartRun:
    return StartRun(namespace="default", run_id=run_id, workflow_type="w", task_queue="q", **fields)


def poll_of(worker_id: str, number: int = 1, **fields: Any) -> Poll:
    return Poll(
        namespace="default",
        worker_id=worker_id,
        queues=("q",),
        types=(WorkflowType("w"),),
        limit=10,
        number=number,
        token=IDS.token(),
        wait=fields.pop("wait", 0),
        **fields,
    )


def test_a_poll_arrives_as_it_was_made() -> None:
    poll = poll_of(IDS.token(), 3, wait=SECOND, adopts=True, ending=2)
    assert poll_from_wire(poll_to_wire(poll), poll.namespace) == poll


def registration_of(worker_id: str, **fields: Any) -> Registration:
    return Registration(
        worker_id=worker_id,
        namespace="default",
        queues=("q",),
        types=(WorkflowType("w"),),
        hostname="h",
        pid=1,
        version="1",
        concurrency=10,
        **fields,
    )


async def test_a_restarted_server_costs_its_callers_a_retry(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'kagzi.db'}"
    calls: list[int] = []
    async with serving(url, 30 * SECOND) as first:
        port = first.port
        app = Kagzi(f"grpc://127.0.0.1:{port}")

        @app.step
        async def note(number: int) -> int:
            calls.append(number)
            await asyncio.sleep(0.01)
            return number

        @app.workflow
        async def chain(number: int) -> int:
            total = 0
            for step in range(6):
                total += await note(number * 10 + step)
            return total

        await app.open()
        worker = app.worker(concurrency=20)
        await worker.__aenter__()
        handles = await asyncio.gather(*[chain.start(number) for number in range(40)])
        results = asyncio.gather(*[handle.result(timeout=60) for handle in handles])
        while len(calls) < 60:
            await asyncio.sleep(0.01)
        await first.stop(0.0)
    assert not results.done()
    late = asyncio.ensure_future(chain.start(99))
    await asyncio.sleep(0.3)
    async with engine_on(url, 30 * SECOND) as engine, RpcServer(engine, port=port):
        assert await results == [600 // 10 * number + 15 for number in range(40)]
        assert await (await late).result(timeout=30) == 60 * 99 + 15
        await worker.__aexit__(None, None, None)
        await app.close()
    assert len(calls) == len(set(calls)) == 41 * 6  # nothing was executed twice: every acknowledgement was repeated


async def test_a_blocked_loop_keeps_its_leases() -> None:
    async with serving("memory://", SHORT) as server:
        app = Kagzi(f"grpc://{server.target}")
        calls: list[int] = []

        @app.step
        async def stubborn() -> int:
            calls.append(1)
            return 1

        @app.step
        def blocking() -> int:
            calls.append(2)
            time.sleep(1.5 * SHORT / SECOND)
            return 2

        @app.workflow
        async def both() -> int:
            return await stubborn() + await blocking()

        async with app, app.worker():
            assert await (await both.start()).result(timeout=30) == 3
        assert calls == [1, 2]


async def test_heartbeats_of_a_sibling_on_another_thread() -> None:
    async with serving("memory://") as server:
        engine = RemoteEngine(server.target)
        await engine.open()
        sibling = engine.sibling()

        def beat() -> str:
            async def main() -> str:
                await sibling.open()
                try:
                    return (await sibling.health()).status
                finally:
                    await sibling.close()

            return asyncio.run(main())

        assert await asyncio.to_thread(beat) == "healthy"
        assert (await engine.health()).status == "healthy"
        await engine.close()


async def test_no_thread_of_grpc_looks_at_a_channel_of_heartbeats_that_has_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would print a traceback. Here one would be as slow as a busy machine may make it."""
    closed = threading.Event()
    watching: list[threading.Thread] = []
    poll = channel_of_grpc._poll_connectivity
    states = channel_of_grpc._common.CYGRPC_CONNECTIVITY_STATE_TO_CHANNEL_CONNECTIVITY

    class Slow:
        def __init__(self, channel: Any) -> None:
            self.check_connectivity_state = channel.check_connectivity_state
            self._watch = channel.watch_connectivity_state

        def watch_connectivity_state(self, state: Any, deadline: float) -> Any:
            if states[state] is grpc.ChannelConnectivity.READY:
                closed.wait(10)
            return self._watch(state, deadline)

    def slowly(state: Any, channel: Any, try_to_connect: bool) -> None:
        watching.append(threading.current_thread())
        poll(state, Slow(channel), try_to_connect)

    monkeypatch.setattr(channel_of_grpc, "_poll_connectivity", slowly)
    async with serving("memory://") as server:
        async with RemoteEngine(server.target).sibling() as sibling:
            assert (await sibling.health()).status == "healthy"
        closed.set()
        for thread in watching:
            thread.join(10)  # pytest tells of what it raised


async def test_nobody_listens_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kagzi.rpc.client.remote.CONNECT_SECONDS", 0.3)
    engine = RemoteEngine("127.0.0.1:1")
    with pytest.raises(Unavailable, match=r"no Kagzi server at 127\.0\.0\.1:1"):
        await engine.open()
    with pytest.raises(Unavailable, match="not open"):
        _ = engine.workflows
    async with RemoteEngine("127.0.0.1:1").sibling() as sibling:
        with pytest.raises(Unavailable, match=r"did not answer .*127\.0\.0\.1:1"):
            await sibling.workers.heartbeat(Heartbeat(worker_id=IDS.token(), held=(), heard=0))


async def test_grpc_is_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "grpc", None)
    with pytest.raises(MissingDependency, match=r'pip install "kagzi\[grpc\]"'):
        connect("grpc://localhost")


async def test_what_is_repeated_has_one_effect() -> None:
    async with serving("memory://") as server, RemoteEngine(server.target) as engine:
        run_id = IDS.run_id()
        first = await engine.workflows.start(start_of(run_id))
        assert await engine.workflows.start(start_of(run_id)) == first
        worker_id = IDS.token()
        for _ in range(2):
            await engine.workers.register(registration_of(worker_id, labels={"zone": "a"}))
        poll = poll_of(worker_id)
        (claim,) = (await engine.workers.poll(poll)).claims
        assert (await engine.workers.poll(poll)).claims == (claim,)
        assert (await engine.workers.poll(poll_of(worker_id, 2))).claims == ()
        step = CompleteStep(step_id="a", completed_seq=1, started_at=5, finished_at=6, output=b"1")
        chunk = Chunk(
            namespace="default", run_id=run_id, token=claim.token, operations=(step, CompleteRun(output=b"2"))
        )
        for _ in range(2):
            assert await engine.workers.commit(chunk) is ChunkAnswer.DONE
        stale = Chunk(namespace="default", run_id=run_id, token=IDS.token(), operations=(CompleteRun(output=b"3"),))
        assert await engine.workers.commit(stale) is ChunkAnswer.LEASE_LOST
        assert (await engine.workflows.get("default", run_id)).output == b"2"


async def test_one_refused_write_does_not_hold_up_the_others() -> None:
    async with serving("memory://") as server, RemoteEngine(server.target) as engine:
        good, bad = IDS.run_id(), IDS.run_id()
        started, refused, unsendable = await asyncio.gather(
            engine.workflows.start(start_of(good)),
            engine.workflows.start(start_of(bad, external_id="\0")),
            engine.workflows.start(start_of(bad, priority=2**40)),
            return_exceptions=True,
        )
        assert getattr(started, "run_id", None) == good
        assert "NUL byte" in str(refused)
        assert "cannot be sent" in str(unsendable)


async def test_one_bad_chunk_does_not_hold_up_the_others() -> None:
    async with serving("memory://", 30 * SECOND) as server, RemoteEngine(server.target) as engine:
        run_id = IDS.run_id()
        await engine.workflows.start(start_of(run_id))
        (claim,) = (await engine.workers.poll(poll_of(IDS.token()))).claims

        def commit(**fields: Any) -> Reply[ChunkAnswer]:
            step = CompleteStep(**{"step_id": "a", "completed_seq": 1, "started_at": 5, "finished_at": 6} | fields)
            return engine.workers.commit(
                Chunk(namespace="default", run_id=run_id, token=claim.token, operations=(step,))
            )

        # Each in a call with the others.
        good, unreadable, unsendable = commit(), commit(step_id=5), commit(attempt=2**70)
        assert await good is ChunkAnswer.DONE
        with pytest.raises(InvalidRequest, match="a packed chunk cannot be read"):
            await unreadable
        with pytest.raises(InvalidRequest, match="cannot be sent"):
            await unsendable
        assert [step.step_id for step in await engine.workflows.steps("default", run_id)] == ["a"]


async def test_a_chunk_of_a_newer_worker_does_not_hold_up_the_others() -> None:
    async with serving("memory://") as server, Client(server.target) as client:
        newer = msgspec.msgpack.encode([IDS.run_id(), IDS.token(), [[99, "a"]]])
        known = pack_chunk(Chunk(namespace="default", run_id=IDS.run_id(), token=IDS.token(), operations=()))
        answer = await client.workers.CommitBatch(worker_pb2.CommitBatchRequest(packed=[newer, known]))
        refused, served = answer.results
        assert isinstance(error_of(refused.error), VersionMismatch)
        assert not isinstance(error_of(served.error), VersionMismatch)


async def test_so_many_chunks_are_no_call() -> None:
    async with serving("memory://") as server, Client(server.target) as client:
        few = worker_pb2.CommitBatchRequest(packed=[b""] * CALL_ITEMS)
        assert len((await client.workers.CommitBatch(few)).results) == CALL_ITEMS
        few.chunks.add()
        with pytest.raises(grpc.aio.AioRpcError, match=r"at most .* go into one call"):
            await client.workers.CommitBatch(few)


async def test_histories_are_paged_by_any_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(histories, "ANSWER_BYTES", 2000)
    monkeypatch.setattr(histories, "_KEPT", 0)  # as if every page came from another server
    async with serving("memory://", 30 * SECOND) as server, RemoteEngine(server.target) as engine:
        run_id, worker_id = IDS.run_id(), IDS.token()
        await engine.workflows.start(start_of(run_id, input=b"x" * 3000))
        (claim,) = (await engine.workers.poll(poll_of(worker_id))).claims
        assert claim.input == b"x" * 3000
        steps = tuple(
            CompleteStep(step_id=f"s{seq}", completed_seq=seq, started_at=1, finished_at=2, output=b"y" * 900)
            for seq in range(1, 31)
        )
        chunk = Chunk(namespace="default", run_id=run_id, token=claim.token, operations=steps)
        assert await engine.workers.commit(chunk) is ChunkAnswer.DONE
        await engine.workers.deregister(worker_id)
        (again,) = (await engine.workers.poll(poll_of(IDS.token()))).claims
        assert [step.completed_seq for step in again.history] == list(range(1, 31))
        assert again.input == b"x" * 3000


@pytest.mark.parametrize("error", [LeaseLost, NotFound])
async def test_a_run_that_is_gone_before_its_history_is_read_does_not_hold_up_the_others(
    error: type[KagziError], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(histories, "ANSWER_BYTES", 2000)
    monkeypatch.setattr(histories, "_KEPT", 0)
    runs = [IDS.run_id() for _ in range(3)]
    gone = runs[1]

    async with engine_on("memory://") as engine:

        async def guard(method: Any, request: Any, call: Any, handle: Any) -> Any:
            if method.rpc == "GetHistory" and request.run_id == gone:
                if error is NotFound:
                    raise NotFound(f"there is no run {gone}")
                await engine.workflows.terminate(TerminateRun(namespace="default", run_id=gone, reason="enough"))
            return await handle(request, call)

        async with RpcServer(engine, guard=GuardOf(guard)) as server, RemoteEngine(server.target) as remote:
            for run_id in runs:
                await remote.workflows.start(start_of(run_id, input=b"x" * 3000))
            worker_id = IDS.token()
            polled = await remote.workers.poll(poll_of(worker_id))
            assert [claim.run_id for claim in polled.claims] == [runs[0], runs[2]]
            assert {claim.input for claim in polled.claims} == {b"x" * 3000}
            # It is not listed, and nobody takes that amiss.
            held = tuple((claim.run_id, claim.token) for claim in polled.claims)
            answer = await remote.workers.heartbeat(Heartbeat(worker_id=worker_id, held=held, heard=1))
            assert not answer.lost
            for run_id, token in held:
                chunk = Chunk(namespace="default", run_id=run_id, token=token, operations=(CompleteRun(output=b"1"),))
                assert await remote.workers.commit(chunk) is ChunkAnswer.DONE


async def test_a_claim_whose_history_cannot_be_read_now_is_had_by_the_poll_repeated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(histories, "ANSWER_BYTES", 2000)
    reads: list[str] = []

    async def guard(method: Any, request: Any, call: Any, handle: Any) -> Any:
        if method.rpc == "GetHistory":
            reads.append(request.run_id)
            if len(reads) == 1:
                raise LimitExceeded("later")
        return await handle(request, call)

    async with engine_on("memory://") as engine, RpcServer(engine, guard=GuardOf(guard)) as server:
        async with RemoteEngine(server.target) as remote:
            remote._opened.workers._line.patience = 0.0
            await remote.workflows.start(start_of(IDS.run_id(), input=b"x" * 3000))
            poll = poll_of(IDS.token())
            with pytest.raises(LimitExceeded):
                await remote.workers.poll(poll)
            (claim,) = (await remote.workers.poll(poll)).claims
            assert claim.input == b"x" * 3000


async def test_closing_answers_those_who_wait() -> None:
    async with engine_on("memory://") as engine:
        server = RpcServer(engine)
        await server.start()
        async with Client(server.target) as client:
            await client.register("w")
            run_id = await client.start("other")
            remote = RemoteEngine(server.target)
            await remote.open()
            waits = [
                asyncio.ensure_future(client.poll("w", timeout=30)),
                asyncio.ensure_future(remote.workers.poll(poll_of(IDS.token(), wait=30 * SECOND))),
            ]
            waiter = asyncio.ensure_future(remote.workflows.wait("default", run_id, 30 * SECOND))
            await asyncio.sleep(0.3)
            begin = time.monotonic()
            await server.stop(25.0)
            assert time.monotonic() - begin < 20.0
            await asyncio.wait(waits, timeout=20.0)
            assert waits[0].result().run_id == ""  # workers in the field know it as nothing to do
            with pytest.raises(Unavailable):
                waits[1].result()
            await remote.close()
            with pytest.raises(Unavailable):
                await waiter


async def test_a_server_that_closes_sends_a_poll_elsewhere_when_its_claim_is_made() -> None:
    """Repeated at another server it finds what it has claimed. Were it told that there is nothing, the run would wait
    for a heartbeat."""
    async with engine_on("memory://") as engine:
        server = RpcServer(engine)
        await server.start()
        worker_id, run_id = IDS.token(), IDS.run_id()
        await engine.workers.register(registration_of(worker_id))
        await engine.workflows.start(start_of(run_id))
        store: Any = engine.store
        claim, claiming, may_go = store.work.claim, asyncio.Event(), asyncio.Event()

        async def later(*args: Any) -> Any:
            claiming.set()
            await may_go.wait()
            return await claim(*args)

        store.work.claim = later
        remote = RemoteEngine(server.target)
        await remote.open()
        poll = poll_of(worker_id, wait=30 * SECOND)
        polling = asyncio.create_task(remote.workers.poll(poll))
        await claiming.wait()
        stopping = asyncio.create_task(server.stop(25.0))
        await asyncio.sleep(0.1)
        assert not polling.done()
        may_go.set()
        with pytest.raises(Unavailable, match="about to stop"):
            await polling
        await stopping
        (claimed,) = (await engine.workers.poll(poll)).claims
        assert (claimed.run_id, claimed.executions) == (run_id, 1)
        await remote.close()


@pytest.mark.parametrize("rpc", ["PollTasks", "WaitWorkflow", "WaitWorkflows"])
async def test_a_server_that_closes_does_not_say_that_there_is_nothing(
    rpc: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever hears that asks again, here and at once, for as long as another call keeps the server up. The log is not
    filled with those who were sent away."""
    async with engine_on("memory://") as engine, RpcServer(engine) as server, Client(server.target) as client:
        await client.register("w")
        run_id = await client.start("w")
        requests: dict[str, Any] = {
            "PollTasks": poll_to_wire(poll_of(IDS.token(), wait=30 * SECOND)),
            "WaitWorkflow": workflow_pb2.WaitWorkflowRequest(run_id=run_id, wait_us=30 * SECOND),
            "WaitWorkflows": workflow_pb2.WaitWorkflowsRequest(run_ids=[run_id], wait_us=30 * SECOND),
        }
        stub: Any = client.workers if rpc == "PollTasks" else client.workflows
        assert server._host is not None
        before = asyncio.ensure_future(getattr(stub, rpc)(requests[rpc], timeout=20))
        await asyncio.sleep(0.2)
        server._host.closing.set()
        after = asyncio.ensure_future(getattr(stub, rpc)(requests[rpc], timeout=20))
        for call in (before, after):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await call
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        warnings = [each for each in caplog.records if each.levelno >= logging.WARNING and each.name == "kagzi.rpc"]
        assert warnings == []


async def test_probes_and_tools_need_no_proto() -> None:
    async def yes() -> bool:
        return True

    async with (
        engine_on("memory://") as engine,
        RpcServer(engine, reflection=yes) as server,
        Client(server.target) as client,
    ):
        health = health_pb2_grpc.HealthStub(client.channel)
        for name in ("", "kagzi.v1.WorkerService"):
            answer = await health.Check(health_pb2.HealthCheckRequest(service=name), timeout=5)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        await server.serving(False)
        answer = await health.Check(health_pb2.HealthCheckRequest(), timeout=5)
        assert answer.status == health_pb2.HealthCheckResponse.NOT_SERVING
        reflect = reflection_pb2_grpc.ServerReflectionStub(client.channel)
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        async for reply in reflect.ServerReflectionInfo(iter([request]), timeout=5):
            names = {service.name for service in reply.list_services_response.service}
            assert {"kagzi.v1.WorkflowService", "kagzi.v1.AdminService", "grpc.health.v1.Health"} <= names
    async with engine_on("memory://") as engine, RpcServer(engine) as server:
        async with Client(server.target) as client:
            reflect = reflection_pb2_grpc.ServerReflectionStub(client.channel)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                async for _ in reflect.ServerReflectionInfo(iter([request]), timeout=5):
                    pass
            assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_a_guard_sees_every_call_before_it_is_made() -> None:
    seen: list[str] = []

    async def guard(method: Any, request: Any, call: Any, handle: Any) -> Any:
        assert isinstance(request, method.request)
        seen.append(method.rpc)
        if request.namespace == "closed":
            raise PermissionDenied("no")
        return await handle(request, call)

    async with engine_on("memory://") as engine, RpcServer(engine, guard=GuardOf(guard)) as server:
        async with Client(server.target) as client:
            await client.start("w")
            client.namespace = "closed"
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await client.start("w")
    assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
    assert seen == ["StartWorkflow", "StartWorkflow"]


def test_every_method_is_in_the_table() -> None:
    assert METHODS["/kagzi.v1.WorkflowService/StartWorkflow"].rpc == "StartWorkflow"
    assert {method.service for method in METHODS.values()} == {
        "WorkflowService",
        "WorkerService",
        "WorkflowScheduleService",
        "NamespaceService",
        "AdminService",
        "JobService",
    }


async def test_two_servers_do_not_share_a_port() -> None:
    async with serving("memory://") as server, engine_on("memory://") as engine:
        with pytest.raises(Unavailable, match="cannot listen"):
            await RpcServer(engine, port=server.port).start()


async def test_chunks_too_large_for_a_message_go_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kagzi.rpc.client.workers._PART_BYTES", 2000)
    async with serving("memory://", 30 * SECOND) as server, RemoteEngine(server.target) as engine:
        run_id = IDS.run_id()
        await engine.workflows.start(start_of(run_id))
        (claim,) = (await engine.workers.poll(poll_of(IDS.token()))).claims
        steps = tuple(
            CompleteStep(step_id=f"s{seq}", completed_seq=seq, started_at=1, finished_at=2, output=b"y" * 900)
            for seq in range(1, 11)
        )
        chunk = Chunk(
            namespace="default", run_id=run_id, token=claim.token, operations=(*steps, CompleteRun(output=b"1"))
        )
        assert await engine.workers.commit(chunk) is ChunkAnswer.DONE
        assert len(await engine.workflows.steps("default", run_id)) == 10
        assert limits.MESSAGE_BYTES > channel.limits.CALL_BYTES
