"""Children of runs that workers in the field drive call by call."""

from __future__ import annotations

from collections.abc import AsyncIterator

import grpc
import pytest

from kagzi._proto.v1 import common_pb2, worker_pb2, workflow_pb2
from tests.rpc.support import Client, detail_of, payload, serving

CHILD = worker_pb2.STEP_KIND_CHILD_WORKFLOW
COMPLETED, SLEEPING = workflow_pb2.WORKFLOW_STATUS_COMPLETED, workflow_pb2.WORKFLOW_STATUS_SLEEPING
CANCELLED = workflow_pb2.WORKFLOW_STATUS_CANCELLED
KID = workflow_pb2.StartWorkflowRequest(workflow_type="kid", input=payload(b"7"))


@pytest.fixture
async def client(url: str) -> AsyncIterator[Client]:
    async with serving(url) as server, Client(server.target) as client:
        await client.register("parent", "kid")
        yield client


async def test_a_run_waits_for_its_child_and_gets_its_result(client: Client) -> None:
    parent = await client.start("parent")
    task = await client.poll("parent")
    begun = await client.begin(task.run_id, "pay", CHILD)
    assert begun.should_execute
    child_id = await client.spawn(task.run_id, begun.step_id, KID)
    assert await client.spawn(task.run_id, begun.step_id, KID) == child_id  # once, however often it is asked for
    assert await client.await_child(task.run_id, begun.step_id)
    assert await client.await_child(task.run_id, begun.step_id)
    run = await client.get(parent)
    assert (run.status, list(run.waiting_for)) == (SLEEPING, [f"c:{child_id}", "n:*"])

    child = await client.get(child_id)
    assert (child.parent_run_id, child.parent_step_id, child.parent_policy) == (parent, "pay", "cancel")
    kid = await client.poll("kid")
    assert (kid.run_id.partition(".")[0], kid.input.data) == (child_id, b"7")
    await client.complete_workflow(kid.run_id, b'"paid"')

    woken = await client.poll("parent")
    for _ in range(2):
        again = await client.begin(woken.run_id, "pay", CHILD)
        assert (again.should_execute, again.cached_output.data) == (False, b'"paid"')
    assert await client.complete_workflow(woken.run_id, b"1") == COMPLETED
    (step,) = await client.steps(parent)
    assert (step.child_run_id, step.completed_seq, step.attempt_number) == (child_id, 1, 1)


async def test_a_child_that_ended_first_failed_or_was_cancelled(client: Client) -> None:
    await client.start("parent")
    task = await client.poll("parent")
    steps = {name: (await client.begin(task.run_id, name, CHILD)).step_id for name in ("good", "bad", "ended")}
    children = {name: await client.spawn(task.run_id, step_id, KID) for name, step_id in steps.items()}
    for _ in range(2):
        kid = await client.poll("kid")
        if kid.run_id.startswith(children["good"]):
            await client.complete_workflow(kid.run_id, b"1")
        else:
            assert kid.run_id.startswith(children["bad"])
            await client.fail_workflow(kid.run_id, message="card declined", code=common_pb2.ERROR_CODE_INTERNAL)
    end = workflow_pb2.TerminateWorkflowRequest(namespace="default", run_id=children["ended"], reason="no more")
    await client.workflows.TerminateWorkflow(end)
    assert not await client.await_child(task.run_id, steps["good"])  # it is not parked: the outcome is there
    assert (await client.begin(task.run_id, "good", CHILD)).cached_output.data == b"1"
    for name, text in (("bad", "card declined"), ("ended", "no more"), ("bad", "card declined")):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await client.begin(task.run_id, name, CHILD)
        assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert text in detail_of(refused.value).message
    assert await client.complete_workflow(task.run_id, b"1") == COMPLETED


async def test_an_id_that_is_taken_is_the_outcome_and_children_follow_their_parent(client: Client) -> None:
    await client.start("kid", external_id="one", task_queue="elsewhere")
    parent = await client.start("parent")
    task = await client.poll("parent")
    taken, left, kept = [(await client.begin(task.run_id, name, CHILD)).step_id for name in ("taken", "left", "kept")]
    start = workflow_pb2.StartWorkflowRequest(workflow_type="kid", external_id="one", task_queue="elsewhere")
    await client.spawn(task.run_id, taken, start)
    with pytest.raises(grpc.aio.AioRpcError, match="one"):
        await client.begin(task.run_id, "taken", CHILD)
    start = workflow_pb2.StartWorkflowRequest(workflow_type="kid", task_queue="elsewhere")
    ended = await client.spawn(task.run_id, left, start)
    stays = await client.spawn(task.run_id, kept, start, "abandon")
    await client.complete_workflow(task.run_id, b"1")
    request = workflow_pb2.WaitWorkflowRequest(namespace="default", run_id=ended, wait_us=10_000_000)
    assert (await client.workflows.WaitWorkflow(request, timeout=20)).workflow.status == CANCELLED
    assert (await client.get(stays)).status == workflow_pb2.WORKFLOW_STATUS_PENDING
    assert (await client.get(parent)).status == COMPLETED


async def test_what_a_child_cannot_have_is_named_and_nothing_is_written(client: Client) -> None:
    await client.start("parent")
    task = await client.poll("parent")
    child, plain = await client.begin(task.run_id, "pay", CHILD), await client.begin(task.run_id, "plain")
    Start = workflow_pb2.StartWorkflowRequest
    for start, policy, text in (
        (Start(workflow_type="kid", namespace="else"), "", "start.namespace"),
        (Start(workflow_type="kid", run_id="x"), "", "start.run_id"),
        (Start(workflow_type="kid", lease_us=0), "", "start.lease_us"),
        (Start(workflow_type="kid", parent_step_attempt_id=child.step_id), "", "start.parent_step_attempt_id"),
        (Start(workflow_type="kid", on_conflict=workflow_pb2.ON_CONFLICT_RETURN), "", "start.on_conflict"),
        (Start(workflow_type="kid", signal=workflow_pb2.StartSignal(name="s")), "", "start.signal"),
        (Start(workflow_type="k" * 256), "", "workflow type"),
        (Start(), "", "workflow type"),
        (KID, "cancle", "parent_policy is 'cancle'; it is one of cancel, abandon, terminate"),
        (KID, "none", "parent_policy is 'none'"),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await client.spawn(task.run_id, child.step_id, start, policy)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT, start
        assert text in (refused.value.details() or "")
    for call, text in (
        (client.spawn(task.run_id, plain.step_id, KID), "is not a CHILD_WORKFLOW"),
        (client.await_child(task.run_id, child.step_id), "call SpawnChild first"),
    ):
        with pytest.raises(grpc.aio.AioRpcError, match=text) as refused:
            await call
        assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    listed = await client.workflows.ListWorkflows(workflow_pb2.ListWorkflowsRequest(namespace="default"))
    assert len(listed.workflows) == 1
    # With a child its step is the child's: the worker cannot end it. Without, as ever.
    other = await client.begin(task.run_id, "started in the body", CHILD)
    await client.complete(task.run_id, other.step_id, b"1")
    await client.spawn(task.run_id, child.step_id, KID)
    for call in (
        client.complete(task.run_id, child.step_id, b"1"),
        client.fail(task.run_id, child.step_id, message="no"),
    ):
        with pytest.raises(grpc.aio.AioRpcError, match="ends with its child"):
            await call


async def test_a_run_that_is_tried_again_keeps_the_child_that_ended_well_and_spawns_the_other_anew(
    client: Client,
) -> None:
    policy = common_pb2.RetryPolicy(maximum_attempts=2, initial_interval_ms=1)
    await client.start("parent", retry_policy=policy)
    task = await client.poll("parent")
    ids = {}
    for name in ("good", "bad"):
        step_id = (await client.begin(task.run_id, name, CHILD)).step_id
        ids[name] = await client.spawn(task.run_id, step_id, KID)
        kid = await client.poll("kid")
        if name == "good":
            await client.complete_workflow(kid.run_id, b"1")
            await client.begin(task.run_id, name, CHILD)
        else:
            await client.fail_workflow(kid.run_id, message="no", code=common_pb2.ERROR_CODE_INTERNAL)
            with pytest.raises(grpc.aio.AioRpcError):
                await client.begin(task.run_id, name, CHILD)
    await client.fail_workflow(task.run_id, message="no", code=common_pb2.ERROR_CODE_INTERNAL)
    again = await client.poll("parent")
    assert not (await client.begin(again.run_id, "good", CHILD)).should_execute
    begun = await client.begin(again.run_id, "bad", CHILD)
    assert begun.should_execute
    assert await client.spawn(again.run_id, begun.step_id, KID) != ids["bad"]
