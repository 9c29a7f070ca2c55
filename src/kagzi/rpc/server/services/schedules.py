"""WorkflowScheduleService: templates that start runs by the clock."""

from __future__ import annotations

from zoneinfo import ZoneInfo

from kagzi._proto.v1 import workflow_schedule_pb2 as pb
from kagzi.api.schedules import UpdateSchedule
from kagzi.core.cron import check_zone, moved, parse_times, upcoming
from kagzi.core.instant import to_datetime
from kagzi.core.limits import DEFAULT_PAGE_SIZE
from kagzi.core.schedule import DEFAULT_PREVIEWED, check_count
from kagzi.ports.gradually import gradually
from kagzi.rpc.convert.common import optional_instant, page_info, page_size, timestamp
from kagzi.rpc.convert.runs import namespace_of, run_to_wire
from kagzi.rpc.convert.schedules import (
    backfill_from_wire,
    create_from_wire,
    schedule_to_wire,
    skip_to_wire,
    update_from_wire,
)
from kagzi.rpc.limits import ANSWER_BYTES
from kagzi.rpc.server.services.host import Call, Host


class ScheduleService:
    def __init__(self, host: Host) -> None:
        self._host = host
        self._schedules = host.engine.schedules

    async def CreateWorkflowSchedule(
        self,
        request: pb.CreateWorkflowScheduleRequest,
        call: Call,  # noqa: ARG002
    ) -> pb.CreateWorkflowScheduleResponse:
        create = create_from_wire(
            request,
            namespace=namespace_of(request.namespace),
            schedule_id=request.schedule_id or self._host.ids.run_id(),
        )
        return pb.CreateWorkflowScheduleResponse(schedule=schedule_to_wire(await self._schedules.create(create)))

    async def GetWorkflowSchedule(
        self,
        request: pb.GetWorkflowScheduleRequest,
        call: Call,  # noqa: ARG002
    ) -> pb.GetWorkflowScheduleResponse:
        found = await self._schedules.get(namespace_of(request.namespace), request.schedule_id)
        return pb.GetWorkflowScheduleResponse(schedule=schedule_to_wire(found))

    async def ListWorkflowSchedules(
        self,
        request: pb.ListWorkflowSchedulesRequest,
        call: Call,  # noqa: ARG002
    ) -> pb.ListWorkflowSchedulesResponse:
        size = page_size(request.page, DEFAULT_PAGE_SIZE)
        while True:
            page = await self._schedules.list(
                namespace_of(request.namespace),
                task_queue=request.task_queue if request.HasField("task_queue") else None,
                page_size=size,
                page_token=request.page.page_token or None,
            )
            if size == 1 or sum(len(each.input) for each in page.items) <= ANSWER_BYTES:
                return pb.ListWorkflowSchedulesResponse(
                    schedules=[schedule_to_wire(schedule) for schedule in page.items], page=page_info(page)
                )
            # A page of large payloads is a shorter page.
            size = max(1, min(size, len(page.items)) // 2)

    async def UpdateWorkflowSchedule(
        self,
        request: pb.UpdateWorkflowScheduleRequest,
        call: Call,  # noqa: ARG002
    ) -> pb.UpdateWorkflowScheduleResponse:
        update = update_from_wire(request, namespace=namespace_of(request.namespace))
        return pb.UpdateWorkflowScheduleResponse(schedule=schedule_to_wire(await self._schedules.update(update)))

    async def DeleteWorkflowSchedule(
        self,
        request: pb.DeleteWorkflowScheduleRequest,
        call: Call,  # noqa: ARG002
    ) -> pb.DeleteWorkflowScheduleResponse:
        await self._schedules.delete(namespace_of(request.namespace), request.schedule_id)
        return pb.DeleteWorkflowScheduleResponse(
            deleted=True, message=f"schedule {request.schedule_id} is deleted; the runs it started stay"
        )

    async def TriggerWorkflowSchedule(
        self,
        request: pb.TriggerWorkflowScheduleRequest,
        call: Call,  # noqa: ARG002
    ) -> pb.TriggerWorkflowScheduleResponse:
        run_id = await self._schedules.trigger(
            namespace_of(request.namespace), request.schedule_id, request.run_id or self._host.ids.run_id()
        )
        return pb.TriggerWorkflowScheduleResponse(run_id=run_id)

    async def PauseWorkflowSchedule(
        self,
        request: pb.PauseWorkflowScheduleRequest,
        call: Call,  # noqa: ARG002
    ) -> pb.PauseWorkflowScheduleResponse:
        paused = await self._schedules.update(
            UpdateSchedule(
                namespace=namespace_of(request.namespace),
                schedule_id=request.schedule_id,
                enabled=False,
                pause_reason=request.reason or None,
            )
        )
        return pb.PauseWorkflowScheduleResponse(schedule=schedule_to_wire(paused))

    async def ResumeWorkflowSchedule(
        self,
        request: pb.ResumeWorkflowScheduleRequest,
        call: Call,  # noqa: ARG002
    ) -> pb.ResumeWorkflowScheduleResponse:
        resumed = await self._schedules.update(
            UpdateSchedule(namespace=namespace_of(request.namespace), schedule_id=request.schedule_id, enabled=True)
        )
        return pb.ResumeWorkflowScheduleResponse(schedule=schedule_to_wire(resumed))

    async def ListScheduleRuns(
        self,
        request: pb.ListScheduleRunsRequest,
        call: Call,  # noqa: ARG002
    ) -> pb.ListScheduleRunsResponse:
        page = await self._schedules.runs(
            namespace_of(request.namespace),
            request.schedule_id,
            page_size=page_size(request.page, DEFAULT_PAGE_SIZE),
            page_token=request.page.page_token or None,
        )
        return pb.ListScheduleRunsResponse(runs=[run_to_wire(run) for run in page.items], page=page_info(page))

    async def PreviewWorkflowSchedule(
        self,
        request: pb.PreviewWorkflowScheduleRequest,
        call: Call,  # noqa: ARG002
    ) -> pb.PreviewWorkflowScheduleResponse:
        zone = check_zone(request.timezone or "UTC")
        times = parse_times(request.cron_expr, zone)
        after = optional_instant(request, "after")
        start = self._host.clock.now() if after is None else after
        return pb.PreviewWorkflowScheduleResponse(
            firings=[
                pb.PreviewedFiring(
                    at=timestamp(at),
                    local=to_datetime(at).astimezone(ZoneInfo(zone)).isoformat(),
                    note=moved(times, at) or "",
                )
                async for at in gradually(upcoming(times, start, check_count(request.count or DEFAULT_PREVIEWED)))
            ]
        )

    async def BackfillWorkflowSchedule(
        self,
        request: pb.BackfillWorkflowScheduleRequest,
        call: Call,  # noqa: ARG002
    ) -> pb.BackfillWorkflowScheduleResponse:
        since, until = backfill_from_wire(request)
        done = await self._schedules.backfill(namespace_of(request.namespace), request.schedule_id, since, until)
        return pb.BackfillWorkflowScheduleResponse(started=done.started, existing=done.existing)

    async def ListScheduleSkips(
        self,
        request: pb.ListScheduleSkipsRequest,
        call: Call,  # noqa: ARG002
    ) -> pb.ListScheduleSkipsResponse:
        skips = await self._schedules.skips(namespace_of(request.namespace), request.schedule_id)
        return pb.ListScheduleSkipsResponse(skips=[skip_to_wire(skip) for skip in skips])
