"""What becomes of starts, alone and many in one call."""

from __future__ import annotations

import grpc
import pytest

from kagzi._proto.v1 import common_pb2, workflow_pb2
from tests.rpc.support import Client, detail_of, payload, serving


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
