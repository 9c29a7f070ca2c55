"""What bad input gets: documented codes, never INTERNAL, and a server that serves on."""

from __future__ import annotations

import logging
import random
import re
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from kagzi._proto.v1 import admin_pb2, common_pb2, workflow_pb2
from kagzi.rpc.methods import METHODS, Method
from tests.rpc.support import Client, detail_of, engine_on, serving

CODES = {
    grpc.StatusCode.OK,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.UNIMPLEMENTED,  # schedules
}
LEAKS = re.compile(r"sqlite|select |insert |traceback|/home|/work|\.py\b|asyncpg|kagzi\.workflow_runs", re.IGNORECASE)

UUID = "0190a5f2-7c3e-7d31-9a51-0c8e6b1f2a44"
TEXTS = [
    "",
    "x",
    "default",
    UUID,
    UUID.upper(),
    f"{UUID}.{UUID}",
    f"{UUID}.1..a",
    "\0",
    "a\0b",
    "'; DROP TABLE workflow_runs; --",
    "ключ",
    "🙂" * 100,
    "n" * 256,
    "n" * 5000,
    "../../etc/passwd",
    "%s%n",
    "-1",
    "f" * 64,
]
NUMBERS = {
    FieldDescriptor.TYPE_INT32: [0, 1, -1, 7, 100, 101, 2**31 - 1, -(2**31)],
    FieldDescriptor.TYPE_INT64: [0, 1, -1, 10**6, 2**53, 2**63 - 1, -(2**63)],
    FieldDescriptor.TYPE_DOUBLE: [0.0, 1.5, -1.0, 1e308, float("inf"), float("-inf"), float("nan")],
    FieldDescriptor.TYPE_BOOL: [False, True],
}


def hostile(message: Message, chance: random.Random, depth: int = 0) -> None:
    for field in message.DESCRIPTOR.fields:
        if chance.random() < 0.3:
            continue
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            getattr(message, field.name)[chance.choice(TEXTS)] = chance.choice(TEXTS)
        elif field.message_type is not None:
            if depth < 4:
                target = getattr(message, field.name)
                parts = [target.add() for _ in range(chance.randrange(3))] if field.is_repeated else [target]
                for part in parts:
                    part.SetInParent()
                    hostile(part, chance, depth + 1)
        elif field.is_repeated:
            getattr(message, field.name).extend(value(field, chance) for _ in range(chance.randrange(3)))
        else:
            setattr(message, field.name, value(field, chance))


def value(field: FieldDescriptor, chance: random.Random) -> Any:
    if field.type == FieldDescriptor.TYPE_STRING:
        return chance.choice(TEXTS)
    if field.type == FieldDescriptor.TYPE_BYTES:
        return chance.choice(
            [b"", b"null", b"\xff\xfe", b"{" * 1000, b"x" * 3_000_000 if chance.random() < 0.02 else b"1"]
        )
    if field.enum_type is not None:
        return chance.choice([*(number.number for number in field.enum_type.values), 99, -1])
    return chance.choice(NUMBERS[field.type])


async def call(client: Client, method: Method, data: bytes) -> tuple[grpc.StatusCode, str]:
    raw = client.channel.unary_unary(method.path)
    try:
        await raw(data, timeout=1.0)
    except grpc.aio.AioRpcError as error:
        if error.code() is not grpc.StatusCode.UNIMPLEMENTED:
            detail = detail_of(error)
            assert detail.message
            return error.code(), detail.message
        return error.code(), error.details() or ""
    return grpc.StatusCode.OK, ""


@pytest.mark.parametrize("seed", range(4))
async def test_hostile_requests(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    chance = random.Random(seed)
    async with serving("memory://") as server, Client(server.target) as client:
        for _ in range(10):
            for method in METHODS.values():
                request = method.request()
                hostile(request, chance)
                code, text = await call(client, method, request.SerializeToString())
                assert code in CODES, (method.rpc, code, text, request)
                assert not LEAKS.search(text.replace("DROP TABLE workflow_runs", "")), (method.rpc, text)
        info = await client.admin.GetServerInfo(admin_pb2.GetServerInfoRequest(), timeout=5)
        assert info.api_version == "v1"
    assert not [record for record in caplog.records if record.name.startswith("kagzi")], caplog.text


async def test_requests_that_are_none() -> None:
    chance = random.Random(7)
    async with serving("memory://") as server, Client(server.target) as client:
        for method in METHODS.values():
            for data in (b"\xff" * 20, chance.randbytes(50), b"\x0a\x02\xff\xfe", b"\x0a\x7f"):
                code, text = await call(client, method, data)
                assert code in CODES, (method.rpc, code, text)


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


async def test_unknown_fields_are_passed_over() -> None:
    """A newer client."""
    async with serving("memory://") as server, Client(server.target) as client:
        request = workflow_pb2.StartWorkflowRequest(workflow_type="w").SerializeToString()
        raw = client.channel.unary_unary("/kagzi.v1.WorkflowService/StartWorkflow")
        answer = workflow_pb2.StartWorkflowResponse.FromString(await raw(request + b"\xfa\x3f\x03new", timeout=5))
        assert answer.run_id


async def test_what_nobody_foresaw_has_an_id_and_no_detail(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with engine_on("memory://") as engine:
        from kagzi.rpc.server import RpcServer

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
