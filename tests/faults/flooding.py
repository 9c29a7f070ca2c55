"""One caller that asks a server for more than its share, in a process of its own.

    python -m tests.faults.flooding events|lists|starts <host:port of gRPC> <address of HTTP> <key>

Prints `flooding` when everything is under way, and goes on until it is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import sys
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

import grpc

from kagzi._proto.v1 import common_pb2, workflow_pb2

STREAMS, WAITS, LISTS, STARTS = 500, 1000, 5000, 300
CONNECTIONS = 2


async def events(target: str, http: str, key: str) -> None:
    """500 streams of events and 1,000 requests that wait for a run."""
    call: Any = grpc.aio.insecure_channel(target).unary_unary(
        "/kagzi.v1.WorkflowService/StartWorkflow",
        request_serializer=workflow_pb2.StartWorkflowRequest.SerializeToString,
        response_deserializer=workflow_pb2.StartWorkflowResponse.FromString,
    )
    request = workflow_pb2.StartWorkflowRequest(workflow_type="never")
    run_id = (await call(request, metadata=(("authorization", f"Bearer {key}"),))).run_id
    paths = ["/api/v1/events"] * STREAMS + [f"/api/v1/runs/{run_id}?wait=60s"] * WAITS
    asked = asyncio.Semaphore(0)
    getting = [asyncio.ensure_future(_get(http, key, path, asked)) for path in paths]
    for _ in paths:
        await asked.acquire()
    await _all(*getting)


async def _get(http: str, key: str, path: str, asked: asyncio.Semaphore) -> None:
    where = urlsplit(http)
    while True:
        reader, writer = await asyncio.open_connection(where.hostname, where.port)
        writer.write(f"GET {path} HTTP/1.1\r\nhost: {where.netloc}\r\nauthorization: Bearer {key}\r\n\r\n".encode())
        await writer.drain()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2):  # what is let in to wait says nothing
                await reader.read(1)
        asked.release()
        while await reader.read(65536):
            pass
        writer.close()
        await asyncio.sleep(random.uniform(1, 3))


async def lists(target: str, http: str, key: str) -> None:
    """5,000 lists at once, and again whenever one has been answered."""
    data = workflow_pb2.ListWorkflowsRequest(page=common_pb2.PageRequest(page_size=100)).SerializeToString()
    await _calls(target, key, "ListWorkflows", data, LISTS)


async def starts(target: str, http: str, key: str) -> None:
    """300 starts of 1.9 MB at once, and again."""
    large = common_pb2.Payload(data=b'"' + b"x" * 1_900_000 + b'"')
    data = workflow_pb2.StartWorkflowRequest(workflow_type="w", input=large).SerializeToString()
    await _calls(target, key, "StartWorkflow", data, STARTS)


async def _calls(target: str, key: str, rpc: str, data: bytes, count: int) -> None:
    channels = [
        grpc.aio.insecure_channel(target, options=[("grpc.use_local_subchannel_pool", 1)]) for _ in range(CONNECTIONS)
    ]

    async def again_and_again(channel: grpc.aio.Channel) -> None:
        call: Any = channel.unary_unary(f"/kagzi.v1.WorkflowService/{rpc}")
        while True:
            try:
                await call(data, metadata=(("authorization", f"Bearer {key}"),), timeout=60)
            except grpc.aio.AioRpcError:
                await asyncio.sleep(0.1)

    await _all(*[again_and_again(channels[number % CONNECTIONS]) for number in range(count)])


async def _all(*work: Awaitable[None]) -> None:
    tasks = [asyncio.ensure_future(each) for each in work]
    await asyncio.sleep(2.0)
    print("flooding", flush=True)
    await asyncio.wait(tasks)


FLOODS: dict[str, Callable[[str, str, str], Awaitable[None]]] = {"events": events, "lists": lists, "starts": starts}

if __name__ == "__main__":
    os.nice(10)  # in life it has cores of its own: here it takes what the server leaves it, and never the server's
    asyncio.run(FLOODS[sys.argv[1]](*sys.argv[2:]))  # type: ignore[arg-type]
