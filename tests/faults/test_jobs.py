"""kill -9 of the processes that work on a job: each run is taken on once all the same, and the job comes to its end."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path

from kagzi import RunStatus
from kagzi.api.jobs import StartJob
from kagzi.api.operations import StartRun, TerminateRun
from kagzi.api.workflows import RunFilter
from kagzi.clock import SystemClock
from kagzi.connect import connect
from kagzi.core.job import Job, JobAction, JobStatus
from kagzi.engine.local import LocalEngine
from kagzi.ids import RandomIds
from tests.faults.test_schedules import COORDINATOR, kill
from tests.warm import PIPE, Process, Warm, clean_environ

RUNS = 200
KILLED_AT = (30, 90)  # runs that the job has taken on


async def test_each_run_is_repeated_once_whoever_is_killed(url: str, tmp_path: Path, warm: Warm) -> None:
    program = tmp_path / "coordinator.py"
    program.write_text(COORDINATOR)

    def coordinator() -> Process:
        process = warm.start([str(program), url], directory=tmp_path, environ=clean_environ(), stdin=PIPE)
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        return process

    # Without duties of its own: only the processes work on the job.
    opened = connect(url)
    assert isinstance(opened, LocalEngine)
    ids = RandomIds(SystemClock().now)
    async with LocalEngine(opened.store) as engine:
        starts = [
            StartRun(namespace="default", run_id=ids.run_id(), workflow_type="w", task_queue="q") for _ in range(RUNS)
        ]
        await asyncio.gather(*[engine.workflows.start(start) for start in starts])
        ends = [TerminateRun(namespace="default", run_id=start.run_id, reason="no") for start in starts]
        await asyncio.gather(*[engine.workflows.terminate(end) for end in ends])
        cancelled = RunFilter(status=RunStatus.CANCELLED)
        asked = StartJob(namespace="default", job_id=ids.run_id(), action=JobAction.RERUN, filter=cancelled, rate=400)

        async def taken_on(runs: int) -> Job:
            async with asyncio.timeout(60):
                while True:
                    job = await engine.jobs.get("default", asked.job_id)
                    if job.matched >= runs or job.status.finished:
                        return job
                    await asyncio.sleep(0.002)

        chance = random.Random(7)
        running = [await asyncio.to_thread(coordinator) for _ in range(2)]
        try:
            await engine.jobs.start(asked)
            for runs in KILLED_AT:
                job = await taken_on(runs)
                await asyncio.sleep(chance.uniform(0.0, 0.03))
                kill(running.pop(0))
                assert not job.status.finished, "it was not in the middle"
            assert not (await taken_on(0)).status.finished
            running.append(await asyncio.to_thread(coordinator))  # both are gone
            job = await taken_on(RUNS + 1)
        finally:
            for process in running:
                kill(process)
        assert (job.status, job.matched, job.done, job.skipped, job.failed) == (
            JobStatus.COMPLETED,
            RUNS,
            RUNS,
            0,
            0,
        )
        repeats = (await engine.store.runs.search(RunFilter(status=RunStatus.PENDING), None, 2 * RUNS)).runs
        assert Counter(run.origin for run in repeats) == Counter(start.run_id for start in starts)
