"""What there is, counted, and what the schema lacks."""

from __future__ import annotations

from kagzi.api.operations import CompleteRun, ParkRun
from kagzi.core.instant import SECOND
from kagzi.testing.conformance.bench import Bench


class TestSurvey:
    async def test_an_empty_store(self, bench: Bench) -> None:
        survey = await bench.store.survey()

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

        survey = await bench.store.survey()

        assert (survey.pending, survey.running, survey.sleeping) == (2, 1, 1)

    async def test_since_when_the_oldest_due_run_waits(self, bench: Bench) -> None:
        await bench.start(delay=10 * SECOND)
        assert (await bench.store.survey()).oldest_due_at is None
        bench.clock.advance(15 * SECOND)
        # Priority decides who is first, not who has waited longest.
        await bench.start(priority=5)

        assert (await bench.store.survey()).oldest_due_at == bench.now() - 5 * SECOND

    async def test_workers_that_are_there(self, bench: Bench) -> None:
        await bench.store.register(bench.registration())
        await bench.store.register(bench.registration(worker_id=bench.new_id(), namespace="tenant"))
        gone = bench.new_id()
        await bench.store.register(bench.registration(worker_id=gone))
        await bench.store.deregister(gone)

        assert (await bench.store.survey()).workers_online == 2


class TestSchema:
    async def test_an_open_store_lacks_nothing(self, bench: Bench) -> None:
        if getattr(getattr(bench.store, "_database", None), "path", "") is None:
            return  # in memory: whoever asks from outside finds nothing
        assert await bench.store.missing_migrations() == ()
