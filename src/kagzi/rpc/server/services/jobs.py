"""JobService: one thing done to many runs."""

from __future__ import annotations

from kagzi._proto.v1 import job_pb2 as pb
from kagzi.core.limits import DEFAULT_PAGE_SIZE
from kagzi.rpc.convert.common import page_info, page_size
from kagzi.rpc.convert.jobs import job_to_wire, preview_to_wire, start_job_from_wire
from kagzi.rpc.convert.runs import namespace_of
from kagzi.rpc.server.services.host import Call, Host


class JobService:
    def __init__(self, host: Host) -> None:
        self._host = host
        self._jobs = host.engine.jobs

    async def StartJob(self, request: pb.StartJobRequest, call: Call) -> pb.StartJobResponse:  # noqa: ARG002
        start = start_job_from_wire(request, namespace=namespace_of(request.namespace), job_id=self._host.ids.run_id())
        return pb.StartJobResponse(job=job_to_wire(await self._jobs.start(start)))

    async def PreviewJob(self, request: pb.StartJobRequest, call: Call) -> pb.PreviewJobResponse:  # noqa: ARG002
        start = start_job_from_wire(request, namespace=namespace_of(request.namespace), job_id=self._host.ids.run_id())
        return preview_to_wire(await self._jobs.preview(start))

    async def GetJob(self, request: pb.GetJobRequest, call: Call) -> pb.GetJobResponse:  # noqa: ARG002
        return pb.GetJobResponse(job=job_to_wire(await self._jobs.get(namespace_of(request.namespace), request.job_id)))

    async def ListJobs(self, request: pb.ListJobsRequest, call: Call) -> pb.ListJobsResponse:  # noqa: ARG002
        page = await self._jobs.list(
            namespace_of(request.namespace),
            page_size=page_size(request.page, DEFAULT_PAGE_SIZE),
            page_token=request.page.page_token or None,
        )
        return pb.ListJobsResponse(jobs=[job_to_wire(job) for job in page.items], page=page_info(page))

    async def CancelJob(self, request: pb.CancelJobRequest, call: Call) -> pb.CancelJobResponse:  # noqa: ARG002
        job = await self._jobs.cancel(namespace_of(request.namespace), request.job_id)
        return pb.CancelJobResponse(job=job_to_wire(job))

    async def DeleteWorkflow(
        self,
        request: pb.DeleteWorkflowRequest,
        call: Call,  # noqa: ARG002
    ) -> pb.DeleteWorkflowResponse:
        await self._jobs.delete_run(namespace_of(request.namespace), request.run_id)
        return pb.DeleteWorkflowResponse()
