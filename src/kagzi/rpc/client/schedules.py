"""Schedules of a server: `api.schedules` across the wire."""

from __future__ import annotations

import contextlib
from typing import Final, TypeVar

from google.protobuf.message import Message

from kagzi._proto.v1 import workflow_schedule_pb2 as pb
from kagzi.api.schedules import Backfilled, CreateSchedule, UpdateSchedule
from kagzi.core.instant import Instant
from kagzi.core.limits import DEFAULT_PAGE_SIZE
from kagzi.core.page import Page
from kagzi.core.run import Run
from kagzi.core.schedule import Schedule, Skip
from kagzi.errors import NotFound
from kagzi.rpc.client.line import READ_SECONDS, WRITE_SECONDS, Line, converted
from kagzi.rpc.convert.common import page_from_wire, page_request, timestamp
from kagzi.rpc.convert.runs import run_from_wire
from kagzi.rpc.convert.schedules import (
    create_to_wire,
    schedule_from_wire,
    skip_from_wire,
    update_to_wire,
)

M = TypeVar("M", bound=Message)

_SERVICE: Final = "WorkflowScheduleService"
_BACKFILL_SECONDS: Final = 60.0  # a thousand runs


class RemoteSchedules:
    """`api.schedules.ScheduleService`. All of it may be repeated: ids are made by the caller."""

    def __init__(self, line: Line) -> None:
        self._line = line

    async def create(self, create: CreateSchedule) -> Schedule:
        request = converted(create_to_wire, create)
        answer = await self._call("CreateWorkflowSchedule", request, pb.CreateWorkflowScheduleResponse, WRITE_SECONDS)
        return schedule_from_wire(answer.schedule)

    async def get(self, namespace: str, schedule_id: str) -> Schedule:
        request = converted(
            lambda asked: pb.GetWorkflowScheduleRequest(namespace=namespace, schedule_id=asked), schedule_id
        )
        answer = await self._call("GetWorkflowSchedule", request, pb.GetWorkflowScheduleResponse)
        return schedule_from_wire(answer.schedule)

    async def list(
        self,
        namespace: str,
        *,
        task_queue: str | None = None,
        page_size: int = DEFAULT_PAGE_SIZE,
        page_token: str | None = None,
    ) -> Page[Schedule]:
        request = converted(
            lambda asked: pb.ListWorkflowSchedulesRequest(
                namespace=asked, task_queue=task_queue, page=page_request(page_size, page_token)
            ),
            namespace,
        )
        answer = await self._call("ListWorkflowSchedules", request, pb.ListWorkflowSchedulesResponse)
        return page_from_wire([schedule_from_wire(schedule) for schedule in answer.schedules], answer.page)

    async def update(self, update: UpdateSchedule) -> Schedule:
        request = converted(update_to_wire, update)
        answer = await self._call("UpdateWorkflowSchedule", request, pb.UpdateWorkflowScheduleResponse, WRITE_SECONDS)
        return schedule_from_wire(answer.schedule)

    async def trigger(self, namespace: str, schedule_id: str, run_id: str) -> str:
        request = converted(
            lambda asked: pb.TriggerWorkflowScheduleRequest(namespace=namespace, schedule_id=asked, run_id=run_id),
            schedule_id,
        )
        answer = await self._call("TriggerWorkflowSchedule", request, pb.TriggerWorkflowScheduleResponse, WRITE_SECONDS)
        return answer.run_id

    async def backfill(self, namespace: str, schedule_id: str, since: Instant, until: Instant) -> Backfilled:
        request = converted(
            lambda asked: pb.BackfillWorkflowScheduleRequest(
                namespace=namespace, schedule_id=asked, since=timestamp(since), until=timestamp(until)
            ),
            schedule_id,
        )
        answer = await self._call(
            "BackfillWorkflowSchedule", request, pb.BackfillWorkflowScheduleResponse, _BACKFILL_SECONDS
        )
        return Backfilled(started=answer.started, existing=answer.existing)

    async def delete(self, namespace: str, schedule_id: str) -> None:
        request = converted(
            lambda asked: pb.DeleteWorkflowScheduleRequest(namespace=namespace, schedule_id=asked), schedule_id
        )
        await self.get(namespace, schedule_id)
        # What was there and is not any more is deleted, by this try or by one whose answer was lost.
        with contextlib.suppress(NotFound):
            await self._call("DeleteWorkflowSchedule", request, pb.DeleteWorkflowScheduleResponse, WRITE_SECONDS)

    async def runs(
        self, namespace: str, schedule_id: str, *, page_size: int = DEFAULT_PAGE_SIZE, page_token: str | None = None
    ) -> Page[Run]:
        request = converted(
            lambda asked: pb.ListScheduleRunsRequest(
                namespace=namespace, schedule_id=asked, page=page_request(page_size, page_token)
            ),
            schedule_id,
        )
        answer = await self._call("ListScheduleRuns", request, pb.ListScheduleRunsResponse)
        return page_from_wire([run_from_wire(run) for run in answer.runs], answer.page)

    async def skips(self, namespace: str, schedule_id: str) -> tuple[Skip, ...]:
        request = converted(
            lambda asked: pb.ListScheduleSkipsRequest(namespace=namespace, schedule_id=asked), schedule_id
        )
        answer = await self._call("ListScheduleSkips", request, pb.ListScheduleSkipsResponse)
        return tuple([skip_from_wire(skip) for skip in answer.skips])

    async def _call(self, rpc: str, request: Message, answer: type[M], seconds: float = READ_SECONDS) -> M:
        return await self._line.call(_SERVICE, rpc, request, answer, seconds=seconds)
