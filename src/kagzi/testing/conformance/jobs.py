"""Jobs over many runs: each run once, batch by batch."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from kagzi.api.operations import CompleteRun, FailRun, ParkRun, RepeatRun, RetryRun
from kagzi.api.workflows import RunFilter
from kagzi.core import job as rules
from kagzi.core.failure import Failure
from kagzi.core.family import ParentPolicy
from kagzi.core.instant import SECOND
from kagzi.core.job import Job, JobAction, JobOptions, JobStatus, Skipped
from kagzi.core.run import RunStatus
from kagzi.core.wake import NEWS_ALONE, Woken, read_woken
from kagzi.store.jobs import encode_filter
from kagzi.testing.conformance.bench import NAMESPACE, QUEUE, TYPE, Bench
from kagzi.testing.conformance.children import parent_and_child

_ERROR = Failure("shop.CardDeclined", "no").encode()
_NONE = JobOptions()


async def start_job(
    bench: Bench,
    action: JobAction,
    filter: RunFilter,
    rate: int | None = None,
    options: JobOptions = _NONE,
    children: bool = False,
) -> str:
    asked = Job(
        namespace=NAMESPACE,
        job_id=bench.new_id(),
        action=action,
        filter=encode_filter(filter),
        rate=rate,
        children=children,
        options=options,
        status=JobStatus.RUNNING,
        matched=0,
        done=0,
        skipped=0,
        failed=0,
        created_by="me",
        created_at=0,
    )
    made = await bench.store.jobs.start(asked, 10)
    assert made is not None
    assert (made.status, made.created_at, made.created_by) == (JobStatus.RUNNING, bench.now(), "me")
    assert (made.options, made.reasons) == (options, {})
    return made.job_id


async def finish(bench: Bench, job_id: str) -> Job:
    for _ in range(100):
        bench.clock.advance(SECOND)
        await bench.store.jobs.run_batch(bench.new_id)
        job = await bench.store.jobs.get(NAMESPACE, job_id)
        assert job is not None
        if job.status.finished:
            return job
    raise AssertionError("the job does not end")


async def failed_runs(bench: Bench, count: int) -> list[str]:
    runs = []
    for _ in range(count):
        claim = await bench.started_claim(tags={"batch": "7"})
        await bench.done(claim, FailRun(error=_ERROR))
        runs.append(claim.run_id)
    return runs


class TestJobs:
    @pytest.fixture(autouse=True)
    def small_batches(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(rules, "_BATCHES", dict.fromkeys(JobAction, 2))

    async def test_failed_runs_are_retried_once_each(self, bench: Bench) -> None:
        failed = await failed_runs(bench, 5)
        done = await bench.started_claim()
        await bench.done(done, CompleteRun(output=b"1"))
        assert (await bench.store.overview.horizon([])).job is None
        job_id = await start_job(bench, JobAction.RETRY, RunFilter(status=RunStatus.FAILED))
        assert (await bench.store.overview.horizon([])).job == bench.now()

        job = await finish(bench, job_id)

        assert (job.matched, job.done, job.skipped, job.failed, job.error) == (5, 5, 0, 0, None)
        assert job.status is JobStatus.COMPLETED
        assert (await bench.store.overview.horizon([])).job is None
        repeated = (await bench.store.runs.search(RunFilter(status=RunStatus.PENDING), None, 100)).runs
        assert len(repeated) == 5
        assert all(run.tags == {"batch": "7"} for run in repeated)
        assert [(await bench.run(run_id)).status for run_id in failed] == [RunStatus.FAILED] * 5

    async def test_a_job_never_meets_what_it_has_started(self, bench: Bench) -> None:
        await failed_runs(bench, 3)
        job_id = await start_job(bench, JobAction.RERUN, RunFilter())

        # In the very moment in which the job began, and what it starts fails again at once.
        for _ in range(10):
            await bench.store.jobs.run_batch(bench.new_id)
            for claim in await bench.claims():
                await bench.done(claim, FailRun(error=_ERROR))

        job = await finish(bench, job_id)
        assert (job.matched, job.done) == (3, 3)

    async def test_live_runs_are_cancelled_and_terminated(self, bench: Bench) -> None:
        held = await bench.started_claim()
        waiting = [await bench.start() for _ in range(3)]
        job = await finish(bench, await start_job(bench, JobAction.CANCEL, RunFilter(task_queue="orders")))
        assert (job.matched, job.done, job.skipped) == (4, 4, 0)
        assert {(await bench.run(run_id)).status for run_id in waiting} == {RunStatus.CANCELLED}
        assert (await bench.run(held.run_id)).status is RunStatus.RUNNING
        job = await finish(bench, await start_job(bench, JobAction.TERMINATE, RunFilter(status=RunStatus.RUNNING)))
        assert (job.matched, job.done) == (1, 1)
        run = await bench.run(held.run_id)
        assert run.status is RunStatus.CANCELLED
        assert job.job_id in (run.error or b"").decode()
        again = await finish(bench, await start_job(bench, JobAction.CANCEL, RunFilter(task_queue="orders")))
        assert (again.matched, again.done, again.skipped) == (4, 0, 4)
        assert again.reasons == {Skipped.ENDED: 4}

    async def test_runs_that_wait_for_a_moment_are_woken(self, bench: Bench) -> None:
        far = bench.now() + 1000 * SECOND
        held, sleeping, failing, slow = [await bench.started_claim() for _ in range(4)]
        await bench.done(sleeping, bench.completed("a", 3), ParkRun(available_at=far, inbox_seq=0))
        await bench.done(failing, RetryRun(available_at=far, keep_seq=0, error=_ERROR))
        await bench.done(slow, ParkRun(available_at=far, inbox_seq=0, waiting_for=("s:go", NEWS_ALONE)))
        delayed = await bench.start(delay=1000 * SECOND)
        bench.clock.advance(1)
        job_id = await start_job(bench, JobAction.WAKE, RunFilter(task_queue=QUEUE))
        told = []
        while (job := await self._job(bench, job_id)).status is JobStatus.RUNNING:
            bench.clock.advance(SECOND)
            told += (await bench.store.jobs.run_batch(bench.new_id)).woken
        assert (job.matched, job.done, job.skipped, job.failed) == (5, 3, 2, 0)
        assert job.reasons == {Skipped.NO_MOMENT: 2}
        woken = {sleeping.run_id, failing.run_id, delayed}
        assert {(each.run_id, each.task_queue) for each in told} == {(run_id, QUEUE) for run_id in woken}
        claims = {claim.run_id: claim for claim in await bench.claims()}
        assert claims.keys() == woken
        assert read_woken(claims[sleeping.run_id].woken, incarnation=0, attempts=0) == Woken(0, 0, 3, far)
        assert (await bench.run(held.run_id)).status is RunStatus.RUNNING

    async def test_finished_runs_are_forked_from_a_step(self, bench: Bench) -> None:
        ended = CompleteRun(output=b"1")
        whole, unique, many, none = [await bench.started_claim(tags={"batch": "7"}) for _ in range(4)]
        await bench.done(
            whole, bench.completed("look", 1), bench.completed("pay#2", 2), bench.completed("last", 3), ended
        )
        await bench.done(unique, bench.completed("look", 1), bench.completed("in/pay%232", 2), FailRun(error=_ERROR))
        await bench.done(
            many, bench.completed("a/pay%232", 1), bench.completed("b/pay%232", 2), bench.completed("repay#2", 3), ended
        )
        await bench.done(none, bench.completed("look", 1), FailRun(error=_ERROR))
        live = await bench.started_claim(tags={"batch": "7"})
        await bench.done(live, bench.completed("pay#2", 1))
        asked = JobOptions(from_step="pay#2", version="9")
        job_id = await start_job(bench, JobAction.FORK, RunFilter(tags={"batch": "7"}), options=asked)
        job = await finish(bench, job_id)
        assert (job.matched, job.done, job.skipped, job.failed) == (5, 2, 3, 0)
        assert job.reasons == {Skipped.MANY_STEPS: 1, Skipped.NO_STEP: 1, Skipped.LIVE: 1}
        assert job.options == asked
        made = (await bench.store.runs.search(RunFilter(status=RunStatus.PENDING), None, 100)).runs
        assert all((run.version, run.tags, run.input) == ("9", {"batch": "7"}, whole.input) for run in made)
        kept = {run.origin: [step.step_id for step in await bench.steps(run.run_id)] for run in made}
        assert kept == {whole.run_id: ["look"], unique.run_id: ["look"]}

    async def test_children_are_forked_if_that_is_said(self, bench: Bench) -> None:
        parent, child = await parent_and_child(bench)
        await bench.done(child, CompleteRun(output=b"1"))
        await bench.done(parent, CompleteRun(output=b"1"))
        for children, done in ((False, 1), (True, 2)):
            everything = RunFilter(status=RunStatus.COMPLETED)
            job = await finish(bench, await start_job(bench, JobAction.FORK, everything, children=children))
            assert (job.matched, job.done, job.skipped) == (2, done, 2 - done)
            assert job.reasons == ({} if children else {Skipped.CHILD: 1})
            made = (await bench.store.runs.search(RunFilter(status=RunStatus.PENDING), None, 100)).runs
            assert not any(run.parent_run_id for run in made)
            await finish(bench, await start_job(bench, JobAction.TERMINATE, RunFilter(status=RunStatus.PENDING)))

    async def test_a_run_that_was_repeated_under_its_id_is_not_repeated_again(self, bench: Bench) -> None:
        first = await bench.started_claim(external_id="order-1")
        await bench.done(first, FailRun(error=_ERROR))
        failed = RunFilter(status=RunStatus.FAILED)
        assert (await finish(bench, await start_job(bench, JobAction.RETRY, failed))).done == 1
        (second,) = await bench.claims()
        assert second.external_id == "order-1"
        await bench.done(second, FailRun(error=_ERROR))
        for action in (JobAction.RETRY, JobAction.RERUN, JobAction.FORK):
            job = await finish(bench, await start_job(bench, action, failed))
            skipped = 1 if action is JobAction.RETRY else 2
            assert (job.done, job.failed, job.reasons) == (2 - skipped, 0, {Skipped.SUPERSEDED: skipped})

    async def test_a_job_that_is_started_once_more_repeats_nothing_twice(self, bench: Bench) -> None:
        filter = RunFilter(namespace=NAMESPACE, status=RunStatus.FAILED)
        runs = await failed_runs(bench, 3)  # they have no ids
        by_hand = RepeatRun(namespace=NAMESPACE, run_id=bench.new_id(), of_run_id=runs[0], keep_steps=True)
        await bench.answer(by_hand)  # one was tried first
        first = await start_job(bench, JobAction.RETRY, filter)
        bench.clock.advance(SECOND)
        await bench.store.jobs.run_batch(bench.new_id)
        await bench.store.jobs.cancel(NAMESPACE, first)  # after the first two

        for action, left in ((JobAction.RETRY, 1), (JobAction.RERUN, 0)):
            job = await finish(bench, await start_job(bench, action, filter))
            assert (job.matched, job.done, job.failed) == (3, left, 0)
            assert job.reasons == {Skipped.REPEATED: 3 - left}

        found = await bench.store.runs.search(RunFilter(namespace=NAMESPACE, status=RunStatus.PENDING), None, 10)
        assert sorted(run.origin or "" for run in found.runs) == sorted(runs)

    async def test_runs_that_nobody_holds_are_moved_to_another_version(self, bench: Bench) -> None:
        held, sleeping, ended = [await bench.started_claim() for _ in range(3)]
        await bench.done(sleeping, ParkRun(available_at=bench.now() + 1000 * SECOND, inbox_seq=0))
        await bench.done(ended, CompleteRun(output=b"1"))
        waiting, other = await bench.start(), await bench.start(version="7")
        options = JobOptions(from_version="1", version="2")
        job_id = await start_job(bench, JobAction.MOVE, RunFilter(workflow_type=TYPE), options=options)
        told = []
        while (job := await self._job(bench, job_id)).status is JobStatus.RUNNING:
            bench.clock.advance(SECOND)
            told += [each.run_id for each in (await bench.store.jobs.run_batch(bench.new_id)).woken]
        assert (job.matched, job.done, job.skipped, job.failed) == (5, 2, 3, 0)
        assert job.reasons == {Skipped.HELD: 1, Skipped.ENDED: 1, Skipped.OTHER_VERSION: 1}
        assert sorted(told) == sorted([sleeping.run_id, waiting])
        runs = (held.run_id, sleeping.run_id, ended.run_id, waiting, other)
        assert [(await bench.run(run_id)).version for run_id in runs] == ["1", "2", "1", "2", "7"]

    async def test_finished_runs_are_deleted_and_live_ones_stay(self, bench: Bench) -> None:
        failed = await failed_runs(bench, 3)
        live = await bench.start(tags={"batch": "7"})
        job = await finish(bench, await start_job(bench, JobAction.DELETE, RunFilter(tags={"batch": "7"})))
        assert (job.matched, job.done, job.skipped, job.reasons) == (4, 3, 1, {Skipped.LIVE: 1})
        assert [await bench.store.runs.get(NAMESPACE, run_id) for run_id in failed] == [None] * 3
        assert await bench.steps(failed[0]) == []
        assert (await bench.run(live)).status is RunStatus.PENDING
        assert [
            run.run_id for run in (await bench.store.runs.search(RunFilter(tags={"batch": "7"}), None, 9)).runs
        ] == [live]

    async def test_children_follow_the_end_of_a_parent_that_was_deleted(self, bench: Bench) -> None:
        parent, child = await parent_and_child(bench, policy=ParentPolicy.CANCEL)
        await bench.done(parent, CompleteRun(output=b"1"))
        job = await finish(bench, await start_job(bench, JobAction.DELETE, RunFilter(status=RunStatus.COMPLETED)))
        assert (job.done, await bench.store.runs.get(NAMESPACE, parent.run_id)) == (1, None)
        (request,) = await bench.store.duties.cascade_ends(10)
        assert request.run_id == child.run_id

    async def test_two_coordinators_and_one_job(self, bench: Bench) -> None:
        await failed_runs(bench, 9)
        job_id = await start_job(bench, JobAction.RETRY, RunFilter(status=RunStatus.FAILED))
        for _ in range(8):
            bench.clock.advance(SECOND)
            await asyncio.gather(*[bench.store.jobs.run_batch(bench.new_id) for _ in range(3)])
        job = await self._job(bench, job_id)
        assert job.status is JobStatus.COMPLETED
        assert (job.matched, job.done) == (9, 9)
        assert len((await bench.store.runs.search(RunFilter(status=RunStatus.PENDING), None, 100)).runs) == 9

    async def _job(self, bench: Bench, job_id: str) -> Job:
        job = await bench.store.jobs.get(NAMESPACE, job_id)
        assert job is not None
        return job

    async def test_a_job_keeps_to_its_rate_and_can_be_cancelled(self, bench: Bench) -> None:
        await failed_runs(bench, 5)
        job_id = await start_job(bench, JobAction.RETRY, RunFilter(status=RunStatus.FAILED), rate=1)
        for _ in range(3):
            await bench.store.jobs.run_batch(bench.new_id)
        assert (await self._job(bench, job_id)).done == 1
        assert (await bench.store.overview.horizon([])).job == bench.now() + SECOND
        bench.clock.advance(SECOND)
        await bench.store.jobs.run_batch(bench.new_id)
        await bench.store.jobs.cancel(NAMESPACE, job_id)
        bench.clock.advance(10 * SECOND)
        assert (await bench.store.jobs.run_batch(bench.new_id)).job is None
        job = await self._job(bench, job_id)
        assert (job.status, job.done) == (JobStatus.CANCELLED, 2)
        assert [each.job_id for each in await bench.store.jobs.page(NAMESPACE, None, 10)] == [job_id]
        await bench.store.jobs.prune(0, 10)
        assert await bench.store.jobs.get(NAMESPACE, job_id) is None

    async def test_cancelling_a_job_that_has_ended_changes_nothing(self, bench: Bench) -> None:
        await failed_runs(bench, 1)
        ended = await finish(bench, await start_job(bench, JobAction.RETRY, RunFilter(status=RunStatus.FAILED)))
        bench.clock.advance(SECOND)
        await bench.store.jobs.cancel(NAMESPACE, ended.job_id)
        assert await self._job(bench, ended.job_id) == ended

    @pytest.mark.parametrize("action", [JobAction.RETRY, JobAction.RERUN, JobAction.FORK])
    async def test_a_disabled_namespace_starts_nothing(self, bench: Bench, action: JobAction) -> None:
        await failed_runs(bench, 1)
        job_id = await start_job(bench, action, RunFilter(status=RunStatus.FAILED))
        await bench.store.namespaces.update(NAMESPACE, None, None, False)
        job = await finish(bench, job_id)
        assert (job.status, job.done) == (JobStatus.FAILED, 0)
        assert "disabled" in (job.error or "")

    async def test_so_many_jobs_of_a_namespace_and_ids_are_taken(self, bench: Bench) -> None:
        job_id = await start_job(bench, JobAction.CANCEL, RunFilter(workflow_type="nobody"))
        first = await self._job(bench, job_id)
        assert await bench.store.jobs.start(first, 10) is None
        other = bench.new_id()
        assert await bench.store.jobs.start(replace(first, job_id=other), 1) is None
        assert await bench.store.jobs.get(NAMESPACE, other) is None

    async def test_one_run_is_deleted_if_it_has_finished(self, bench: Bench) -> None:
        (failed,) = await failed_runs(bench, 1)
        live = await bench.start()
        assert await bench.store.jobs.delete_run(NAMESPACE, failed)
        assert not await bench.store.jobs.delete_run(NAMESPACE, failed)
        assert not await bench.store.jobs.delete_run(NAMESPACE, live)
        assert not await bench.store.jobs.delete_run("tenant", live)
