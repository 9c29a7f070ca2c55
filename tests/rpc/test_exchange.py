"""Calls that share a stream: what is asked by hand, and what the client makes of a server that stops or is old."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

from kagzi._proto.v1 import admin_pb2, workflow_pb2
from kagzi._proto.v1.common_pb2 import ErrorCode
from kagzi._proto.v1.exchange_pb2 import ExchangedCall
from kagzi.access import Role
from kagzi.core.instant import SECOND
from kagzi.errors import NotFound, Unavailable
from kagzi.rpc import limits
from kagzi.rpc.client import exchange
from kagzi.rpc.client.channel import AioChannel
from kagzi.rpc.client.remote import RemoteEngine
from kagzi.rpc.methods import EXCHANGE, METHODS, SERVICES, Method
from kagzi.rpc.server.respond import Guard
from kagzi.rpc.server.server import RpcServer
from kagzi.rpc.server.services import exchange as server_side
from tests.rpc.guarded import Keyed, guarded
from tests.rpc.streams import asked, streaming
from tests.rpc.support import Client, GuardOf, engine_on, serving

INFO = "/kagzi.v1.AdminService/GetServerInfo"
GET = "/kagzi.v1.WorkflowService/GetWorkflow"
WAIT = "/kagzi.v1.WorkflowService/WaitWorkflow"
START = "/kagzi.v1.WorkflowService/StartWorkflow"
MINUTE = 60 * SECOND
UNKNOWN = "0190a5f2-7c3e-7d31-9a51-0c8e6b1f2a44"


async def started(server: RpcServer) -> str:
    async with Client(server.target) as client:
        return await client.start("w")


# By hand.


async def test_calls_overtake_each_other() -> None:
    async with serving("memory://") as server, streaming(server) as stream:
        wait = workflow_pb2.WaitWorkflowRequest(run_id=await started(server), wait_us=MINUTE)
        await stream.ask(
            asked(1, WAIT, wait), asked(2, INFO), asked(3, GET, workflow_pb2.GetWorkflowRequest(run_id=UNKNOWN))
        )
        answers = await stream.answers(2)
        assert answers.keys() == {2, 3}
        assert admin_pb2.GetServerInfoResponse.FromString(answers[2].response).api_version == "v1"
        assert answers[3].status == grpc.StatusCode.NOT_FOUND.value[0]
        assert answers[3].error.code == ErrorCode.ERROR_CODE_NOT_FOUND
        assert answers[3].error.metadata["request_id"]


async def test_who_has_no_more_to_ask_hears_the_last_answers() -> None:
    async with serving("memory://") as server, streaming(server) as stream:
        wait = workflow_pb2.WaitWorkflowRequest(run_id=await started(server), wait_us=SECOND // 5)
        await stream.ask(asked(1, WAIT, wait), asked(2, INFO))
        await stream.call.done_writing()
        assert (await stream.answers(2)).keys() == {1, 2}
        assert await stream.ended() == (grpc.StatusCode.OK, "")


async def test_a_call_that_is_given_up_ends_and_its_number_is_free_again() -> None:
    async with serving("memory://") as server, streaming(server) as stream:
        wait = workflow_pb2.WaitWorkflowRequest(run_id=await started(server), wait_us=MINUTE)
        await stream.ask(asked(1, WAIT, wait))
        await stream.ask(given_up=(1, 99))
        await stream.ask(asked(2, INFO))
        assert (await stream.answers(1)).keys() == {2}
        await stream.ask(asked(1, INFO))
        assert (await stream.answers(1)).keys() == {1}


async def test_a_call_waits_no_longer_than_its_caller() -> None:
    async with serving("memory://") as server, streaming(server) as stream:
        wait = workflow_pb2.WaitWorkflowRequest(run_id=await started(server), wait_us=MINUTE)
        await stream.ask(asked(1, WAIT, wait, timeout_us=round((limits.ANSWER_SECONDS + 0.1) * SECOND)))
        answer = workflow_pb2.WaitWorkflowResponse.FromString((await stream.answers(1))[1].response)
        assert answer.workflow.status == workflow_pb2.WORKFLOW_STATUS_PENDING


@pytest.mark.parametrize(
    ("call", "status"),
    [
        (asked(1, "/kagzi.v1.AdminService/Nonsense"), grpc.StatusCode.UNIMPLEMENTED),
        (asked(1, ""), grpc.StatusCode.UNIMPLEMENTED),
        (asked(1, EXCHANGE.path), grpc.StatusCode.UNIMPLEMENTED),
        (asked(1, "/grpc.health.v1.Health/Check"), grpc.StatusCode.UNIMPLEMENTED),
        (ExchangedCall(number=1, method=GET, request=b"\xff\xff"), grpc.StatusCode.INVALID_ARGUMENT),
        (ExchangedCall(number=1, method=START), grpc.StatusCode.INVALID_ARGUMENT),
    ],
)
async def test_a_call_that_makes_no_sense_leaves_the_others_alone(call: ExchangedCall, status: grpc.StatusCode) -> None:
    async with serving("memory://") as server, streaming(server) as stream:
        await stream.ask(call, asked(2, INFO, timeout_us=-5))
        answers = await stream.answers(2)
        assert answers[1].status == status.value[0]
        assert answers[1].error.message
        assert answers[2].status == 0


async def test_a_stream_that_makes_no_sense_ends() -> None:
    async with serving("memory://") as server:
        async with streaming(server) as stream:
            await stream.call.write(b"\xff\xff")
            assert await stream.ended() == (
                grpc.StatusCode.INVALID_ARGUMENT,
                "the message is not a readable ExchangeRequest",
            )
        async with streaming(server) as stream:
            wait = workflow_pb2.WaitWorkflowRequest(run_id=await started(server), wait_us=MINUTE)
            await stream.ask(asked(7, WAIT, wait), asked(7, INFO))
            assert await stream.ended() == (
                grpc.StatusCode.INVALID_ARGUMENT,
                "two calls on one stream have the number 7",
            )
        await started(server)


@pytest.mark.parametrize("field", ["calls", "given_up"])
async def test_a_message_with_too_many_calls_is_refused_before_any_is_begun(field: str) -> None:
    begun: list[str] = []
    async with engine_on("memory://") as engine, RpcServer(engine, guard=noting(begun)) as server:
        numbers = range(1, limits.CALL_ITEMS + 2)
        async with streaming(server) as stream:
            if field == "calls":
                await stream.ask(*[asked(number, INFO) for number in numbers])
            else:
                await stream.ask(asked(1, INFO), given_up=tuple(numbers))
            assert await stream.ended() == (
                grpc.StatusCode.INVALID_ARGUMENT,
                f"{field} has 1,001 items; at most 1,000 go into one message",
            )
        assert begun == ["Exchange"]
        async with streaming(server) as stream:
            await stream.ask(*[asked(number, INFO) for number in numbers[:-1]], given_up=tuple(range(-1000, 0)))
            assert len(await stream.answers(limits.CALL_ITEMS)) == limits.CALL_ITEMS


async def test_all_calls_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAXIMUM_CALLS", 2)
    async with serving("memory://") as server, streaming(server) as stream, streaming(server) as other:
        await stream.ask(asked(1, INFO), asked(2, INFO), asked(3, INFO))
        statuses = [answer.status for _, answer in sorted((await stream.answers(3)).items())]
        assert statuses == [0, 0, grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]]
        await other.ask(asked(1, INFO))
        assert (await other.answers(1))[1].status == 0


async def test_who_does_not_listen_is_not_listened_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers wait in the server for whoever asked; there is a bound to that."""
    monkeypatch.setattr(server_side, "_MOST_UNSENT", 3)
    async with serving("memory://") as server, streaming(server) as stream:
        await stream.ask(*[asked(number, INFO) for number in range(1, 200)])
        await stream.ask(*[asked(number, INFO) for number in range(200, 400)])
        assert (await stream.answers(399)).keys() == set(range(1, 400))


# With keys.


async def test_every_call_on_a_stream_is_guarded_by_itself() -> None:
    async with guarded("memory://") as server:
        viewer = await server.key(Role.VIEWER, "shop")
        metadata = (("authorization", f"Bearer {viewer}"),)
        async with streaming(server.server, metadata) as stream:
            calls = {number: method for number, method in enumerate(METHODS.values()) if method.path != INFO}
            await stream.ask(*[asked(number, method.path) for number, method in calls.items()])
            answers = await stream.answers(len(calls))
        async with server.client(viewer) as client:
            for number, method in calls.items():
                assert answers[number].status == (await _status(client, method)).value[0], method.path


async def _status(client: Keyed, method: Method) -> grpc.StatusCode:
    try:
        await client.send(method, method.request())
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


async def test_a_stream_needs_a_key() -> None:
    async with guarded("memory://") as server:
        await server.key()
        async with streaming(server.server) as stream:
            assert (await stream.ended())[0] is grpc.StatusCode.UNAUTHENTICATED


async def test_a_stream_is_confined_to_the_namespace_of_its_key() -> None:
    async with guarded("memory://") as server:
        key = await server.key(Role.CLIENT, "shop")
        other = await server.key(Role.CLIENT, "bank")
        async with server.client(other) as client:
            run_id = (await client.call("StartWorkflow", workflow_type="w")).run_id
        async with streaming(server.server, (("authorization", f"Bearer {key}"),)) as stream:
            for number, namespace in enumerate(("", "bank", "shop")):
                request = workflow_pb2.GetWorkflowRequest(run_id=run_id, namespace=namespace)
                await stream.ask(asked(number, GET, request))
            statuses = {number: answer.status for number, answer in (await stream.answers(3)).items()}
        assert statuses[0] == statuses[2] == grpc.StatusCode.NOT_FOUND.value[0]
        assert statuses[1] == grpc.StatusCode.PERMISSION_DENIED.value[0]


async def test_a_revoked_key_ends_its_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kagzi.access.gate._FRESH_SECONDS", 0.05)
    async with guarded("memory://") as server:
        made = await server.engine.keys.create(name="k", role=Role.CLIENT, namespace=None, actor="test")
        async with streaming(server.server, (("authorization", f"Bearer {made.text}"),)) as stream:
            await stream.ask(asked(1, START, workflow_pb2.StartWorkflowRequest(workflow_type="w", task_queue="q")))
            answer = (await stream.answers(1))[1]
            assert answer.status == 0
            run_id = workflow_pb2.StartWorkflowResponse.FromString(answer.response).run_id
            await stream.ask(asked(2, WAIT, workflow_pb2.WaitWorkflowRequest(run_id=run_id, wait_us=MINUTE)))
            await server.engine.keys.revoke(made.key.key_id, actor="test")
            assert (await stream.ended())[0] is grpc.StatusCode.UNAUTHENTICATED


# The client.


def noting(names: list[str]) -> Guard:
    """Lets everybody in, and notes who called what."""

    async def guard(method: Any, request: Any, call: Any, handle: Any) -> Any:
        names.append(method.rpc)
        return await handle(request, call)

    return GuardOf(guard)


async def test_what_is_asked_together_travels_together_and_over_one_stream() -> None:
    opened: list[str] = []
    async with engine_on("memory://") as engine, RpcServer(engine, guard=noting(opened)) as server:
        async with RemoteEngine(server.target) as remote:
            with pytest.raises(NotFound):
                await remote.workflows.get("default", UNKNOWN)
            assert len(await asyncio.gather(*[remote.admin.count_workers("default") for _ in range(20)])) == 20
    assert opened.count("Exchange") == 1


async def test_more_than_fits_into_a_message_is_asked_and_given_up_in_several() -> None:
    seen: list[str] = []
    async with engine_on("memory://") as engine, RpcServer(engine, guard=noting(seen)) as server:
        async with RemoteEngine(server.target) as remote:
            run_id = await started(server)
            ask = remote._opened.workflows._ask_for_ends
            waits = [asyncio.create_task(ask("default", [run_id], MINUTE)) for _ in range(limits.CALL_ITEMS + 1)]
            await remote.admin.count_workers("default")
            assert seen.count("WaitWorkflows") == len(waits)
            for wait in waits:
                wait.cancel()
            await asyncio.wait(waits)
            await remote.admin.count_workers("default")
            await remote.admin.count_workers("default")
    assert seen.count("Exchange") == 1


async def test_a_server_that_is_older_than_exchanges_is_called_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    old = {name: rpcs for name, rpcs in SERVICES.items() if name != "ExchangeService"}
    monkeypatch.setattr("kagzi.rpc.server.server.SERVICES", old)
    async with serving("memory://") as server, RemoteEngine(server.target) as remote:
        with pytest.raises(NotFound):
            await remote.workflows.get("default", UNKNOWN)
        await asyncio.gather(*[remote.admin.count_workers("default") for _ in range(20)])


class Broken:
    """A stream that went away under the first message."""

    async def write(self, _: bytes) -> None:
        raise grpc.aio.AioRpcError(grpc.StatusCode.INTERNAL, grpc.aio.Metadata(), grpc.aio.Metadata(), "Internal error")

    async def read(self) -> bytes:
        await asyncio.sleep(0)
        raise grpc.aio.AioRpcError(grpc.StatusCode.INTERNAL, grpc.aio.Metadata(), grpc.aio.Metadata(), "Internal error")

    def cancel(self) -> None:
        pass


async def test_a_call_whose_stream_went_away_at_once_is_made_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be that the server has refused the stream: while a message is written, gRPC does not tell."""
    async with serving("memory://") as server:
        channel = AioChannel(server.target)
        real = channel._open_stream
        opened: list[object] = []

        def open_stream(metadata: Any) -> Any:
            opened.append(Broken() if not opened else real(metadata))
            return opened[-1]

        assert channel._exchange is not None
        monkeypatch.setattr(channel._exchange, "_open", open_stream)
        for _ in range(2):
            info = await channel.call(
                "AdminService",
                "GetServerInfo",
                admin_pb2.GetServerInfoRequest(),
                admin_pb2.GetServerInfoResponse,
                5.0,
            )
            assert info.api_version == "v1"
        assert len(opened) == 2
        await channel.close()


async def test_large_requests_do_not_hold_up_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "EXCHANGE_BYTES", 0)
    seen: list[str] = []
    async with engine_on("memory://") as engine, RpcServer(engine, guard=noting(seen)) as server:
        async with RemoteEngine(server.target) as remote:
            with pytest.raises(NotFound):
                await remote.workflows.get("default", UNKNOWN)
    assert "Exchange" not in seen[seen.index("GetWorkflow") :]


async def test_a_stream_is_left_when_it_is_old_and_still_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving("memory://") as server, RemoteEngine(server.target) as remote:
        run_id = await started(server)
        waiting = asyncio.create_task(remote.workflows.wait("default", run_id, 10 * SECOND))
        await remote.admin.count_workers("default")
        monkeypatch.setattr(exchange, "_OLD_SECONDS", -1.0)
        await remote.admin.count_workers("default")
        await remote.admin.count_workers("default")
        async with Client(server.target) as client:
            await client.workflows.TerminateWorkflow(workflow_pb2.TerminateWorkflowRequest(run_id=run_id))
        assert (await waiting).status.finished


async def test_a_stream_that_was_left_ends_with_its_last_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving("memory://") as server:
        run_id = await started(server)
        calls = AioChannel(server.target)
        wait = workflow_pb2.WaitWorkflowRequest(run_id=run_id, wait_us=MINUTE)
        waiting = asyncio.create_task(
            calls.call("WorkflowService", "WaitWorkflow", wait, workflow_pb2.WaitWorkflowResponse, 30)
        )
        info = ("AdminService", "GetServerInfo", admin_pb2.GetServerInfoRequest(), admin_pb2.GetServerInfoResponse, 10)
        await calls.call(*info)
        with monkeypatch.context() as patched:
            patched.setattr(exchange, "_OLD_SECONDS", -1.0)
            await calls.call(*info)
        assert calls._exchange is not None
        assert len(calls._exchange._streams) == 2
        terminate = workflow_pb2.TerminateWorkflowRequest(run_id=run_id)
        await calls.call("WorkflowService", "TerminateWorkflow", terminate, workflow_pb2.TerminateWorkflowResponse, 10)
        await waiting
        async with asyncio.timeout(10):
            while len(calls._exchange._streams) > 1:
                await asyncio.sleep(0.01)
        await calls.close()


async def test_a_server_that_stops_answers_what_it_has_read(tmp_path: Any) -> None:
    async with engine_on(f"sqlite:///{tmp_path}/k.db") as engine:
        server = RpcServer(engine)
        await server.start()
        async with RemoteEngine(server.target) as remote:
            run_id = await started(server)
            waiting = asyncio.create_task(remote.workflows.wait("default", run_id, MINUTE))
            await remote.admin.count_workers("default")
            await server.stop(10.0)
            again = RpcServer(engine, port=server.port)
            await again.start()
            try:
                # Neither the wait nor whoever calls now notices.
                assert (await remote.workflows.get("default", run_id)).run_id == run_id
                async with Client(again.target) as client:
                    await client.workflows.TerminateWorkflow(workflow_pb2.TerminateWorkflowRequest(run_id=run_id))
                assert (await waiting).status.finished
            finally:
                await again.stop(0.0)


async def test_a_closed_engine_leaves_nobody_waiting() -> None:
    async with serving("memory://") as server:
        remote = RemoteEngine(server.target)
        await remote.open()
        waiting = asyncio.create_task(remote.workflows.wait("default", await started(server), MINUTE))
        await remote.admin.count_workers("default")
        await remote.close()
        with pytest.raises(Unavailable):
            await waiting


@pytest.mark.parametrize("left", [False, True])
async def test_a_caller_that_goes_away_gives_its_call_up(left: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a stream that was left for a younger one, too: runs must not be born for a poll that nobody waits for."""
    cancelled = asyncio.Event()

    async def guard(method: Any, request: Any, call: Any, handle: Any) -> Any:
        try:
            return await handle(request, call)
        except asyncio.CancelledError:
            if method.rpc == "WaitWorkflows":
                cancelled.set()
            raise

    async with engine_on("memory://") as engine, RpcServer(engine, guard=GuardOf(guard)) as server:
        async with RemoteEngine(server.target) as remote:
            run_id = await started(server)
            call = remote._opened.workflows._ask_for_ends("default", [run_id], MINUTE)
            waiting = asyncio.create_task(call)
            await remote.admin.count_workers("default")
            if left:
                monkeypatch.setattr(exchange, "_OLD_SECONDS", -1.0)
                await remote.admin.count_workers("default")
            waiting.cancel()
            async with asyncio.timeout(10):
                await cancelled.wait()
