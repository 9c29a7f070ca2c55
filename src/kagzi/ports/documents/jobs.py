"""Jobs as people read them."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Raw, Struct

from kagzi.core.instant import to_datetime
from kagzi.core.job import Job, JobAction, JobStatus
from kagzi.ports.documents.common import Count, Moment, _moment, moment

_NAMES: Final = {
    "workflow_type": "workflow",
    "task_queue": "queue",
    "parent_run_id": "parent",
    "schedule_id": "schedule",
}


class JobDocument(Struct, frozen=True, kw_only=True):
    """One thing done to many runs. `matched` were found so far, `done` changed, `skipped` could not be for `reasons`,
    `failed` should have been. `runs` says which ones are meant."""

    job_id: str
    namespace: str
    action: JobAction
    status: JobStatus
    runs: Raw
    rate: int | None
    children: bool
    from_step: str | None
    from_version: str | None
    version: str | None
    matched: Count
    done: Count
    skipped: Count
    failed: Count
    reasons: dict[str, Count]
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
        from_step=job.options.from_step,
        from_version=job.options.from_version,
        version=job.options.version,
        matched=job.matched,
        done=job.done,
        skipped=job.skipped,
        failed=job.failed,
        reasons=job.reasons,
        created_by=job.created_by,
        created_at=_moment(job.created_at),
        finished_at=moment(job.finished_at),
        error=job.error,
    )


def meant(job: Job) -> str:
    """Returns which runs a job is about, in words."""
    said = []
    for name, value in msgspec.json.decode(job.filter).items():
        if name == "tags":
            said += [f"tag {tag}={text}" for tag, text in value.items()]
        elif name in ("created_after", "created_before") and value is not None:
            moment = to_datetime(value).strftime("%Y-%m-%d %H:%M:%S")
            said.append(f"started {name.removeprefix('created_')} {moment} UTC")
        elif name != "namespace" and value is not None:
            said.append(f"{_NAMES.get(name, name).replace('_', ' ')} {value}")
    return ", ".join(said) or "every run of the namespace"
