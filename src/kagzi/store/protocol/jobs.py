"""Jobs over many runs; what a turn of one comes to is in `store/jobs.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from kagzi.api.operations import CancelAnswer
from kagzi.core.instant import Span
from kagzi.core.job import Job
from kagzi.core.page import Cursor
from kagzi.store.protocol.changes import Recovered, Told


class JobTurn(Struct, frozen=True, kw_only=True):
    """The result of one batch of a job: the job as it stands (None: none was due), and which runs are affected."""

    job: Job | None = None
    started: list[Recovered] = []
    told: list[tuple[str, CancelAnswer]] = []
    woken: list[Told] = []


class Jobs(Protocol):
    """One action for each of many runs."""

    async def start(self, job: Job, most: int) -> Job | None:
        """Inserts a job; None if there is one of this id, or as many as `most` of its namespace are under way."""
        ...

    async def get(self, namespace: str, job_id: str) -> Job | None: ...

    async def page(self, namespace: str, cursor: Cursor | None, limit: int) -> list[Job]:
        """Returns jobs, the newest first, beyond the cursor."""
        ...

    async def cancel(self, namespace: str, job_id: str) -> None: ...

    async def run_batch(self, new_run_id: Callable[[], str]) -> JobTurn:
        """Runs one batch of the job that has waited longest and that no other process works on."""
        ...

    async def delete_run(self, namespace: str, run_id: str) -> bool:
        """Deletes a finished run; returns whether there was one of this id."""
        ...

    async def prune(self, kept: Span, limit: int) -> None:
        """Deletes jobs that ended longer ago than this."""
        ...
