"""Jobs: JobService's messages into core and api, and back."""

from __future__ import annotations

from kagzi._proto.v1 import job_pb2 as pb
from kagzi.api.jobs import JobPreview, StartJob
from kagzi.core.job import Job, JobAction, JobOptions, JobStatus
from kagzi.core.namespace import check_same_namespace
from kagzi.errors import InvalidRequest
from kagzi.rpc.convert.common import timestamp
from kagzi.rpc.convert.runs import filter_from_wire, filter_to_wire, run_from_wire, run_to_wire
from kagzi.rpc.convert.unknown import unknown_value


def job_to_wire(job: Job) -> pb.Job:
    return pb.Job(
        namespace=job.namespace,
        job_id=job.job_id,
        action=job.action.value,
        filter=job.filter,
        rate=job.rate or 0,
        children=job.children,
        status=job.status.value,
        matched=job.matched,
        done=job.done,
        skipped=job.skipped,
        failed=job.failed,
        created_by=job.created_by,
        created_at=timestamp(job.created_at),
        finished_at=timestamp(job.finished_at),
        error=job.error,
        options=_options_to_wire(job.options),
        reasons=job.reasons,
    )


def _options_to_wire(options: JobOptions) -> pb.JobOptions:
    return pb.JobOptions(from_step=options.from_step, from_version=options.from_version, version=options.version)


def _options_from_wire(options: pb.JobOptions) -> JobOptions:
    return JobOptions(
        from_step=options.from_step if options.HasField("from_step") else None,
        from_version=options.from_version if options.HasField("from_version") else None,
        version=options.version if options.HasField("version") else None,
    )


def job_from_wire(job: pb.Job) -> Job:
    try:
        action, status = JobAction(job.action), JobStatus(job.status)
    except ValueError:
        raise unknown_value(f"a job with the action {job.action!r} and the status {job.status!r}") from None
    return Job(
        namespace=job.namespace,
        job_id=job.job_id,
        action=action,
        filter=job.filter,
        rate=job.rate or None,
        children=job.children,
        status=status,
        matched=job.matched,
        done=job.done,
        skipped=job.skipped,
        failed=job.failed,
        created_by=job.created_by,
        created_at=job.created_at.ToMicroseconds(),
        finished_at=job.finished_at.ToMicroseconds() if job.HasField("finished_at") else None,
        error=job.error if job.HasField("error") else None,
        options=_options_from_wire(job.options),
        reasons=dict(job.reasons),
    )


def start_job_to_wire(start: StartJob) -> pb.StartJobRequest:
    return pb.StartJobRequest(
        namespace=start.namespace,
        job_id=start.job_id,
        action=start.action,
        filter=filter_to_wire(start.filter, page_size=1, page_token=None),
        everything=start.everything,
        rate=start.rate or 0,
        children=start.children,
        options=_options_to_wire(start.options),
        created_by=start.created_by,
    )


def start_job_from_wire(request: pb.StartJobRequest, *, namespace: str, job_id: str) -> StartJob:
    """Reads the start of a job. `job_id` is used if the caller brought none."""
    try:
        action = JobAction(request.action)
    except ValueError:
        raise InvalidRequest(f"action must be one of {', '.join(JobAction)}, not {request.action!r:.60}") from None
    check_same_namespace(request.filter.namespace or namespace, namespace)
    request.filter.namespace = namespace
    return StartJob(
        namespace=namespace,
        job_id=request.job_id or job_id,
        action=action,
        filter=filter_from_wire(request.filter),
        everything=request.everything,
        rate=request.rate or None,
        children=request.children,
        options=_options_from_wire(request.options),
        created_by=request.created_by,
    )


def preview_to_wire(preview: JobPreview) -> pb.PreviewJobResponse:
    return pb.PreviewJobResponse(
        matched=preview.matched,
        at_least=preview.at_least,
        children=preview.children,
        workflows=[run_to_wire(run) for run in preview.runs],
    )


def preview_from_wire(answer: pb.PreviewJobResponse) -> JobPreview:
    return JobPreview(
        matched=answer.matched,
        at_least=answer.at_least,
        children=answer.children,
        runs=tuple([run_from_wire(run) for run in answer.workflows]),
    )
