"""Jobs over many runs: checking what is asked, previewing, starting, watching and ending them."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Final

from msgspec.structs import replace

from kagzi.api.jobs import JobPreview, StartJob
from kagzi.core.family import ParentPolicy
from kagzi.core.job import MOST_COUNTED, MOST_RUNNING, PREVIEWED, Job, JobStatus
from kagzi.core.limits import DEFAULT_PAGE_SIZE, check_id, check_name, check_new_run_id
from kagzi.core.page import BY_ID, Cursor, Page
from kagzi.core.run import Run
from kagzi.engine.job_checks import check_job
from kagzi.engine.listing import Listing
from kagzi.engine.namespaces import Namespaces
from kagzi.engine.versions import VersionRegistry
from kagzi.errors import Conflict, LimitExceeded, NotFound
from kagzi.store.jobs import encode_filter, same_job
from kagzi.store.protocol.store import Store

_ABOUT: Final = "jobs of "
_STEP: Final = 500  # runs that a preview counts at once


class Jobs:
    """`api.jobs.JobService`."""

    def __init__(
        self, store: Store, namespaces: Namespaces, versions: VersionRegistry, *, changed: Callable[[], None]
    ) -> None:
        self._store = store
        self._namespaces = namespaces
        self._versions = versions
        self._listing = Listing[Job](store.page_secret, attrgetter("job_id"), BY_ID)
        self._changed = changed

    async def start(self, start: StartJob) -> Job:
        await self._check(start)
        if start.action.repeats:
            await self._namespaces.admit(start.namespace)
        asked = Job(
            namespace=start.namespace,
            job_id=check_new_run_id(start.job_id, "job id"),
            action=start.action,
            filter=encode_filter(replace(start.filter, namespace=start.namespace)),
            rate=start.rate,
            children=start.children,
            options=start.options,
            status=JobStatus.RUNNING,
            matched=0,
            done=0,
            skipped=0,
            failed=0,
            created_by=start.created_by,
            created_at=0,
        )
        made = await self._store.jobs.start(asked, MOST_RUNNING)
        if made is None:
            found = await self._store.jobs.get(asked.namespace, asked.job_id)
            if found is None:
                raise LimitExceeded.lasting(
                    f"{MOST_RUNNING} jobs of namespace {start.namespace} are under way, and no more are taken on; wait "
                    "for one of them, or cancel it"
                )
            same = same_job(found, asked.action, asked.filter, asked.options)
            if isinstance(same, Conflict):
                raise same
            return same
        self._changed()
        return made

    async def preview(self, start: StartJob) -> JobPreview:
        await self._check(start)
        filter = replace(start.filter, namespace=start.namespace)
        matched = children = 0
        shown: list[Run] = []
        cursor: Cursor | None = None
        while matched < MOST_COUNTED:
            found = await self._store.runs.search(filter, cursor, _STEP)
            shown += found.runs[: PREVIEWED - len(shown)]
            matched += len(found.runs)
            if start.action.repeats and not start.children:
                children += sum(run.parent_policy not in (None, ParentPolicy.NONE) for run in found.runs)
            if found.searched_until is None and len(found.runs) < _STEP:
                return JobPreview(matched=matched, at_least=False, children=children, runs=tuple(shown))
            cursor = Cursor(found.searched_until or found.runs[-1].run_id)
        return JobPreview(matched=matched, at_least=True, children=children, runs=tuple(shown))

    async def _check(self, start: StartJob) -> None:
        check_job(start)
        workflow, version = start.filter.workflow_type, start.options.version
        if workflow is not None and version is not None:
            await self._versions.check_known(start.namespace, workflow, version)

    async def get(self, namespace: str, job_id: str) -> Job:
        check_name(namespace, "namespace")
        found = await self._store.jobs.get(namespace, check_id(job_id, "job id"))
        if found is None:
            raise NotFound(f"there is no job {job_id} in namespace {namespace}")
        return found

    async def list(
        self, namespace: str, *, page_size: int = DEFAULT_PAGE_SIZE, page_token: str | None = None
    ) -> Page[Job]:
        check_name(namespace, "namespace")
        about = _ABOUT + namespace
        cursor = self._listing.begin(page_size, page_token, about)
        rows = await self._store.jobs.page(namespace, cursor, page_size + 1)
        return self._listing.page(rows, page_size, about)

    async def cancel(self, namespace: str, job_id: str) -> Job:
        await self.get(namespace, job_id)
        await self._store.jobs.cancel(namespace, check_id(job_id, "job id"))
        return await self.get(namespace, job_id)

    async def delete_run(self, namespace: str, run_id: str) -> None:
        check_name(namespace, "namespace")
        run_id = check_id(run_id, "run id")
        if await self._store.jobs.delete_run(namespace, run_id):
            return
        run = await self._store.runs.get(namespace, run_id)
        if run is None:
            raise NotFound(f"there is no run {run_id} in namespace {namespace}")
        raise Conflict(f"run {run_id} is {run.status}; only a finished run can be deleted")
