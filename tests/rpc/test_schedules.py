"""WorkflowScheduleService as clients in the field know it: nothing from 50 up is sent."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from kagzi._proto.v1 import common_pb2, workflow_schedule_pb2_grpc
from kagzi._proto.v1 import workflow_schedule_pb2 as pb
from tests.rpc.support import Client, detail_of, payload, serving


@pytest.fixture
async def client(url: str) -> AsyncIterator[Client]:
    async with serving(url) as server, Client(server.target) as client:
        yield client


@pytest.fixture
def schedules(client: Client) -> Any:
    return workflow_schedule_pb2_grpc.WorkflowScheduleServiceStub(client.channel)


async def create(schedules: Any, **fields: Any) -> pb.WorkflowSchedule:
    request = pb.CreateWorkflowScheduleRequest(
        **{
            "namespace": "default",
            "workflow_type": "report",
            "cron_expr": "0 0 9 * * MON-FRI",
            "input": payload(b'["x"]'),
            **fields,
        }
    )
    made: pb.WorkflowSchedule = (await schedules.CreateWorkflowSchedule(request)).schedule
    return made


def asked(request: type[Any], made: pb.WorkflowSchedule, **fields: Any) -> Any:
    return request(namespace="default", schedule_id=made.schedule_id, **fields)


async def test_a_schedule_from_beginning_to_end(client: Client, schedules: Any) -> None:
    made = await create(schedules)
    assert (made.task_queue, made.enabled, made.max_catchup, made.version) == ("report", True, 100, "")
    assert (made.input.data, made.total_runs) == (b'["x"]', 0)
    assert made.HasField("next_fire_at")
    assert not made.HasField("last_fired_at")
    assert (await schedules.GetWorkflowSchedule(asked(pb.GetWorkflowScheduleRequest, made))).schedule == made

    changed = (
        await schedules.UpdateWorkflowSchedule(
            asked(pb.UpdateWorkflowScheduleRequest, made, cron_expr="0 * * * * *", max_catchup=0, version="2")
        )
    ).schedule
    assert (changed.cron_expr, changed.max_catchup, changed.version) == ("0 * * * * *", 0, "2")
    assert changed.input == made.input
    paused = (await schedules.PauseWorkflowSchedule(asked(pb.PauseWorkflowScheduleRequest, made))).schedule
    assert not paused.enabled
    assert not paused.HasField("next_fire_at")
    run_id = (await schedules.TriggerWorkflowSchedule(asked(pb.TriggerWorkflowScheduleRequest, made))).run_id
    resumed = (await schedules.ResumeWorkflowSchedule(asked(pb.ResumeWorkflowScheduleRequest, made))).schedule
    assert (resumed.enabled, resumed.total_runs) == (True, 1)
    listed = await schedules.ListScheduleRuns(asked(pb.ListScheduleRunsRequest, made))
    assert [(run.run_id, run.workflow_type, run.version) for run in listed.runs] == [(run_id, "report", "2")]

    deleted = await schedules.DeleteWorkflowSchedule(asked(pb.DeleteWorkflowScheduleRequest, made))
    assert deleted.deleted
    assert deleted.message
    with pytest.raises(grpc.aio.AioRpcError) as gone:
        await schedules.GetWorkflowSchedule(asked(pb.GetWorkflowScheduleRequest, made))
    assert gone.value.code() is grpc.StatusCode.NOT_FOUND


async def test_lists_have_pages(schedules: Any) -> None:
    ids = [(await create(schedules, task_queue=queue)).schedule_id for queue in ("a", "b", "a")]
    request = pb.ListWorkflowSchedulesRequest(
        namespace="default", task_queue="a", page=common_pb2.PageRequest(page_size=1)
    )
    first = await schedules.ListWorkflowSchedules(request)
    assert ([each.schedule_id for each in first.schedules], first.page.has_more) == ([ids[2]], True)
    request.page.page_token = first.page.next_page_token
    second = await schedules.ListWorkflowSchedules(request)
    assert ([each.schedule_id for each in second.schedules], second.page.has_more) == ([ids[0]], False)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"cron_expr": "61 * * * *"}, "cron_expr: Bad minute '61' in '61 * * * *'"),
        ({"cron_expr": "0 0 9 * * 1-5"}, "numbers mean other days in other programs; write names such as MON-FRI"),
        ({"cron_expr": "0 0 9 1 * MON"}, "restricts both the day of the month and the day of the week"),
        ({"cron_expr": ""}, "cron_expr is empty"),
        ({"workflow_type": ""}, "workflow type must not be empty"),
        ({"max_catchup": -1}, "max_catchup must be a whole number from 0 to 10,000"),
        ({"timezone": "Mars/Olympus"}, "time zone"),
        ({"overlap": "never"}, "overlap must be one of"),
        ({"jitter_ms": -1}, "jitter_ms must be between 0 and 86,400,000"),
        ({"schedule_id": "x"}, "schedule id must be a UUID"),
    ],
)
async def test_bad_input_names_the_field(schedules: Any, fields: dict[str, Any], told: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await create(schedules, **fields)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert detail_of(refused.value).code == common_pb2.ERROR_CODE_INVALID_ARGUMENT
    assert told in (refused.value.details() or "")


async def test_what_has_fired_cannot_be_the_next_firing(schedules: Any) -> None:
    made = await create(schedules)
    update = asked(pb.UpdateWorkflowScheduleRequest, made, next_fire_at=Timestamp(seconds=1_600_000_000))
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await schedules.UpdateWorkflowSchedule(update)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "use backfill or trigger" in (refused.value.details() or "")
    update.next_fire_at.FromJsonString("2100-01-01T00:00:00Z")
    changed = (await schedules.UpdateWorkflowSchedule(update)).schedule
    assert changed.next_fire_at.ToJsonString() == "2100-01-01T00:00:00Z"


async def test_preview_and_backfill(schedules: Any) -> None:
    preview = pb.PreviewWorkflowScheduleRequest(cron_expr="30 2 * * *", timezone="Europe/Berlin", count=2)
    preview.after.FromJsonString("2026-03-28T12:00:00Z")
    first, second = (await schedules.PreviewWorkflowSchedule(preview)).firings
    assert (first.at.ToJsonString(), first.local) == ("2026-03-29T01:00:00Z", "2026-03-29T03:00:00+02:00")
    assert "moved" in first.note
    assert second.note == ""
    assert (
        len((await schedules.PreviewWorkflowSchedule(pb.PreviewWorkflowScheduleRequest(cron_expr="@daily"))).firings)
        == 10
    )

    made = await create(schedules, cron_expr="@daily")
    backfill = asked(pb.BackfillWorkflowScheduleRequest, made)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await schedules.BackfillWorkflowSchedule(backfill)
    assert "since is missing" in (refused.value.details() or "")
    backfill.since.FromJsonString("2026-01-01T00:00:00Z")
    backfill.until.FromJsonString("2026-01-11T00:00:00Z")
    assert (await schedules.BackfillWorkflowSchedule(backfill)).started == 10
    again = await schedules.BackfillWorkflowSchedule(backfill)
    assert (again.started, again.existing) == (0, 10)
