"""Each RPC is called with the worst that it accepts, and computes for a few milliseconds in one go."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from kagzi._proto.v1 import admin_pb2, common_pb2, job_pb2, worker_pb2, workflow_pb2
from kagzi._proto.v1 import workflow_schedule_pb2 as sch
from kagzi.core.instant import SECOND
from kagzi.core.limits import NAME_CHARACTERS
from kagzi.rpc import limits
from kagzi.rpc.methods import METHODS, Method
from kagzi.rpc.server.server import RpcServer
from tests.http.support import engine_on
from tests.ports.slices import BOUND_MS, Slices, allowed_ms, slices
from tests.ports.worst import IDS, NAME, PAYLOAD, SPARSE, TAGS, World, furnish, schema_of_many
from tests.rpc import test_bad_calls
from tests.rpc.support import Client, payload

_TRIES = 5
# What is refused although it is the worst, or all that can be said without what only a worker knows.
REFUSED = {
    "AwaitChild": "FAILED_PRECONDITION",
    "CompleteStep": "FAILED_PRECONDITION",
    "CompleteWorkflow": "FAILED_PRECONDITION",
    "DisableNamespace": "NOT_FOUND",
    "EnableNamespace": "NOT_FOUND",
    "FailStep": "FAILED_PRECONDITION",
    "FailWorkflow": "FAILED_PRECONDITION",
    "GetHistory": "INVALID_ARGUMENT",
    "GetNamespace": "NOT_FOUND",
    "PreviewWorkflowSchedule": "INVALID_ARGUMENT",
    "ReadInbox": "INVALID_ARGUMENT",
    "Sleep": "FAILED_PRECONDITION",
    "UpdateNamespace": "NOT_FOUND",
}
_PAGE = common_pb2.PageRequest(page_size=100)
_NS = {"namespace": "default"}
_BODY = payload(PAYLOAD)


def worst(world: World) -> dict[str, list[Message]]:
    """Returns what is sent, by RPC; the others are sent what is good for them."""
    ended: dict[str, Any] = {**_NS, "run_id": world.ended}
    pending: dict[str, Any] = {**_NS, "run_id": world.pending}
    schedule: dict[str, Any] = {**_NS, "schedule_id": world.schedule}
    limit: dict[str, Any] = {**_NS, "scope": 2, "name": NAME}
    version: dict[str, Any] = {**_NS, "workflow_type": world.workflow}
    start = workflow_pb2.StartWorkflowRequest(
        **_NS, workflow_type=NAME, task_queue="many", input=payload(b"[]"), version=NAME, tags=TAGS
    )
    step = worker_pb2.StepRecord(step_id="s" * 100, attempt=1, kind=1, status=3, completed_seq=1, started_at_us=1)
    strangers = [worker_pb2.Chunk(run_id=IDS.run_id(), token=IDS.token(), steps=[step]) for _ in range(1000)]
    stranger = worker_pb2.Chunk(run_id=IDS.run_id(), token=IDS.token(), steps=[step] * 5_000)
    times: dict[str, Any] = {"cron_expr": SPARSE, "timezone": "Europe/Berlin"}
    return {
        "BackfillWorkflowSchedule": [
            sch.BackfillWorkflowScheduleRequest(**schedule, since=_at(0), until=_at(86400 * 365 * 50))
        ],
        "ClearLimit": [admin_pb2.ClearLimitRequest(**limit)],
        "CommitBatch": [
            worker_pb2.CommitBatchRequest(**_NS, chunks=strangers),
            worker_pb2.CommitBatchRequest(**_NS, chunks=[stranger]),
        ],
        "CreateWorkflowSchedule": [
            sch.CreateWorkflowScheduleRequest(**_NS, workflow_type=NAME, task_queue=NAME, input=_BODY, **times)
        ],
        "DeleteWorkflowSchedule": [sch.DeleteWorkflowScheduleRequest(**_NS, schedule_id=world.other_schedule)],
        "GetSlotWait": [admin_pb2.GetSlotWaitRequest(**pending)],
        "GetWorkflow": [workflow_pb2.GetWorkflowRequest(**pending)],
        "GetWorkflowInterface": [admin_pb2.GetWorkflowInterfaceRequest(**version, version=world.version)],
        "GetWorkflowReport": [admin_pb2.GetWorkflowReportRequest(**version)],
        "GetWorkflowSchedule": [sch.GetWorkflowScheduleRequest(**schedule)],
        "GetWorkflowValues": [workflow_pb2.GetWorkflowValuesRequest(**ended)],
        "ListJobs": [job_pb2.ListJobsRequest(**_NS, page=_PAGE)],
        "ListLimits": [admin_pb2.ListLimitsRequest(**_NS)],
        "ListScheduleRuns": [sch.ListScheduleRunsRequest(**schedule)],
        "ListScheduleSkips": [sch.ListScheduleSkipsRequest(**schedule)],
        "ListSignals": [workflow_pb2.ListSignalsRequest(**pending)],
        "ListSteps": [admin_pb2.ListStepsRequest(**ended, page=_PAGE), admin_pb2.ListStepsRequest(**ended, fill=True)],
        "ListVersions": [admin_pb2.ListVersionsRequest(**_NS)],
        "ListWorkers": [admin_pb2.ListWorkersRequest(**_NS, page=_PAGE)],
        "ListWorkflows": [workflow_pb2.ListWorkflowsRequest(**_NS, page=_PAGE)],
        "ListWorkflowSchedules": [sch.ListWorkflowSchedulesRequest(**_NS, page=_PAGE)],
        "MoveCheckedWorkflows": [
            admin_pb2.MoveCheckedWorkflowsRequest(**version, from_version="1", to_version=world.version)
        ],
        "MoveWorkflows": [admin_pb2.MoveWorkflowsRequest(**version, from_version="1", to_version=world.version)],
        "PauseClaims": [admin_pb2.PauseClaimsRequest(**limit, reason="r" * 2000)],
        "PauseWorkflowSchedule": [sch.PauseWorkflowScheduleRequest(**schedule, reason="r" * 2000)],
        "PollTask": [
            worker_pb2.PollTaskRequest(**_NS, worker_id=world.worker, task_queue="many", workflow_types=[NAME])
        ],
        "PollTasks": [
            worker_pb2.PollTasksRequest(
                **_NS,
                worker_id=world.worker,
                queues=["many"],
                types=[worker_pb2.WorkflowType(name=NAME)],
                limit=1000,
                number=1,
                token=IDS.token(),
            )
        ],
        "PreviewWorkflowSchedule": [
            sch.PreviewWorkflowScheduleRequest(**times, count=100),
            sch.PreviewWorkflowScheduleRequest(cron_expr=SPARSE, timezone="Europe/" + "x" * 57),
        ],
        "RetryWorkflow": [workflow_pb2.RetryWorkflowRequest(**ended)],
        "Register": [_registration()],
        "ResumeClaims": [admin_pb2.ResumeClaimsRequest(**limit)],
        "ResumeWorkflowSchedule": [sch.ResumeWorkflowScheduleRequest(**schedule)],
        "SetDefaultVersion": [admin_pb2.SetDefaultVersionRequest(**version, version=world.version)],
        "SetLimit": [admin_pb2.SetLimitRequest(**limit, concurrency=1)],
        "SignalWorkflow": [workflow_pb2.SignalWorkflowRequest(**pending, name=NAME, value=_BODY)],
        "StartWorkflow": [workflow_pb2.StartWorkflowRequest(**_NS, workflow_type=NAME, task_queue=NAME, input=_BODY)],
        "StartWorkflows": [workflow_pb2.StartWorkflowsRequest(**_NS, starts=[start] * limits.CALL_ITEMS)],
        "TriggerWorkflowSchedule": [sch.TriggerWorkflowScheduleRequest(**schedule, run_id=IDS.run_id())],
        "UpdateWorkflowSchedule": [sch.UpdateWorkflowScheduleRequest(**schedule, input=_BODY, **times)],
        "WaitNews": [worker_pb2.WaitNewsRequest(**_NS, worker_id=world.worker, wait_us=1)],
        "WaitWorkflows": [workflow_pb2.WaitWorkflowsRequest(**_NS, run_ids=[IDS.run_id() for _ in range(1000)])],
        "WakeWorkflow": [workflow_pb2.WakeWorkflowRequest(**pending)],
    }


def _at(seconds: int) -> Timestamp:
    return Timestamp(seconds=seconds)


def _registration() -> Message:
    """Returns what a worker may tell of at most: types, schedules with expressions of their own, and schemas."""
    names = [f"{number}" + "w" * 100 for number in range(1000)]
    return worker_pb2.RegisterRequest(
        **_NS,
        task_queue="q",
        queues=["q"],
        workflow_types=names,
        hostname="h" * NAME_CHARACTERS,
        pid=1,
        labels={f"{number}": "v" * 100 for number in range(10)},
        schedules=[
            worker_pb2.DeclaredSchedule(
                name=f"s{number}",
                workflow_type=names[number],
                task_queue="q",
                cron_expr=f"{number % 60} {number // 60} */31 */2 1#1",
                timezone="Europe/Berlin",
                input=b"[]",
                max_catchup=1,
                overlap="allow",
                hash="h",
            )
            for number in range(200)  # each is a transaction
        ],
        interfaces=[
            worker_pb2.WorkflowInterface(workflow_type=names[number], input_schema=schema_of_many())
            for number in range(3)
        ],
    )


async def test_no_rpc_computes_for_long_in_one_go(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'kagzi.db'}"
    found: list[str] = []
    async with engine_on(url, lease=3600 * SECOND) as engine, RpcServer(engine) as server:
        world = await furnish(engine, url)
        requests = worst(world)
        async with Client(server.target) as client:
            goods = test_bad_calls.World(client)
            await goods.furnish()
            with slices() as seen:
                for method in sorted(METHODS.values(), key=_order):
                    for request in requests.get(method.rpc) or [goods.good(method)]:
                        found += await _call(server.target, method, request, seen)
    assert not found


def _order(method: Method) -> int:
    """Starts come first, and what ends something behind all else."""
    ends = ("Complete", "Fail", "Deregister", "Disable", "Delete", "Terminate", "Cancel", "Drain", "Sleep", "Await")
    return -1 if method.rpc.startswith("Start") else method.rpc.startswith(ends)


async def _call(target: str, method: Method, request: Message, seen: Slices) -> list[str]:
    data = request.SerializeToString()
    found: list[str] = []
    for _ in range(_TRIES):
        await asyncio.sleep(0)  # what this test computes does not count
        seen.reset()
        code, size = await asyncio.to_thread(_ask, target, method, data)
        found = []
        if code not in ("OK", REFUSED.get(method.rpc)):
            found.append(f"{method.rpc} refuses its worst input: {code}")
        if size > limits.MESSAGE_BYTES:
            found.append(f"{method.rpc} answers with {size:,} bytes")
        if seen.longest_ms <= BOUND_MS or seen.longest_ms <= allowed_ms():
            break
        found.append(f"{method.rpc} computes for {seen.longest_ms:.1f} ms in {seen.what}")
    return found


def _ask(target: str, method: Method, data: bytes) -> tuple[str, int]:
    options = [("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(target, options) as channel:
        call: Any = channel.unary_unary(method.path)
        try:
            return "OK", len(call(data, timeout=60))
        except grpc.RpcError as error:
            refused: Any = error
            return refused.code().name, 0
