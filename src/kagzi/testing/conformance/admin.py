"""What servers and operators ask: leases by their token, workers, counts."""

from __future__ import annotations

from collections import Counter

import pytest

from kagzi.api.admin import RunCount, WorkerFilter
from kagzi.api.operations import CompleteRun, HandBackRun, ParkRun
from kagzi.api.workers import Heartbeat
from kagzi.core.instant import SECOND
from kagzi.core.page import Cursor
from kagzi.core.run import RunStatus
from kagzi.core.worker import WorkerStatus, worker_position
from kagzi.store import counting
from kagzi.testing.conformance.bench import LEASE, NAMESPACE, QUEUE, STALE, TYPE, Bench


class TestReadLease:
    async def test_the_holder_sees_everything_recorded(self, bench: Bench) -> None:
        claim = await bench.started_claim(input=b"[1]", retry_policy=b"{}")
        await bench.done(claim, bench.completed("a", 1), bench.begun("b", retry_at=bench.now() + 5))
        bench.clock.advance(SECOND)

        state = await bench.store.work.read_lease(NAMESPACE, claim.run_id, claim.token, False)

        assert state is not None
        assert (state.run_id, state.token, state.worker_id) == (claim.run_id, claim.token, bench.worker_id)
        assert (state.status, state.now, state.lease) == (RunStatus.RUNNING, bench.now(), LEASE)
        assert (state.input, state.retry_policy, state.attempts) == (b"[1]", b"{}", 0)
        assert [(step.step_id, step.completed_seq) for step in state.history] == [("a", 1), ("b", None)]
        assert state.history[1].retry_at == bench.now() - SECOND + 5

    async def test_a_large_input_is_read_too(self, bench: Bench) -> None:
        claim = await bench.started_claim(input=b"x" * 1_000_000)
        state = await bench.store.work.read_lease(NAMESPACE, claim.run_id, claim.token, False)
        assert state is not None
        assert state.input == b"x" * 1_000_000

    async def test_who_let_go_sees_where_the_run_stands(self, bench: Bench) -> None:
        claim = await bench.started_claim()
        await bench.done(claim, ParkRun(available_at=bench.now() + SECOND, inbox_seq=0))
        state = await bench.store.work.read_lease(NAMESPACE, claim.run_id, claim.token, True)
        assert state is not None
        assert state.status is RunStatus.SLEEPING

    async def test_another_token_or_namespace_sees_nothing(self, bench: Bench) -> None:
        claim = await bench.started_claim()
        read = bench.store.work.read_lease
        assert await read(NAMESPACE, claim.run_id, bench.new_id(), True) is None
        assert await read("tenant", claim.run_id, claim.token, True) is None
        assert await read(NAMESPACE, bench.new_id(), claim.token, True) is None
        await bench.done(claim, HandBackRun())
        await bench.claim(claim.run_id)
        assert await read(NAMESPACE, claim.run_id, claim.token, True) is None


class TestConfirmedLeases:
    async def test_a_worker_without_a_list_keeps_what_was_confirmed(self, bench: Bench) -> None:
        await bench.store.workers.register(bench.registration())
        await bench.start()
        await bench.start()
        confirmed, silent = await bench.claims()
        state = await bench.store.work.read_lease(NAMESPACE, confirmed.run_id, confirmed.token, True)
        assert state is not None
        assert state.confirmed
        bench.clock.advance(LEASE - 1)

        answer, returned = await bench.beat(heard=1000, confirmed=True)

        assert (answer.known, answer.lost, returned) == (True, (), [])
        bench.clock.advance(SECOND)
        assert [run.run_id for run in await bench.recover()] == [silent.run_id]
        bench.clock.advance(LEASE)
        assert [run.run_id for run in await bench.recover()] == [confirmed.run_id]

    async def test_confirming_renews_the_lease_once(self, bench: Bench) -> None:
        claim = await bench.started_claim()
        bench.clock.advance(LEASE - 1)
        for _ in range(2):
            await bench.store.work.read_lease(NAMESPACE, claim.run_id, claim.token, True)
        bench.clock.advance(LEASE - 1)
        assert await bench.recover() == []


class TestLookingAtWorkers:
    async def test_a_worker_is_found_with_what_it_said_and_holds(self, bench: Bench) -> None:
        await bench.store.workers.register(
            bench.registration(labels={"zone": "a"}, queue_limit=5, type_limits={TYPE: 2})
        )
        await bench.started_claim()

        worker = await bench.store.workers.get(bench.worker_id, None, STALE)

        assert worker is not None
        assert (worker.labels, worker.queue_limit, worker.type_limits) == ({"zone": "a"}, 5, {TYPE: 2})
        assert worker.active == 1
        assert await bench.store.workers.get(bench.new_id(), None, STALE) is None

    async def test_workers_are_listed_in_pages_and_filtered(self, bench: Bench) -> None:
        ids = [bench.new_id() for _ in range(5)]
        for number, worker_id in enumerate(ids):
            queues = ("even", "all") if number % 2 == 0 else ("all",)
            await bench.store.workers.register(bench.registration(worker_id=worker_id, queues=queues))
            if number != 2:
                bench.clock.advance(SECOND)  # two of them come in the same moment
        await bench.store.workers.deregister(ids[4])
        await bench.store.workers.register(bench.registration(worker_id=bench.new_id(), namespace="tenant"))
        find = bench.store.workers.page
        everyone = WorkerFilter(namespace=NAMESPACE)

        first = await find(everyone, None, 2, STALE)
        second = await find(everyone, Cursor(worker_position(first[-1])), 10, STALE)

        assert [worker.worker_id for worker in first + second] == ids[::-1]
        even = WorkerFilter(namespace=NAMESPACE, task_queue="even", status=WorkerStatus.ONLINE)
        assert [worker.worker_id for worker in await find(even, None, 10, STALE)] == [ids[2], ids[0]]

    async def test_draining_is_told_with_the_next_heartbeat(self, bench: Bench) -> None:
        await bench.store.workers.register(bench.registration())
        assert await bench.store.workers.drain(bench.worker_id)
        assert not await bench.store.workers.drain(bench.worker_id)
        answer, _ = await bench.beat()
        assert answer.drain
        await bench.store.workers.deregister(bench.worker_id)
        assert not await bench.store.workers.drain(bench.worker_id)

    async def test_workers_are_counted(self, bench: Bench) -> None:
        await bench.store.workers.register(bench.registration())
        await bench.store.workers.register(bench.registration(worker_id=bench.new_id(), namespace="tenant"))
        await bench.store.workers.deregister(bench.worker_id)
        assert await bench.store.workers.count(NAMESPACE, STALE) == {WorkerStatus.OFFLINE: 1}
        assert await bench.store.workers.count(None, STALE) == {WorkerStatus.OFFLINE: 1, WorkerStatus.ONLINE: 1}

    async def test_a_worker_that_is_not_heard_of_is_offline_before_its_row_says_so(self, bench: Bench) -> None:
        silent, leaving, loud = [bench.new_id() for _ in range(3)]
        for worker_id in (silent, leaving):
            await bench.store.workers.register(bench.registration(worker_id=worker_id, concurrency=3))
        await bench.store.workers.drain(leaving)
        bench.clock.advance(STALE - 1)
        await bench.store.workers.register(bench.registration(worker_id=loud, concurrency=4))

        async def statuses() -> dict[str, WorkerStatus]:
            found = await bench.store.workers.page(WorkerFilter(namespace=NAMESPACE), None, 10, STALE)
            shown = {worker.worker_id: worker.status for worker in found}
            for worker_id, status in shown.items():
                one = await bench.store.workers.get(worker_id, None, STALE)
                assert one is not None
                assert one.status is status
            for status in WorkerStatus:
                only = WorkerFilter(namespace=NAMESPACE, status=status)
                found = await bench.store.workers.page(only, None, 10, STALE)
                assert {worker.worker_id for worker in found} == {each for each in shown if shown[each] is status}
            assert await bench.store.workers.count(NAMESPACE, STALE) == Counter(shown.values())
            assert await bench.store.workers.count(None, STALE) == Counter(shown.values())
            load = await bench.store.overview.load(STALE)
            assert {each.status: each.workers for each in load.workers} == Counter(shown.values())
            survey = await bench.store.overview.survey(STALE)
            assert survey.workers_online == Counter(shown.values())[WorkerStatus.ONLINE]
            assert survey.workers_draining == Counter(shown.values())[WorkerStatus.DRAINING]
            return shown

        here = {silent: WorkerStatus.ONLINE, leaving: WorkerStatus.DRAINING, loud: WorkerStatus.ONLINE}
        assert await statuses() == here
        bench.clock.advance(1)
        assert await statuses() == here | {silent: WorkerStatus.OFFLINE, leaving: WorkerStatus.OFFLINE}
        await bench.store.workers.heartbeats([Heartbeat(worker_id=silent, held=(), heard=0, completed=0, failed=0)])
        assert await statuses() == here | {leaving: WorkerStatus.OFFLINE}


class TestCounting:
    async def test_runs_are_counted_by_type_queue_and_status(self, bench: Bench) -> None:
        await bench.done(await bench.started_claim(), CompleteRun(output=b"1"))
        await bench.started_claim()
        await bench.start(workflow_type="other")
        await bench.start(workflow_type="other")
        await bench.store.namespaces.ensure("tenant")
        await bench.start(namespace="tenant")
        completed = RunCount(TYPE, QUEUE, RunStatus.COMPLETED, 1)
        live = {RunCount(TYPE, QUEUE, RunStatus.RUNNING, 1), RunCount("other", QUEUE, RunStatus.PENDING, 2)}

        assert set(await bench.store.runs.count(NAMESPACE, False)) == {completed, *live}
        assert set(await bench.store.runs.count(NAMESPACE, True)) == live
        assert set(await bench.store.runs.count(None, True)) == {*live, RunCount(TYPE, QUEUE, RunStatus.PENDING, 1)}

    async def test_counting_stops_at_a_bound_and_says_so(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(counting, "OF_A_QUEUE", 2)
        monkeypatch.setattr(counting, "OF_A_NAMESPACE", 3)
        for _ in range(2):
            await bench.done(await bench.started_claim(), CompleteRun(output=b"1"))
        for _ in range(4):
            await bench.start(task_queue="long")
        await bench.start(task_queue="short")

        counts = await bench.store.runs.count(NAMESPACE, False)

        # The newest three are none of those that have finished; the long queue does not hide the short one.
        assert set(counts) == {
            RunCount(TYPE, "long", RunStatus.PENDING, 2, True),
            RunCount(TYPE, "short", RunStatus.PENDING, 1),
        }
        monkeypatch.setattr(counting, "OF_A_NAMESPACE", 6)
        assert RunCount(TYPE, QUEUE, RunStatus.COMPLETED, 1, True) in await bench.store.runs.count(NAMESPACE, False)

    async def test_runs_are_counted_by_when_they_were_created(self, bench: Bench) -> None:
        await bench.done(await bench.started_claim(), CompleteRun(output=b"1"))
        before = bench.now()
        bench.clock.advance(SECOND)
        await bench.start()
        count = bench.store.runs.count

        assert await count(NAMESPACE, False, before, None) == [RunCount(TYPE, QUEUE, RunStatus.PENDING, 1)]
        assert await count(NAMESPACE, False, None, before + 1) == [RunCount(TYPE, QUEUE, RunStatus.COMPLETED, 1)]
        assert await count(NAMESPACE, False, before, before + SECOND) == []
