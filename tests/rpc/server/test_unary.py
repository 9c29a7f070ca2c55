"""Workers in the field: a client that knows only the unary calls drives runs through their whole life."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import grpc
import pytest

from kagzi._proto.v1 import admin_pb2, common_pb2, namespace_pb2, worker_pb2, workflow_pb2
from kagzi.core.instant import SECOND
from tests.rpc.support import SHORT, Client, detail_of, payload, serving

FUNCTION, SLEEP = worker_pb2.STEP_KIND_FUNCTION, worker_pb2.STEP_KIND_SLEEP
COMPLETED, FAILED = workflow_pb2.WORKFLOW_STATUS_COMPLETED, workflow_pb2.WORKFLOW_STATUS_FAILED
PENDING, SLEEPING = workflow_pb2.WORKFLOW_STATUS_PENDING, workflow_pb2.WORKFLOW_STATUS_SLEEPING
PRECONDITION = grpc.StatusCode.FAILED_PRECONDITION


@pytest.fixture
async def client(url: str) -> AsyncIterator[Client]:
    async with serving(url) as server, Client(server.target) as client:
        yield client


@pytest.fixture
async def hasty(url: str) -> AsyncIterator[Client]:
    """Of a server whose leases run out while one waits for it."""
    async with serving(url, SHORT) as server, Client(server.target) as client:
        yield client


async def test_the_whole_life_of_a_run(client: Client) -> None:
    await client.register("greet")
    run_id = await client.start("greet", b'{"name": "Ada"}')
    task = await client.poll("greet")
    assert (task.workflow_type, task.input.data) == ("greet", b'{"name": "Ada"}')
    assert task.run_id.startswith(run_id + ".")
    assert (await client.get(run_id)).status == workflow_pb2.WORKFLOW_STATUS_RUNNING

    first = await client.begin(task.run_id, "look up")
    assert first.should_execute
    assert (await client.begin(task.run_id, "look up")).step_id == first.step_id
    step = await client.complete(task.run_id, first.step_id, b'"Ada L."')
    assert (step.name, step.status, step.attempt_number) == ("look up", worker_pb2.STEP_STATUS_COMPLETED, 1)
    assert (step.step_id, step.input.data, step.output.data) == (first.step_id, b"1", b'"Ada L."')
    assert (await client.complete(task.run_id, first.step_id, b"other")).output.data == b'"Ada L."'
    again = await client.begin(task.run_id, "look up")
    assert (again.should_execute, again.cached_output.data) == (False, b'"Ada L."')

    assert await client.complete_workflow(task.run_id, b'"hello"') == COMPLETED
    assert await client.complete_workflow(task.run_id, b'"hello"') == COMPLETED
    run = await client.get(run_id)
    assert (run.status, run.output.data, run.task_queue) == (COMPLETED, b'"hello"', "greet")
    (step,) = await client.steps(run_id)
    found = await client.admin.GetStep(admin_pb2.GetStepRequest(namespace="default", step_id=step.step_id))
    assert found.step == step


async def test_a_restarted_worker_replays_what_is_recorded(client: Client) -> None:
    await client.register("w")
    await client.start("w")
    task = await client.poll("w")
    begun = await client.begin(task.run_id, "a")
    await client.complete(task.run_id, begun.step_id, b"1")
    half = await client.begin(task.run_id, "b")
    await client.workers.Deregister(worker_pb2.DeregisterRequest(worker_id=client.worker_id))
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await client.heartbeat()
    assert refused.value.code() is PRECONDITION

    await client.register("w")
    second = await client.poll("w")
    assert second.run_id != task.run_id
    assert not (await client.begin(second.run_id, "a")).should_execute
    same = await client.begin(second.run_id, "b")
    assert (same.should_execute, same.step_id) == (True, half.step_id)
    await client.complete(second.run_id, same.step_id, b"2")
    assert await client.complete_workflow(second.run_id, b"3") == COMPLETED


async def test_a_zombie_changes_nothing(hasty: Client) -> None:
    client = hasty
    await client.register("w")
    run_id = await client.start("w")
    task = await client.poll("w")
    begun = await client.begin(task.run_id, "a")
    # No heartbeat: the lease runs out, and another worker takes the run.
    async with Client(client.target) as other:
        await other.register("w")
        second = await other.poll("w", timeout=20)
        assert second.run_id.startswith(run_id)
        for call in (
            client.begin(task.run_id, "a"),
            client.complete(task.run_id, begun.step_id, b"zombie"),
            client.fail(task.run_id, begun.step_id, message="zombie"),
            client.complete_workflow(task.run_id, b"zombie"),
            client.fail_workflow(task.run_id, message="zombie"),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await call
            assert refused.value.code() is PRECONDITION
            detail = detail_of(refused.value)
            assert detail.code == common_pb2.ERROR_CODE_PRECONDITION_FAILED
            assert detail.exact_code == "LEASE_LOST"
        again = await other.begin(second.run_id, "a")
        assert again.should_execute
        await other.complete(second.run_id, again.step_id, b"right")
        assert await other.complete_workflow(second.run_id, b"right") == COMPLETED
    assert (await client.get(run_id)).output.data == b"right"


async def test_sleeps_end_on_time_and_are_fixed_once(client: Client) -> None:
    await client.register("w")
    run_id = await client.start("w")
    task = await client.poll("w")
    begun = await client.begin(task.run_id, "nap", SLEEP)
    assert begun.should_execute
    before = time.time()
    await client.sleep(task.run_id, begun.step_id, 1.0)
    after = time.time()
    await client.sleep(task.run_id, begun.step_id, 30.0)  # repeated: keeps the first time
    run = await client.get(run_id)
    assert run.status == SLEEPING
    wake_up = run.wake_up_at.ToMicroseconds() / 1e6
    assert before + 0.95 <= wake_up <= after + 1.05
    second = await client.poll("w", timeout=20)
    assert second.run_id.startswith(run_id)
    assert time.time() >= wake_up - 0.05
    assert not (await client.begin(second.run_id, "nap", SLEEP)).should_execute
    assert not (await client.begin(second.run_id, "nap", SLEEP)).should_execute
    function = await client.begin(second.run_id, "nap")  # a step of the same name is another one
    assert function.should_execute
    await client.complete(second.run_id, function.step_id, b"1")
    assert await client.complete_workflow(second.run_id, b"2") == COMPLETED


async def test_a_sleep_that_was_never_begun_does_not_vanish(hasty: Client) -> None:
    """Its worker dies between BeginStep and Sleep."""
    client = hasty
    await client.register("w")
    await client.start("w")
    task = await client.poll("w")
    assert (await client.begin(task.run_id, "nap", SLEEP)).should_execute
    second = await client.poll("w", timeout=20)
    assert second.run_id != task.run_id
    begun = await client.begin(second.run_id, "nap", SLEEP)
    assert begun.should_execute
    await client.sleep(second.run_id, begun.step_id, 0.1)
    third = await client.poll("w")
    assert not (await client.begin(third.run_id, "nap", SLEEP)).should_execute


async def test_retries_are_parked_by_the_server(client: Client) -> None:
    await client.register("w")
    run_id = await client.start("w")
    policy = common_pb2.RetryPolicy(maximum_attempts=3, initial_interval_ms=200, backoff_coefficient=1.0)
    handles = []
    for attempt in (1, 2, 3):
        task = await client.poll("w")
        handles.append(task.run_id)
        begun = await client.begin(task.run_id, "flaky", retry_policy=policy)
        assert begun.should_execute
        failed = await client.fail(task.run_id, begun.step_id, message=f"no {attempt}", code=7)
        if attempt < 3:
            assert failed.scheduled_retry
            assert failed.retry_at.ToMicroseconds() > 0
            assert (await client.get(run_id)).status == SLEEPING
            assert await client.fail(task.run_id, begun.step_id, message="again") == failed
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await client.begin(task.run_id, "other")
            assert refused.value.code() is PRECONDITION
        else:
            assert not failed.scheduled_retry
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await client.begin(handles[-1], "flaky", retry_policy=policy)
    assert refused.value.code() is PRECONDITION
    assert detail_of(refused.value).message == "no 3"
    assert len(set(handles)) == 3
    assert await client.fail_workflow(handles[-1], message="gave up", code=common_pb2.ERROR_CODE_INTERNAL) == FAILED
    assert await client.fail_workflow(handles[-1], message="gave up") == FAILED
    run = await client.get(run_id)
    assert (run.status, run.error.message, run.error.code) == (FAILED, "gave up", common_pb2.ERROR_CODE_INTERNAL)
    assert [(step.attempt_number, step.error.message) for step in await client.steps(run_id)] == [
        (1, "no 1"),
        (2, "no 2"),
        (3, "no 3"),
    ]


SOON = common_pb2.RetryPolicy(maximum_attempts=3, initial_interval_ms=50)


async def test_steps_beside_one_that_is_retried_finish_and_are_recorded(client: Client) -> None:
    await client.register("w")
    run_id = await client.start("w")
    task = await client.poll("w")
    first = await client.begin(task.run_id, "a", retry_policy=SOON)
    second = await client.begin(task.run_id, "b", retry_policy=SOON)
    third = await client.begin(task.run_id, "c")
    failed = await client.fail(task.run_id, first.step_id, message="no")
    assert failed.scheduled_retry
    also = await client.fail(task.run_id, second.step_id, message="nor this")
    assert also.scheduled_retry
    assert (await client.get(run_id)).status == workflow_pb2.WORKFLOW_STATUS_RUNNING  # c has not finished
    assert (await client.complete(task.run_id, third.step_id, b'"c"')).output.data == b'"c"'
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await client.begin(task.run_id, "d")  # and now it was let go of
    assert refused.value.code() is PRECONDITION
    assert (await client.complete(task.run_id, third.step_id, b'"c"')).output.data == b'"c"'

    task = await client.poll("w")
    for name in ("a", "b"):
        begun = await client.begin(task.run_id, name)
        assert begun.should_execute
        assert (await client.complete(task.run_id, begun.step_id, b"1")).attempt_number == 2
    assert (await client.begin(task.run_id, "c")).cached_output.data == b'"c"'
    assert await client.complete_workflow(task.run_id, b"1") == COMPLETED
    assert (await client.get(run_id)).attempts == 0


async def test_steps_that_were_given_up_with_the_one_that_failed(hasty: Client) -> None:
    """A worker that lets go of the whole run says nothing more about it, and goes on with its heartbeats."""
    client = hasty
    worker_id = await client.register("w")
    run_id = await client.start("w")
    task = await client.poll("w")
    first = await client.begin(task.run_id, "a", retry_policy=SOON)
    await client.begin(task.run_id, "b")
    assert (await client.fail(task.run_id, first.step_id, message="no")).scheduled_retry

    async def beat() -> None:
        while True:
            await client.heartbeat()
            await asyncio.sleep(0.2)

    beating = asyncio.ensure_future(beat())
    again = await client.poll("w", timeout=15)
    beating.cancel()
    assert again.run_id.startswith(run_id)
    assert again.run_id != task.run_id
    assert (await client.begin(again.run_id, "a")).should_execute
    assert (await client.begin(again.run_id, "b")).should_execute
    assert (await client.admin.GetWorker(admin_pb2.GetWorkerRequest(worker_id=worker_id))).worker.status == 1


async def test_a_run_that_fails_while_its_step_is_being_retried_is_parked(client: Client) -> None:
    await client.register("w")
    run_id = await client.start("w")
    task = await client.poll("w")
    first = await client.begin(task.run_id, "a", retry_policy=SOON)
    await client.begin(task.run_id, "b")
    assert (await client.fail(task.run_id, first.step_id, message="no")).scheduled_retry
    assert await client.fail_workflow(task.run_id, message="a is retried") == SLEEPING
    assert await client.fail_workflow(task.run_id, message="a is retried") == SLEEPING
    again = await client.poll("w", timeout=5)
    assert again.run_id.startswith(run_id)
    assert (await client.begin(again.run_id, "a")).should_execute
    assert await client.fail_workflow(again.run_id, message="over") == FAILED


async def test_an_error_may_forbid_its_retry_or_ask_for_patience(client: Client) -> None:
    await client.register("w")
    await client.start("w")
    task = await client.poll("w")
    final = await client.begin(task.run_id, "final")
    assert not (await client.fail(task.run_id, final.step_id, message="no", non_retryable=True)).scheduled_retry
    wrong = await client.begin(task.run_id, "wrong")
    code = common_pb2.ERROR_CODE_INVALID_ARGUMENT
    assert not (await client.fail(task.run_id, wrong.step_id, message="no", code=code)).scheduled_retry
    named = await client.begin(
        task.run_id, "named", retry_policy=common_pb2.RetryPolicy(maximum_attempts=9, non_retryable_errors=["my.Error"])
    )
    assert not (
        await client.fail(task.run_id, named.step_id, message="no", metadata={"type": "my.Error"})
    ).scheduled_retry
    single = await client.begin(task.run_id, "single", retry_policy=common_pb2.RetryPolicy())
    assert not (await client.fail(task.run_id, single.step_id, message="no")).scheduled_retry
    busy = await client.begin(task.run_id, "busy")
    before = time.time()
    failed = await client.fail(task.run_id, busy.step_id, message="later", retry_after_ms=60_000)
    assert failed.scheduled_retry
    assert before + 55 < failed.retry_at.ToMicroseconds() / 1e6 < time.time() + 65


async def test_a_run_with_a_policy_of_its_own_is_tried_again(client: Client) -> None:
    await client.register("w")
    policy = common_pb2.RetryPolicy(maximum_attempts=2, initial_interval_ms=50)
    run_id = await client.start("w", retry_policy=policy)
    task = await client.poll("w")
    begun = await client.begin(task.run_id, "a")
    await client.complete(task.run_id, begun.step_id, b"1")
    assert await client.fail_workflow(task.run_id, message="once") == PENDING
    second = await client.poll("w")
    assert not (await client.begin(second.run_id, "a")).should_execute
    assert await client.fail_workflow(second.run_id, message="twice") == FAILED
    run = await client.get(run_id)
    assert (run.attempts, run.error.message) == (1, "twice")


async def test_heartbeats_without_a_list_renew_what_was_called_about(hasty: Client) -> None:
    client = hasty
    await client.register("w")
    await client.start("w")
    await client.start("w")
    quiet, busy = await client.poll("w"), await client.poll("w")
    begun = await client.begin(busy.run_id, "long")
    end = time.monotonic() + 1.2 * SHORT / SECOND
    while time.monotonic() < end:
        await asyncio.sleep(0.2)
        answer = await client.heartbeat()
        assert (answer.accepted, answer.should_drain) == (True, False)
    await client.complete(busy.run_id, begun.step_id, b"1")
    # The other claim was never called about, so it went back.
    again = await client.poll("w", timeout=20)
    assert again.run_id.partition(".")[0] == quiet.run_id.partition(".")[0]
    assert again.run_id != quiet.run_id


async def test_polls_of_one_worker_wait_side_by_side(client: Client) -> None:
    await client.register("w")
    polls = [asyncio.ensure_future(client.poll("w", timeout=20)) for _ in range(3)]
    await asyncio.sleep(0.3)
    assert not any(poll.done() for poll in polls)
    started = {await client.start("w") for _ in range(3)}
    tasks = await asyncio.gather(*polls)
    assert {task.run_id.partition(".")[0] for task in tasks} == started


async def test_a_poll_that_is_given_up_takes_nothing_along(client: Client) -> None:
    await client.register("w")
    for _ in range(3):
        poll = asyncio.ensure_future(client.poll("w"))
        await asyncio.sleep(0.1)
        poll.cancel()
    assert await client.polled_nothing("w")
    await client.start("w")
    # Had one of them taken it along, it would be there again only after its lease, which is longer than this waits.
    assert (await client.poll("w", timeout=20)).run_id


async def test_draining_and_unknown_workers(client: Client) -> None:
    await client.register("w")
    await client.start("w")
    task = await client.poll("w")
    await client.begin(task.run_id, "a")
    drain = await client.workers.Deregister(worker_pb2.DeregisterRequest(worker_id=client.worker_id, drain=True))
    assert not drain.drained
    assert (await client.heartbeat()).should_drain
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await client.poll("w")
    assert refused.value.code() is PRECONDITION
    assert await client.complete_workflow(task.run_id, b"1") == COMPLETED
    assert (
        await client.workers.Deregister(worker_pb2.DeregisterRequest(worker_id=client.worker_id, drain=True))
    ).drained
    client.worker_id = "00000000-0000-4000-8000-000000000001"
    for call in (client.heartbeat(), client.poll("w")):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call
        assert refused.value.code() is grpc.StatusCode.NOT_FOUND


async def test_what_does_not_exist(client: Client) -> None:
    await client.register("w")
    run_id = await client.start("w")
    task = await client.poll("w")
    unknown = "0190a5f2-7c3e-7d31-9a51-0c8e6b1f2a44"
    token = task.run_id.partition(".")[2]
    cases = [
        (client.begin(f"{unknown}.{token}", "a"), grpc.StatusCode.NOT_FOUND),
        (client.begin(run_id, "a"), grpc.StatusCode.INVALID_ARGUMENT),
        (client.begin(f"{run_id}.x", "a"), grpc.StatusCode.INVALID_ARGUMENT),
        (client.begin(f"{run_id}.{unknown}", "a"), PRECONDITION),
        (client.begin(task.run_id, ""), grpc.StatusCode.INVALID_ARGUMENT),
        (client.begin(task.run_id, "a", kind=99), grpc.StatusCode.INVALID_ARGUMENT),
        (client.begin(task.run_id, "a", kind=worker_pb2.STEP_KIND_CANCEL), grpc.StatusCode.INVALID_ARGUMENT),
        (client.complete(task.run_id, "nonsense", b"1"), grpc.StatusCode.NOT_FOUND),
        (client.complete(task.run_id, f"{run_id}.1..never", b"1"), grpc.StatusCode.NOT_FOUND),
        (client.fail(task.run_id, f"{unknown}.1..a", message="x"), grpc.StatusCode.NOT_FOUND),
        (client.sleep(task.run_id, f"{run_id}.1..a", -1), grpc.StatusCode.INVALID_ARGUMENT),
        (client.get(unknown), grpc.StatusCode.NOT_FOUND),
    ]
    for call, code in cases:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call
        assert refused.value.code() is code, refused.value.details()
        assert detail_of(refused.value).message
    other = Client(client.target, namespace="elsewhere")
    async with other:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await other.begin(task.run_id, "a")
        assert refused.value.code() is grpc.StatusCode.NOT_FOUND


async def test_payloads_keep_their_metadata(client: Client) -> None:
    await client.register("w")
    request = workflow_pb2.StartWorkflowRequest(workflow_type="w", input=payload(b"\x01\x02", encoding="binary"))
    run_id = (await client.workflows.StartWorkflow(request)).run_id
    task = await client.poll("w")
    assert (task.input.data, dict(task.input.metadata)) == (b"\x01\x02", {"encoding": "binary"})
    begun = await client.begin(task.run_id, "a")
    await client.workers.CompleteStep(
        worker_pb2.CompleteStepRequest(
            run_id=task.run_id, step_id=begun.step_id, output=payload(b"\x03", encoding="binary")
        )
    )
    cached = (await client.begin(task.run_id, "a")).cached_output
    assert (cached.data, dict(cached.metadata)) == (b"\x03", {"encoding": "binary"})
    run = await client.get(run_id)
    assert dict(run.input.metadata) == {"encoding": "binary"}


async def test_every_version_is_served(client: Client) -> None:
    await client.register("w")
    await client.start("w", version="7")
    assert (await client.poll("w")).run_id


async def test_a_cancelled_run_of_such_a_worker_ends_at_once(client: Client) -> None:
    await client.register("w")
    run_id = await client.start("w")
    task = await client.poll("w")
    await client.begin(task.run_id, "a")
    answer = await client.workflows.CancelWorkflow(workflow_pb2.CancelWorkflowRequest(run_id=run_id))
    assert (answer.cancelled, answer.status) == (True, workflow_pb2.WORKFLOW_STATUS_CANCELLED)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await client.complete_workflow(task.run_id, b"1")
    assert refused.value.code() is PRECONDITION
    retried = await client.workflows.RetryWorkflow(workflow_pb2.RetryWorkflowRequest(run_id=run_id))
    assert (await client.poll("w")).run_id.startswith(retried.new_run_id)


async def test_another_server_goes_on(url: str) -> None:
    async with serving(url, 30 * SECOND) as first, serving(url, 30 * SECOND) as second:
        async with Client(first.target) as here, Client(second.target) as there:
            await here.register("w")
            await here.start("w")
            task = await here.poll("w")
            begun = await here.begin(task.run_id, "a")
            await there.complete(task.run_id, begun.step_id, b"1")
            assert not (await here.begin(task.run_id, "a")).should_execute
            there.worker_id = here.worker_id
            assert (await there.heartbeat()).accepted
            assert await there.complete_workflow(task.run_id, b"1") == COMPLETED


async def test_a_retry_that_nobody_begins_again_does_not_keep_a_run_from_failing(url: str) -> None:
    async with serving(url) as first, Client(first.target) as client:
        await client.register("w")
        run_id = await client.start("w")
        task = await client.poll("w")
        begun = await client.begin(task.run_id, "a", retry_policy=SOON)
        assert (await client.fail(task.run_id, begun.step_id, message="no")).scheduled_retry
        task = await client.poll("w")
        async with serving(url) as second, Client(second.target) as other:
            assert await other.fail_workflow(task.run_id, message="given up") == FAILED
        assert (await client.get(run_id)).error.message == "given up"


async def test_runs_that_timed_out_are_among_those_that_failed(client: Client) -> None:
    await client.register("w")
    failed = await client.start("w")
    task = await client.poll("w")
    await client.fail_workflow(task.run_id, message="no")
    expired = await client.start("w", timeout_us=1)
    await client.workflows.WaitWorkflow(
        workflow_pb2.WaitWorkflowRequest(namespace="default", run_id=expired, wait_us=10 * SECOND), timeout=15
    )
    listed = await client.workflows.ListWorkflows(
        workflow_pb2.ListWorkflowsRequest(status_filter=FAILED, page=common_pb2.PageRequest(include_total_count=True))
    )
    assert [run.run_id for run in listed.workflows] == [expired, failed]
    assert listed.workflows[0].error.code == common_pb2.ERROR_CODE_TIMEOUT
    assert {run.status for run in listed.workflows} == {FAILED}
    assert listed.page.total_count == 2
    first = workflow_pb2.ListWorkflowsRequest(
        status_filter=FAILED, page=common_pb2.PageRequest(page_size=1, include_total_count=True)
    )
    page = (await client.workflows.ListWorkflows(first)).page
    assert (page.total_count, page.has_more, page.total_is_least) == (2, True, False)
    first.page.page_token = page.next_page_token
    rest = await client.workflows.ListWorkflows(first)
    assert [run.run_id for run in rest.workflows] == [failed]
    none = workflow_pb2.ListWorkflowsRequest(
        workflow_type="other", page=common_pb2.PageRequest(include_total_count=True)
    )
    assert (await client.workflows.ListWorkflows(none)).page.total_count == 0


async def test_deregistering_hands_runs_back_at_once(url: str) -> None:
    async with serving(url, 60 * SECOND) as server, Client(server.target) as client:
        worker_id = await client.register("w")
        run_id = await client.start("w")
        task = await client.poll("w")
        begun = await client.begin(task.run_id, "a")
        async with Client(server.target) as other:
            await other.register("w")
            waiting = asyncio.ensure_future(other.poll("w", timeout=30))
            await client.workers.Deregister(worker_pb2.DeregisterRequest(worker_id=worker_id))
            again = await asyncio.wait_for(waiting, 10)
            assert again.run_id.startswith(run_id)
            assert (await other.begin(again.run_id, "a")).should_execute
            with pytest.raises(grpc.aio.AioRpcError):
                await client.complete(task.run_id, begun.step_id, b"late")
        run = await client.get(run_id)
        assert (run.attempts, run.crashes, run.executions) == (0, 0, 2)


async def test_payloads_that_look_like_what_we_store(client: Client) -> None:
    """Metadata is kept behind a mark. Bytes of a client's own that begin with it are bytes like any others."""
    await client.register("w")
    for data in (b"\x00kagzi.v1.Payload\x00", b"\x00kagzi.v1.Payload\x00\xff"):
        run_id = await client.start("w", data)
        task = await client.poll("w")
        assert task.input.data == data
        begun = await client.begin(task.run_id, "s")
        assert (await client.complete(task.run_id, begun.step_id, data)).output.data == data
        await client.complete_workflow(task.run_id, data)
        assert (await client.get(run_id)).output.data == data


async def test_retrying_in_a_namespace_that_is_none_does_not_make_it(client: Client) -> None:
    retry = workflow_pb2.RetryWorkflowRequest(namespace="typo", run_id="0190a5f2-7c3e-7d31-9a51-0c8e6b1f2a44")
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await client.workflows.RetryWorkflow(retry)
    assert refused.value.code() is grpc.StatusCode.NOT_FOUND
    listed = await client.namespaces.ListNamespaces(namespace_pb2.ListNamespacesRequest())
    assert [namespace.namespace for namespace in listed.namespaces] == ["default"]


async def test_a_run_that_a_step_starts_names_the_step(client: Client) -> None:
    await client.register("w")
    parent = await client.start("w")
    task = await client.poll("w")
    step_id = (await client.begin(task.run_id, "send")).step_id
    start = workflow_pb2.StartWorkflowRequest(workflow_type="other", parent_step_attempt_id=step_id)
    run = await client.get((await client.workflows.StartWorkflow(start)).run_id)
    assert (run.parent_run_id, run.parent_step_id, run.parent_step_attempt_id) == (parent, "send", step_id)
    assert run.parent_policy == "none"
    # A run of nobody's, or of another namespace, has started nothing here; nor has what is no step.
    await client.namespaces.CreateNamespace(namespace_pb2.CreateNamespaceRequest(namespace="elsewhere"))
    foreign = workflow_pb2.StartWorkflowRequest(
        namespace="elsewhere", workflow_type="other", parent_step_attempt_id=step_id
    )
    unknown = workflow_pb2.StartWorkflowRequest(workflow_type="other", parent_step_attempt_id="send")
    for refused in (foreign, unknown):
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await client.workflows.StartWorkflow(refused)
        assert error.value.code() is grpc.StatusCode.NOT_FOUND
