"""The contract for jobs: one thing done to many runs, previewed, started, watched and ended."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from kagzi.api.workflows import RunFilter
from kagzi.core.job import Job, JobAction, JobOptions
from kagzi.core.limits import DEFAULT_PAGE_SIZE
from kagzi.core.page import Page
from kagzi.core.run import Run


class StartJob(Struct, frozen=True, kw_only=True):
    """Do something to every run that the filter matches and that was started before now. The caller makes `job_id`, so
    a repeat finds the first; another job under it is a Conflict."""

    namespace: str
    job_id: str
    action: JobAction
    filter: RunFilter
    everything: bool = False  # without a filter: every run of the namespace
    rate: int | None = None  # runs a second
    children: bool = False  # repeat children, too, which their repeated parent may start again
    options: JobOptions = JobOptions()
    created_by: str = ""


class JobPreview(Struct, frozen=True, kw_only=True):
    """What a job would find: how many runs (`at_least` so many, if it was not counted to the end), how many of those
    are children that it would skip, and the newest of them."""

    matched: int
    at_least: bool
    children: int
    runs: tuple[Run, ...]


class JobService(Protocol):
    async def start(self, start: StartJob) -> Job: ...

    async def preview(self, start: StartJob) -> JobPreview:
        """Returns what a job would find. Changes nothing."""
        ...

    async def get(self, namespace: str, job_id: str) -> Job:
        """Returns a job; NotFound if there is none."""
        ...

    async def list(
        self, namespace: str, *, page_size: int = DEFAULT_PAGE_SIZE, page_token: str | None = None
    ) -> Page[Job]:
        """Lists jobs, the newest first."""
        ...

    async def cancel(self, namespace: str, job_id: str) -> Job:
        """Ends a job after the batch that is under way. Harmless for a job that has ended."""
        ...

    async def delete_run(self, namespace: str, run_id: str) -> None:
        """Delete a finished run and everything that is kept of it. NotFound if there is none, Conflict while it
        lives."""
        ...
