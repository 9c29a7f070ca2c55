"""`app.jobs`: one thing done to many runs, in the background."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

import msgspec
from msgspec import Struct

from kagzi.api.jobs import JobService, StartJob
from kagzi.api.schedules import ScheduleService
from kagzi.api.workflows import RunFilter
from kagzi.core.duration import Duration, parse_duration
from kagzi.core.instant import SECOND, to_datetime
from kagzi.core.job import MOST_RATE, Job, JobAction, JobOptions, why_skipped
from kagzi.core.limits import DEFAULT_PAGE_SIZE
from kagzi.core.options import names_its_options
from kagzi.core.page import Page
from kagzi.errors import InvalidRequest, Unavailable
from kagzi.sdk.blocking import Portal, blocking
from kagzi.sdk.records import Read, RunRecord, run_record
from kagzi.sdk.search import Runs

_LOOKS: Final = (0.05, 1.0)  # seconds between looks at a job that is waited for: at first, and at last


class JobRecord(Struct, frozen=True, kw_only=True):
    """A job at one moment. `matched` runs were found so far: `done` were changed; `skipped` could not be, and `reasons`
    counts why; `failed` should have been."""

    id: str
    namespace: str
    action: str
    runs: dict[str, Any]  # which ones, as plain data
    rate: int | None
    from_step: str | None  # of a fork: None is from the beginning
    from_version: str | None  # of a move
    version: str | None  # into which runs are forked or moved; None: that of each
    status: str  # RUNNING, COMPLETED, CANCELLED or FAILED
    matched: int
    done: int
    skipped: int
    failed: int
    reasons: dict[str, int]  # why runs were skipped, and how many: {"live": 3}; `JobHandle.why_skipped` in words
    created_by: str
    created_at: datetime
    finished_at: datetime | None
    error: str | None


class JobPreviewRecord(Struct, frozen=True, kw_only=True):
    """What a job would find. With `at_least` there are more runs than were counted; `children` of them would be
    skipped; `runs` are the newest."""

    matched: int
    at_least: bool
    children: int
    runs: tuple[RunRecord, ...]

    def __str__(self) -> str:
        words = f"{'at least ' if self.at_least else ''}{self.matched:,} runs"
        return f"{words}, {self.children:,} of them children that are skipped" if self.children else words


class JobsHome(Struct, frozen=True, kw_only=True):
    """The part of an app that jobs need."""

    namespace: Callable[[], str]
    service: Callable[[], JobService]
    schedules: Callable[[], ScheduleService]
    new_id: Callable[[], str]
    user: Callable[[], str]
    read: Read
    portal: Portal


class JobHandle:
    """A job that was started or found. Its numbers are those of the last look: `await job.refresh()` looks again."""

    def __init__(self, home: JobsHome, job: Job) -> None:
        self._home = home
        self._job = job

    @property
    def portal(self) -> Portal:
        return self._home.portal

    @property
    def id(self) -> str:
        return self._job.job_id

    @property
    def action(self) -> str:
        return self._job.action.value

    @property
    def status(self) -> str:
        return self._job.status.value

    @property
    def matched(self) -> int:
        return self._job.matched

    @property
    def done(self) -> int:
        return self._job.done

    @property
    def skipped(self) -> int:
        return self._job.skipped

    @property
    def failed(self) -> int:
        return self._job.failed

    @property
    def why_skipped(self) -> str:
        """Why runs were left as they are, in words: "12 have no such step that has ended; 3 have not ended"."""
        return why_skipped(self._job.reasons)

    @property
    def error(self) -> str | None:
        return self._job.error

    @property
    def record(self) -> JobRecord:
        """All that is known about it, as of the last look."""
        return job_record(self._job)

    async def refresh(self) -> JobRecord:
        """Look how far it is."""
        self._job = await self._home.service().get(self._job.namespace, self._job.job_id)
        return self.record

    async def wait(self, timeout: Duration | None = None) -> JobRecord:
        """Wait until it has ended, however it did. TimeoutError after `timeout`; the job goes on."""
        if timeout is None:
            return await self._wait()
        try:
            async with asyncio.timeout(parse_duration(timeout, "timeout") / SECOND):
                return await self._wait()
        except TimeoutError:
            raise TimeoutError(f"job {self.id} has not ended in time; it goes on") from None

    async def _wait(self) -> JobRecord:
        pause, longest = _LOOKS
        while not self._job.status.finished:
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, longest)
            try:
                await self.refresh()
            except Unavailable:
                continue
        return self.record

    async def cancel(self) -> JobRecord:
        """End it. What it is doing at the moment is the last it does; what it has done stays."""
        self._job = await self._home.service().cancel(self._job.namespace, self._job.job_id)
        return self.record

    refresh_sync = blocking(refresh)
    wait_sync = blocking(wait)
    cancel_sync = blocking(cancel)

    def __repr__(self) -> str:
        return f"<job {self.id}: {self.action}, {self.status}>"


class Jobs:
    """The jobs of an app's namespace."""

    def __init__(self, home: JobsHome) -> None:
        self._home = home

    @property
    def portal(self) -> Portal:
        return self._home.portal

    @names_its_options
    async def start(
        self,
        action: str,
        runs: Runs,
        *,
        from_step: str | None = None,
        from_version: str | None = None,
        version: str | None = None,
        rate: int | None = None,
        children: bool = False,
        everything: bool = False,
    ) -> JobHandle:
        """Do something to every run that is meant and that is there now: "retry", "cancel", "terminate", "wake",
        "rerun", "fork", "move" or "delete". `await app.jobs.start("retry", Runs(status="FAILED"), rate=200)`.

        "fork" begins a run beside each finished one that goes on `from_step`, the id of a step or its name if there is
        one of it, else from the beginning, with the input of its source, and in another `version` if one is given;
        runs that have no such step are skipped. "move" has runs of `from_version` that wait or sleep go on in
        `version`.

        It goes on in the background, in whatever process has an engine, and changes each run once. `rate` is how many
        runs a second. Children are not repeated unless `children=True`: their parent starts them again. Without any
        filter `everything=True` says that every run of the namespace is meant. `await job.wait()` waits for its end.
        """
        options = JobOptions(from_step=from_step, from_version=from_version, version=version)
        asked = await self._asked(action, runs, options, rate, children, everything)
        return JobHandle(self._home, await self._home.service().start(asked))

    @names_its_options
    async def preview(
        self,
        action: str,
        runs: Runs,
        *,
        from_step: str | None = None,
        from_version: str | None = None,
        version: str | None = None,
        rate: int | None = None,
        children: bool = False,
        everything: bool = False,
    ) -> JobPreviewRecord:
        """What `start` with the same arguments would find: how many runs, and the newest 20. Changes nothing."""
        options = JobOptions(from_step=from_step, from_version=from_version, version=version)
        found = await self._home.service().preview(await self._asked(action, runs, options, rate, children, everything))
        return JobPreviewRecord(
            matched=found.matched,
            at_least=found.at_least,
            children=found.children,
            runs=tuple([run_record(run, self._home.read) for run in found.runs]),
        )

    async def get(self, id: str) -> JobHandle:
        """A job by its id; NotFound if there is none."""
        return JobHandle(self._home, await self._home.service().get(self._home.namespace(), id))

    @names_its_options
    async def list(self, *, page_size: int = DEFAULT_PAGE_SIZE, page_token: str | None = None) -> Page[JobRecord]:
        """One page of jobs, newest first."""
        page = await self._home.service().list(self._home.namespace(), page_size=page_size, page_token=page_token)
        return Page(tuple([job_record(job) for job in page.items]), page.next, page.prev)

    start_sync = blocking(start)
    preview_sync = blocking(preview)
    get_sync = blocking(get)
    list_sync = blocking(list)

    async def _asked(
        self, action: object, runs: object, options: JobOptions, rate: Any, children: bool, everything: bool
    ) -> StartJob:
        home = self._home
        if not isinstance(runs, Runs):
            raise InvalidRequest(f'which runs are meant is said by Runs, as in Runs(status="FAILED"), not {runs!r:.60}')
        try:
            wanted = JobAction(action)  # type: ignore[arg-type]
        except ValueError:
            raise InvalidRequest(f"action must be one of {', '.join(JobAction)}, not {action!r:.60}") from None
        if rate is not None and (isinstance(rate, bool) or not isinstance(rate, int) or not 1 <= rate <= MOST_RATE):
            raise InvalidRequest(f"rate must be a whole number from 1 to {MOST_RATE:,}, not {rate!r:.60}")
        for field, said in (("children", children), ("everything", everything)):
            if not isinstance(said, bool):
                raise InvalidRequest(f"{field} must be True or False, not {said!r:.60}")
        for field in options.__struct_fields__:
            if not isinstance(given := getattr(options, field), str | None):
                raise InvalidRequest(f"{field} must be text, not {given!r:.60}")
        return StartJob(
            namespace=home.namespace(),
            job_id=home.new_id(),
            action=wanted,
            filter=await runs.filter(home.namespace(), home.schedules),
            everything=everything or runs.everything,
            rate=rate,
            children=children,
            options=options,
            created_by=home.user(),
        )


def job_record(job: Job) -> JobRecord:
    return JobRecord(
        id=job.job_id,
        namespace=job.namespace,
        action=job.action.value,
        runs=filter_data(job.filter),
        rate=job.rate,
        from_step=job.options.from_step,
        from_version=job.options.from_version,
        version=job.options.version,
        status=job.status.value,
        matched=job.matched,
        done=job.done,
        skipped=job.skipped,
        failed=job.failed,
        reasons=dict(job.reasons),
        created_by=job.created_by,
        created_at=to_datetime(job.created_at),
        finished_at=None if job.finished_at is None else to_datetime(job.finished_at),
        error=job.error,
    )


def filter_data(filter: bytes) -> dict[str, Any]:
    """Returns the parts of a stored filter that say something."""
    given = msgspec.structs.asdict(msgspec.json.decode(filter, type=RunFilter))
    nothing = msgspec.structs.asdict(RunFilter())
    return {name: value for name, value in given.items() if name != "namespace" and value != nothing[name]}
