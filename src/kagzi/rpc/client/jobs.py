"""Jobs of a server: `api.jobs` across the wire."""

from __future__ import annotations

from typing import Final, TypeVar

from google.protobuf.message import Message

from kagzi._proto.v1 import job_pb2 as pb
from kagzi.api.jobs import JobPreview, StartJob
from kagzi.core.job import Job
from kagzi.core.limits import DEFAULT_PAGE_SIZE
from kagzi.core.page import Page
from kagzi.rpc.client.line import READ_SECONDS, WRITE_SECONDS, Line, converted
from kagzi.rpc.convert.common import page_from_wire, page_request
from kagzi.rpc.convert.jobs import job_from_wire, preview_from_wire, start_job_to_wire

M = TypeVar("M", bound=Message)

_SERVICE: Final = "JobService"
_PREVIEW_SECONDS: Final = 60.0  # ten thousand runs are counted


class RemoteJobs:
    """`api.jobs.JobService`. All of it may be repeated: ids are made by the caller."""

    def __init__(self, line: Line) -> None:
        self._line = line

    async def start(self, start: StartJob) -> Job:
        answer = await self._call("StartJob", converted(start_job_to_wire, start), pb.StartJobResponse, WRITE_SECONDS)
        return job_from_wire(answer.job)

    async def preview(self, start: StartJob) -> JobPreview:
        request = converted(start_job_to_wire, start)
        return preview_from_wire(await self._call("PreviewJob", request, pb.PreviewJobResponse, _PREVIEW_SECONDS))

    async def get(self, namespace: str, job_id: str) -> Job:
        request = converted(lambda asked: pb.GetJobRequest(namespace=namespace, job_id=asked), job_id)
        return job_from_wire((await self._call("GetJob", request, pb.GetJobResponse)).job)

    async def list(
        self, namespace: str, *, page_size: int = DEFAULT_PAGE_SIZE, page_token: str | None = None
    ) -> Page[Job]:
        request = converted(
            lambda asked: pb.ListJobsRequest(namespace=asked, page=page_request(page_size, page_token)), namespace
        )
        answer = await self._call("ListJobs", request, pb.ListJobsResponse)
        return page_from_wire([job_from_wire(job) for job in answer.jobs], answer.page)

    async def cancel(self, namespace: str, job_id: str) -> Job:
        request = converted(lambda asked: pb.CancelJobRequest(namespace=namespace, job_id=asked), job_id)
        return job_from_wire((await self._call("CancelJob", request, pb.CancelJobResponse, WRITE_SECONDS)).job)

    async def delete_run(self, namespace: str, run_id: str) -> None:
        request = converted(lambda asked: pb.DeleteWorkflowRequest(namespace=namespace, run_id=asked), run_id)
        await self._call("DeleteWorkflow", request, pb.DeleteWorkflowResponse, WRITE_SECONDS)

    async def _call(self, name: str, request: Message, answer: type[M], seconds: float = READ_SECONDS) -> M:
        return await self._line.call(_SERVICE, name, request, answer, seconds=seconds)
