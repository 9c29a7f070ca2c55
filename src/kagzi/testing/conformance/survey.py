"""What there is, counted, and what the schema lacks."""

from __future__ import annotations

import pytest

from kagzi.api.operations import CompleteRun, FailRun, ParkRun
from kagzi.core import load as loads
from kagzi.core.flow import Scope
from kagzi.core.instant import SECOND
from kagzi.core.load import Load
from kagzi.core.run import RunStatus
from kagzi.core.worker import WorkerStatus
from kagzi.store.postgres import overview as postgres_overview
from kagzi.store.protocol.limits import LimitChange
from kagzi.store.sqlite import overview as sqlite_overview
from kagzi.testing.conformance.bench import NAMESPACE, QUEUE, STALE, TYPE, Bench


class TestSurvey:
    async def test_an_empty_store(self, bench: Bench) -> None:
        survey = await bench.store.overview.survey(STALE)

        assert survey.now == bench.now()
        assert (survey.pending, survey.running, survey.sleeping) == (0, 0, 0)
        assert (survey.workers_online, survey.workers_draining) == (0, 0)
        assert survey.oldest_due_at is None
        assert survey.schema == bench.store.schema_version > 0

    async def test_runs_by_status_in_every_namespace(self, bench: Bench) -> None:
        done = await bench.started_claim()
        await bench.done(done, CompleteRun(output=b"1"))
        parked = await bench.started_claim()
        await bench.done(parked, ParkRun(available_at=bench.now() + 60 * SECOND, inbox_seq=parked.inbox_seq))
        await bench.started_claim()
        await bench.start()
        await bench.start(namespace="tenant", delay=SECOND)

        survey = await bench.store.overview.survey(STALE)

        assert (survey.pending, survey.running, survey.sleeping) == (2, 1, 1)

    async def test_since_when_the_oldest_due_run_waits(self, bench: Bench) -> None:
        await bench.start(delay=10 * SECOND)
        assert (await bench.store.overview.survey(STALE)).oldest_due_at is None
        bench.clock.advance(15 * SECOND)
        # Priority decides who is first, not who has waited longest.
        await bench.start(priority=5)

        assert (await bench.store.overview.survey(STALE)).oldest_due_at == bench.now() - 5 * SECOND

    async def test_which_run_has_waited_longest(self, bench: Bench) -> None:
        await bench.start(task_queue="mail")
        bench.clock.advance(SECOND)
        await bench.start()

        oldest = (await bench.store.overview.survey(STALE)).oldest_due

        assert oldest is not None
        assert (oldest.namespace, oldest.task_queue, oldest.workflow_type) == (NAMESPACE, "mail", TYPE)
        assert (await bench.run(oldest.run_id)).version == oldest.version

    async def test_what_is_paused_does_not_wait_for_a_worker(self, bench: Bench) -> None:
        await bench.start()
        for scope, name in ((Scope.NAMESPACE, ""), (Scope.QUEUE, QUEUE), (Scope.WORKFLOW, TYPE)):
            await bench.store.limits.pause(NAMESPACE, scope, name, "ops", "")
            assert (await bench.store.overview.survey(STALE)).oldest_due is None
            await bench.store.limits.resume(NAMESPACE, scope, name)
        assert (await bench.store.overview.survey(STALE)).oldest_due is not None

    async def test_what_a_limit_holds_back_does_not_wait_for_a_worker(self, bench: Bench) -> None:
        await bench.store.limits.change(NAMESPACE, Scope.WORKFLOW, TYPE, LimitChange(concurrency=1))
        await bench.claim(await bench.start())
        await bench.start()
        assert await bench.claims() == ()  # it is held

        survey = await bench.store.overview.survey(STALE)

        assert (survey.pending, survey.oldest_due_at) == (1, None)

    async def test_workers_that_are_there(self, bench: Bench) -> None:
        await bench.store.workers.register(bench.registration())
        await bench.store.workers.register(bench.registration(worker_id=bench.new_id(), namespace="tenant"))
        gone = bench.new_id()
        await bench.store.workers.register(bench.registration(worker_id=gone))
        await bench.store.workers.deregister(gone)

        assert (await bench.store.overview.survey(STALE)).workers_online == 2


class TestSchema:
    async def test_an_open_store_lacks_nothing(self, bench: Bench) -> None:
        if getattr(getattr(bench.store, "_database", None), "path", "") is None:
            return  # in memory: whoever asks from outside finds nothing
        assert await bench.store.missing_migrations() == ()
        assert await bench.store.missing_indexes() == ()
        await bench.store.build_indexes()


class TestLoad:
    async def test_an_empty_store(self, bench: Bench) -> None:
        load = await bench.store.overview.load(STALE)

        assert load == Load(now=bench.now(), queues=(), workers=(), running={})

    async def test_what_could_be_claimed_in_each_queue_of_each_namespace(self, bench: Bench) -> None:
        await bench.start(delay=10 * SECOND)
        parked = await bench.started_claim()
        await bench.done(parked, ParkRun(available_at=bench.now() + 2 * SECOND, inbox_seq=parked.inbox_seq))
        await bench.start(task_queue="asleep", delay=86_400 * SECOND)
        await bench.start(namespace="a tenant", task_queue="asleep")
        bench.clock.advance(5 * SECOND)
        # Priority decides who is first, not who has waited longest.
        await bench.start(priority=7)
        await bench.start(namespace="z tenant", task_queue="other")
        # Nobody could have claimed it before it was started.
        await bench.start(namespace="z tenant", task_queue="orders", start_at=bench.now() - 60 * SECOND)

        load = await bench.store.overview.load(STALE)

        assert {(each.namespace, each.task_queue): (each.ready, each.oldest_due_at) for each in load.queues} == {
            ("default", "orders"): (2, bench.now() - 3 * SECOND),
            ("default", "asleep"): (0, None),
            ("a tenant", "asleep"): (1, bench.now() - 5 * SECOND),
            ("z tenant", "other"): (1, bench.now()),
            ("z tenant", "orders"): (1, bench.now()),
        }

    async def test_a_tenant_with_many_queues_leaves_those_of_others_to_be_counted(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for module in (loads, sqlite_overview, postgres_overview):
            monkeypatch.setattr(module, "QUEUES_OF_NAMESPACE", 3)
        for namespace, queues in (("a", "uvwxyz"), ("b", "x"), ("c", "xyz"), ("d", "xy")):
            for queue in queues:
                await bench.start(namespace=namespace, task_queue=queue)

        load = await bench.store.overview.load(STALE)

        told = [(each.namespace, each.task_queue) for each in load.queues]
        assert sorted(told) == [tuple(each) for each in ("au", "av", "aw", "bx", "cx", "cy", "cz", "dx", "dy")]
        assert [load.counted(namespace) for namespace in "abcde"] == [False, True, False, True, True]
        for module in (loads, sqlite_overview, postgres_overview):
            monkeypatch.setattr(module, "MOST_QUEUES", 5)
        load = await bench.store.overview.load(STALE)
        assert len(load.queues) == 5
        assert not any(load.counted(namespace) for namespace in "abcde")

    async def test_workers_slots_and_what_is_running(self, bench: Bench) -> None:
        await bench.store.workers.register(bench.registration(concurrency=7))
        await bench.store.workers.register(bench.registration(worker_id=bench.new_id(), concurrency=5))
        gone = bench.new_id()
        await bench.store.workers.register(bench.registration(worker_id=gone, concurrency=3))
        await bench.store.workers.deregister(gone)
        await bench.store.workers.register(bench.registration(worker_id=bench.new_id(), namespace="tenant"))
        await bench.started_claim()
        await bench.started_claim()

        load = await bench.store.overview.load(STALE)

        assert {(each.namespace, each.status): (each.workers, each.slots) for each in load.workers} == {
            ("default", WorkerStatus.ONLINE): (2, 12),
            ("default", WorkerStatus.OFFLINE): (1, 3),
            ("tenant", WorkerStatus.ONLINE): (1, 10),
        }
        # So many statuses are told of and no more: who is left out must not look like a namespace without workers.
        assert [each.status for each in load.workers] == sorted((each.status for each in load.workers), reverse=True)
        assert load.running == {"default": 2}


class TestFacts:
    async def test_of_the_runs_that_exist(self, bench: Bench) -> None:
        waiting = await bench.start(namespace="tenant")
        claim = await bench.started_claim()
        begun = bench.now()
        bench.clock.advance(SECOND)
        await bench.done(claim, CompleteRun(output=b"1"))
        asked = [("tenant", waiting), ("default", claim.run_id), ("default", waiting), ("default", bench.new_id())]

        facts = {each.run_id: each for each in await bench.store.runs.facts_of(asked)}

        assert facts.keys() == {waiting, claim.run_id}
        assert facts[waiting].namespace == "tenant"
        assert (facts[waiting].started_at, facts[waiting].finished_at) == (None, None)
        ended = facts[claim.run_id]
        assert (ended.workflow_type, ended.started_at, ended.finished_at) == ("checkout", begun, begun + SECOND)
        assert [(each.task_queue, each.worker_id) for each in (facts[waiting], ended)] == [
            ("orders", None),
            ("orders", bench.worker_id),
        ]
        assert await bench.store.runs.facts_of([]) == []


class TestSample:
    async def test_of_the_newest_runs_of_a_workflow(self, bench: Bench) -> None:
        store = bench.store
        assert (await store.runs.sample("default", "checkout")).runs == []
        failed = await bench.started_claim()
        begun = bench.now()
        bench.clock.advance(SECOND)
        await bench.done(failed, bench.completed("charge", 1), FailRun(error=b"no money"))
        bench.clock.advance(SECOND)
        live = await bench.start(version="2")
        await bench.start(workflow_type="refund")
        await bench.start(namespace="tenant")

        sample = await store.runs.sample("default", "checkout")

        assert [(run.run_id, run.version, run.status) for run in sample.runs] == [
            (live, "2", RunStatus.PENDING),
            (failed.run_id, "1", RunStatus.FAILED),
        ]
        assert (sample.runs[0].started_at, sample.runs[0].finished_at) == (None, None)
        assert (sample.runs[1].started_at, sample.runs[1].finished_at) == (begun, begun + SECOND)
        assert sample.errors == {failed.run_id: b"no money"}
        (step,) = sample.steps
        assert (step.run_id, step.step_id, step.failed, step.retried) == (failed.run_id, "charge", False, False)
        assert (sample.whole, sample.now) == (True, bench.now())

        of_all = await store.runs.sample("default", None)
        assert len(of_all.runs) == 3
        assert (of_all.errors, list(of_all.steps)) == (sample.errors, [])
