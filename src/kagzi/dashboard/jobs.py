"""Jobs: one thing done to many runs in the background, and how far it is."""

from __future__ import annotations

from typing import Any, Final

from kagzi.core.job import Job, JobStatus, pace_of, why_skipped
from kagzi.dashboard.asking import EmptyForm, Question, Subject
from kagzi.dashboard.bulk import DEEDS
from kagzi.dashboard.shell import may, page, path_to
from kagzi.dashboard.system import PlainQuery
from kagzi.http.call import Call, Html, Redirect
from kagzi.http.jobs import job_id_of
from kagzi.http.problems import naming
from kagzi.http.runs import Token
from kagzi.ports.documents.jobs import meant

_ROWS: Final = 25


class JobsQuery(PlainQuery, frozen=True, kw_only=True, forbid_unknown_fields=True):
    page: Token | None = None


async def show_jobs(call: Call[JobsQuery, None]) -> Html:
    with naming("page"):
        found = await call.engine.jobs.list(call.namespace, page_size=_ROWS, page_token=call.query.page)
    return await page(
        call,
        "jobs.html",
        title="Jobs",
        tab="/jobs",
        live="" if call.query.page is None else None,
        every=any(job.status is JobStatus.RUNNING for job in found.items),
        found=found,
        deeds=DEEDS,
        meant=meant,
    )


async def show_job(call: Call[PlainQuery, None]) -> Html:
    job = await _job(call)
    running = job.status is JobStatus.RUNNING
    return await page(
        call,
        "job.html",
        title=f"Job: {DEEDS[job.action].button}",
        tab="/jobs",
        live="" if running else None,
        every=running,
        job=job,
        deed=DEEDS[job.action],
        meant=meant(job),
        why_skipped=why_skipped(job.reasons),
        pace=pace_of(job.action, job.rate),
        cancels=running and may(call, "POST /jobs/{job_id}/cancel"),
    )


async def _job(call: Call[Any, Any]) -> Job:
    return await call.engine.jobs.get(call.namespace, job_id_of(call.path["job_id"]))


class _Cancel(Question, frozen=True, kw_only=True):
    async def subject(self, call: Call[Any, Any]) -> Subject:
        job = await _job(call)
        about = f"{DEEDS[job.action].button}: {meant(job)}"
        return Subject(about=about, path=f"/jobs/{job.job_id}", tab="/jobs")

    async def act(self, call: Call[Any, EmptyForm]) -> Redirect:
        job = await call.engine.jobs.cancel(call.namespace, job_id_of(call.path["job_id"]))
        return Redirect(path_to(call, f"/jobs/{job.job_id}", done="cancel-job"))


CANCEL: Final = _Cancel(
    verb="cancel",
    button="End job",
    consequence="The runs that it is changing at this moment are the last. What it has done stays done.",
    form=EmptyForm,
)
