"""Jobs as people read them."""

from __future__ import annotations

from msgspec import Raw, Struct

from kagzi.core.job import Job, JobAction, JobStatus
from kagzi.ports.documents.common import Count, Moment, _moment, moment


class JobDocument(Struct, frozen=True, kw_only=True):
    """One thing done to many runs. `matched` were found so far, `done` changed, `skipped` could not be, `failed` should
    have been. `runs` says which ones are meant."""

    job_id: str
    namespace: str
    action: JobAction
    status: JobStatus
    runs: Raw
    rate: int | None
    children: bool
    matched: Count
    done: Count
    skipped: Count
    failed: Count
    created_by: str
    created_at: Moment
    finished_at: Moment | None
    error: str | None


def job_document(job: Job) -> JobDocument:
    return JobDocument(
        job_id=job.job_id,
        namespace=job.namespace,
        action=job.action,
        status=job.status,
        runs=Raw(job.filter),
        rate=job.rate,
        children=job.children,
        matched=job.matched,
        done=job.done,
        skipped=job.skipped,
        failed=job.failed,
        created_by=job.created_by,
        created_at=_moment(job.created_at),
        finished_at=moment(job.finished_at),
        error=job.error,
    )
