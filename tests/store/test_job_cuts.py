"""A coordinator dies in the middle of a batch of a job, after each of its statements in turn, and another one goes on.

What a batch changes and where the job goes on are one transaction: nothing of a batch that was cut is left, and each
run is changed and counted once.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any

import pytest

from kagzi.api.operations import FailRun, ParkRun
from kagzi.api.workflows import RunFilter
from kagzi.core import job as rules
from kagzi.core.failure import Failure
from kagzi.core.instant import SECOND
from kagzi.core.job import Job, JobAction, JobOptions, JobStatus
from kagzi.core.run import RunStatus
from kagzi.errors import Unavailable
from kagzi.testing.conformance import Bench
from kagzi.testing.conformance.bench import NAMESPACE
from kagzi.testing.conformance.children import parent_and_child
from kagzi.testing.conformance.jobs import start_job
from tests.store.test_conformance import bench, new_bench, on_postgres, on_sqlite

__all__ = ["bench", "new_bench", "on_postgres", "on_sqlite"]  # fixtures of the neighbour's
pytestmark = pytest.mark.asyncio(loop_scope="module")

FAR = 1000 * SECOND
_MANY = 1000  # statements, more than a batch has
_OPTIONS = {
    JobAction.FORK: JobOptions(from_step="ship"),
    JobAction.MOVE: JobOptions(from_version="1", version="2"),
}


class _Dies(Unavailable):
    """The process is gone."""


class _Connection:
    """A connection of either database whose process dies when so many of its statements are done."""

    def __init__(self, connection: Any, most: int) -> None:
        self._connection = connection
        self._left = most

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def _count(self) -> None:
        self._left -= 1
        if self._left == 0:
            raise _Dies("killed")

    async def _asked(self, method: str, *args: Any, **kwargs: Any) -> Any:
        answer = await getattr(self._connection, method)(*args, **kwargs)
        self._count()
        return answer

    async def fetch(self, *args: Any, **kwargs: Any) -> Any:
        return await self._asked("fetch", *args, **kwargs)

    async def fetchrow(self, *args: Any, **kwargs: Any) -> Any:
        return await self._asked("fetchrow", *args, **kwargs)

    async def fetchval(self, *args: Any, **kwargs: Any) -> Any:
        return await self._asked("fetchval", *args, **kwargs)


class _SqliteConnection(_Connection):
    def execute(self, *args: Any) -> Any:
        answer = self._connection.execute(*args)
        self._count()
        return answer


class _PostgresConnection(_Connection):
    async def execute(self, *args: Any, **kwargs: Any) -> Any:
        return await self._asked("execute", *args, **kwargs)


class _Cut:
    """The connections of a store, in place of its pool or its database, for a process that dies."""

    def __init__(self, connections: Any, most: int) -> None:
        self._connections = connections
        self._most = most

    async def run(self, work: Any) -> Any:
        return await self._connections.run(lambda connection: work(_PostgresConnection(connection, self._most)))

    async def write(self, work: Any) -> Any:
        return await self._connections.write(lambda connection: work(_SqliteConnection(connection, self._most)))


def _dying(bench: Bench, most: int) -> Any:
    """The jobs of a coordinator that dies after so many statements of a batch."""
    jobs: Any = copy(bench.store.jobs)
    connections = "pool" if hasattr(jobs, "pool") else "database"
    setattr(jobs, connections, _Cut(getattr(jobs, connections), most))
    return jobs


async def _state(bench: Bench, job_id: str) -> Any:
    runs = (await bench.store.runs.search(RunFilter(), None, 100)).runs
    steps = [await bench.steps(run.run_id) for run in runs]
    return await bench.store.jobs.get(NAMESPACE, job_id), runs, steps, await bench.store.overview.horizon([])


async def _finish(bench: Bench, job_id: str, new_ids: Callable[[Job], Callable[[], str]]) -> tuple[Job, int]:
    """Runs a job to its end; each batch is cut after its first statement, its second, … and its last. Returns the job,
    and how often a coordinator died."""
    deaths = 0
    while True:
        bench.clock.advance(SECOND)
        before = await _state(bench, job_id)
        for most in range(1, _MANY):
            try:
                # The last one to try has all of its statements and commits.
                await _dying(bench, most).run_batch(new_ids(before[0]))
                break
            except _Dies:
                deaths += 1
                assert await _state(bench, job_id) == before, f"a batch left something after {most} statements"
        job = await bench.store.jobs.get(NAMESPACE, job_id)
        assert job is not None
        assert job.matched > before[0].matched or job.status.finished, "a batch was taken on by nobody"
        if job.status.finished:
            return job, deaths


@pytest.mark.parametrize("action", JobAction)
async def test_each_run_is_taken_on_once_whenever_a_coordinator_dies(
    bench: Bench, action: JobAction, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rules, "_BATCHES", dict.fromkeys(JobAction, 2))
    failed = []
    for number in "123":
        claim = await bench.started_claim(tags={"number": number})
        await bench.done(
            claim,
            bench.completed("pay", 1),
            bench.completed("ship", 2),
            FailRun(error=Failure("shop.CardDeclined", "no").encode()),
        )
        failed.append(claim.run_id)
    held, child = await parent_and_child(bench)
    options = _OPTIONS.get(action, JobOptions())
    waiting = await bench.start(delay=FAR if action is JobAction.WAKE else 0)
    if action in (JobAction.WAKE, JobAction.MOVE):
        for claim in (held, child):  # else they do not wait
            await bench.done(claim, ParkRun(available_at=bench.now() + FAR, inbox_seq=claim.inbox_seq))
    live = [held.run_id, child.run_id, waiting]
    bench.clock.advance(SECOND)

    def new_ids(job: Job) -> Callable[[], str]:
        # The third run cannot be repeated: its id is taken.
        return bench.new_id if job.matched != 2 else lambda: child.run_id

    job, deaths = await _finish(bench, await start_job(bench, action, RunFilter(), options=options), new_ids)

    assert deaths > 3 * 3, "at least the job, the search and the place of each batch"
    runs = {run.run_id: run for run in (await bench.store.runs.search(RunFilter(), None, 100)).runs}
    assert (job.status, job.matched, job.skipped) == (JobStatus.COMPLETED, 6, 3)
    assert (job.done, job.failed) == ((2, 1) if action.repeats else (3, 0))
    if action.repeats:
        assert failed[2] in (job.error or "")
        made = [run for run_id, run in runs.items() if run_id not in failed + live]
        assert sorted(run.tags["number"] for run in made) == ["1", "2"]
        kept = [len(await bench.steps(run.run_id)) for run in made]
        assert kept == {JobAction.RETRY: [2, 2], JobAction.FORK: [1, 1], JobAction.RERUN: [0, 0]}[action]
    elif action is JobAction.DELETE:
        assert sorted(runs) == sorted(live)
    elif action is JobAction.MOVE:
        assert [runs[run_id].version for run_id in live] == ["2", "2", "2"]
    elif action is JobAction.WAKE:
        assert max(runs[run_id].available_at or FAR for run_id in live) <= bench.now()
    else:
        assert sorted(runs) == sorted(failed + live)
        ended = RunStatus.CANCELLED if action is JobAction.TERMINATE else RunStatus.RUNNING
        assert [runs[run_id].status for run_id in live] == [ended, ended, RunStatus.CANCELLED]
