"""Workers: registering, keeping leases alive, losing answers, leaving."""

from __future__ import annotations

import pytest

from kagzi.api.operations import BirthLease, CancelRun, ChunkAnswer, CompleteRun, HandBackRun
from kagzi.api.workers import Claim
from kagzi.core.instant import SECOND
from kagzi.core.run import RunStatus
from kagzi.core.worker import Worker, WorkerStatus, WorkflowType
from kagzi.testing.conformance.bench import LEASE, NAMESPACE, QUEUE, STALE, Bench


class TestWorkers:
    async def test_a_registered_worker_is_listed(self, bench: Bench) -> None:
        types = (WorkflowType("a"), WorkflowType("b", "2"))
        await bench.store.workers.register(bench.registration(queues=("x", "y"), types=types, concurrency=7))

        assert await bench.store.workers.rows(NAMESPACE) == [
            Worker(
                worker_id=bench.worker_id,
                namespace=NAMESPACE,
                queues=("x", "y"),
                types=types,
                hostname="host",
                pid=1,
                version="1.0",
                concurrency=7,
                status=WorkerStatus.ONLINE,
                registered_at=bench.now(),
                last_heartbeat_at=bench.now(),
                completed=0,
                failed=0,
            )
        ]

    async def test_namespaces_have_their_own_workers(self, bench: Bench) -> None:
        await bench.store.workers.register(bench.registration(namespace="tenant"))

        assert await bench.store.workers.rows(NAMESPACE) == []
        assert len(await bench.store.workers.rows("tenant")) == 1

    async def test_a_worker_is_unknown_to_other_namespaces(self, bench: Bench) -> None:
        await bench.store.workers.register(bench.registration())
        claim = await bench.started_claim()

        assert await bench.store.workers.get(bench.worker_id, "tenant", STALE) is None
        assert not await bench.store.workers.drain(bench.worker_id, "tenant")
        assert await bench.store.workers.deregister(bench.worker_id, "tenant") == []
        foreign, released = await bench.beat(claim, heard=9, namespace="tenant")
        unknown, _ = await bench.beat(claim, heard=9, namespace="tenant", worker_id=bench.new_id())
        assert (foreign.known, foreign.lost, released) == (False, (claim.run_id,), [])
        assert foreign == unknown

        worker = await bench.store.workers.get(bench.worker_id, NAMESPACE, STALE)
        assert worker is not None
        assert (worker.status, worker.active) == (WorkerStatus.ONLINE, 1)
        answer, _ = await bench.beat(claim, heard=9, namespace=NAMESPACE)
        assert (answer.known, answer.lost) == (True, ())
        assert await bench.store.workers.drain(bench.worker_id, NAMESPACE)
        assert len(await bench.store.workers.deregister(bench.worker_id, NAMESPACE)) == 1

    async def test_registering_twice_is_one_worker(self, bench: Bench) -> None:
        await bench.store.workers.register(bench.registration(queues=("x",)))
        await bench.store.workers.register(bench.registration(queues=("y",)))

        (worker,) = await bench.store.workers.rows(NAMESPACE)
        assert worker.queues == ("y",)

    async def test_a_worker_that_leaves_gives_its_runs_back_and_burns_nothing(self, bench: Bench) -> None:
        await bench.store.workers.register(bench.registration())
        claim = await bench.started_claim()
        await bench.done(claim, bench.completed("a", 1))
        bench.clock.advance(SECOND)

        (recovered,) = await bench.store.workers.deregister(bench.worker_id)

        assert (recovered.namespace, recovered.run_id, recovered.task_queue) == (
            NAMESPACE,
            claim.run_id,
            QUEUE,
        )
        assert (recovered.status, recovered.available_at) == (RunStatus.PENDING, bench.now())
        (worker,) = await bench.store.workers.rows(NAMESPACE)
        assert worker.status is WorkerStatus.OFFLINE
        run = await bench.run(claim.run_id)
        assert (run.status, run.attempts, run.crashes) == (RunStatus.PENDING, 0, 0)
        assert await bench.send(claim, CompleteRun(output=b"1")) is ChunkAnswer.LEASE_LOST
        again = await bench.claim(claim.run_id, worker_id=bench.new_id())
        assert [step.step_id for step in again.history] == ["a"]

    async def test_leaving_twice_or_unknown_changes_nothing(self, bench: Bench) -> None:
        await bench.store.workers.register(bench.registration())
        await bench.store.workers.deregister(bench.worker_id)
        claim = await bench.started_claim(task_queue=QUEUE)
        other = bench.new_id()
        assert await bench.store.workers.deregister(other) == []
        assert (await bench.run(claim.run_id)).status is RunStatus.RUNNING

    async def test_leaving_leaves_the_runs_of_others_alone(self, bench: Bench) -> None:
        other = bench.new_id()
        await bench.start()
        held = await bench.claim(worker_id=other)
        await bench.store.workers.register(bench.registration())

        assert await bench.store.workers.deregister(bench.worker_id) == []
        await bench.done(held, CompleteRun(output=b"1"))

    async def test_silent_workers_are_marked_offline(self, bench: Bench) -> None:
        silent, loud = bench.new_id(), bench.new_id()
        await bench.store.workers.register(bench.registration(worker_id=silent))
        await bench.store.workers.register(bench.registration(worker_id=loud))
        bench.clock.advance(20 * SECOND)
        await bench.beat(worker_id=loud)
        bench.clock.advance(10 * SECOND - 1)
        assert await bench.store.workers.expire(100, 30 * SECOND) == []
        bench.clock.advance(1)

        assert await bench.store.workers.expire(100, 30 * SECOND) == [silent]

        assert await bench.store.workers.expire(100, 30 * SECOND) == []
        statuses = {worker.worker_id: worker.status for worker in await bench.store.workers.rows(NAMESPACE)}
        assert statuses == {silent: WorkerStatus.OFFLINE, loud: WorkerStatus.ONLINE}

    async def test_no_more_workers_expire_than_the_limit(self, bench: Bench) -> None:
        for _ in range(3):
            await bench.store.workers.register(bench.registration(worker_id=bench.new_id()))
        bench.clock.advance(60 * SECOND)

        assert len(await bench.store.workers.expire(2, 30 * SECOND)) == 2
        assert len(await bench.store.workers.expire(2, 30 * SECOND)) == 1

    async def test_an_expired_worker_keeps_its_leases_until_they_end(self, bench: Bench) -> None:
        await bench.store.workers.register(bench.registration())
        claim = await bench.started_claim(lease_length=60 * SECOND)
        bench.clock.advance(30 * SECOND)
        await bench.store.workers.expire(100, 30 * SECOND)

        await bench.done(claim, CompleteRun(output=b"1"))

    async def test_an_expired_worker_may_register_again(self, bench: Bench) -> None:
        await bench.store.workers.register(bench.registration())
        bench.clock.advance(60 * SECOND)
        await bench.store.workers.expire(100, 30 * SECOND)
        assert (await bench.beat())[0].known is False

        await bench.store.workers.register(bench.registration())

        assert (await bench.beat())[0].known is True
        (worker,) = await bench.store.workers.rows(NAMESPACE)
        assert worker.status is WorkerStatus.ONLINE


class TestHeartbeats:
    async def test_a_heartbeat_is_noted(self, bench: Bench) -> None:
        await bench.store.workers.register(bench.registration())
        bench.clock.advance(SECOND)

        answer, recovered = await bench.beat(completed=5, failed=2)

        assert (answer.lost, answer.news, answer.drain, answer.known) == ((), (), False, True)
        assert recovered == []
        (worker,) = await bench.store.workers.rows(NAMESPACE)
        assert (worker.last_heartbeat_at, worker.completed, worker.failed) == (bench.now(), 5, 2)

    async def test_an_unknown_worker_is_told_so(self, bench: Bench) -> None:
        answer, recovered = await bench.beat()

        assert (answer.known, recovered) == (False, [])
        assert await bench.store.workers.rows(NAMESPACE) == []

    async def test_listed_leases_are_renewed_to_now_and_their_length(self, bench: Bench) -> None:
        await bench.store.workers.register(bench.registration())
        claim = await bench.started_claim()
        for _ in range(3):  # never additively
            bench.clock.advance(SECOND)
            answer, _ = await bench.beat(claim, heard=1)
            assert answer.lost == ()

        bench.clock.advance(LEASE - 1)
        assert await bench.recover() == []
        bench.clock.advance(1)
        assert len(await bench.recover()) == 1

    async def test_each_lease_is_renewed_by_its_own_length(self, bench: Bench) -> None:
        await bench.store.workers.register(bench.registration())
        short = await bench.started_claim(lease_length=3 * SECOND)
        long = await bench.started_claim(lease_length=300 * SECOND)
        birth = BirthLease(worker_id=bench.worker_id, token=bench.new_id(), length=9 * SECOND)
        born = bench.start_run(lease=birth)
        await bench.answer(born)
        bench.clock.advance(SECOND)
        await bench.beat(
            held=(
                (short.run_id, short.token),
                (long.run_id, long.token),
                (born.run_id, birth.token),
            )
        )

        for length, run_id in ((3, short.run_id), (6, born.run_id), (291, long.run_id)):
            bench.clock.advance(length * SECOND - 1)
            assert await bench.recover() == []
            bench.clock.advance(1)
            assert [recovered.run_id for recovered in await bench.recover()] == [run_id]

    async def test_an_expired_lease_that_nobody_took_is_renewed(self, bench: Bench) -> None:
        await bench.store.workers.register(bench.registration())
        claim = await bench.started_claim()
        bench.clock.advance(2 * LEASE)

        answer, _ = await bench.beat(claim, heard=1)

        assert answer.lost == ()
        assert await bench.recover() == []

    async def test_a_lost_lease_is_told_and_not_revived(self, bench: Bench) -> None:
        await bench.store.workers.register(bench.registration())
        claim = await bench.started_claim()
        await bench.crash(claim)

        assert (await bench.beat(claim, heard=1))[0].lost == (claim.run_id,)
        assert (await bench.run(claim.run_id)).status is RunStatus.PENDING
        # Also when the same worker has claimed the run anew: the old token is gone, the new lease is not
        # touched.
        again = await bench.claim(claim.run_id)
        bench.clock.advance(again.lease - SECOND)
        assert (await bench.beat(claim))[0].lost == (claim.run_id,)
        bench.clock.advance(SECOND)
        assert len(await bench.recover()) == 1

    async def test_a_run_that_timed_out_is_lost(self, bench: Bench) -> None:
        await bench.store.workers.register(bench.registration())
        claim = await bench.started_claim(timeout=SECOND)
        bench.clock.advance(SECOND)
        await bench.store.duties.time_out_runs(100)

        assert (await bench.beat(claim, heard=1))[0].lost == (claim.run_id,)

    async def test_a_run_of_another_worker_is_not_renewed(self, bench: Bench) -> None:
        await bench.store.workers.register(bench.registration())
        await bench.start()
        foreign = await bench.claim(worker_id=bench.new_id())
        bench.clock.advance(SECOND)

        answer, _ = await bench.beat(held=((foreign.run_id, bench.new_id()), (bench.new_id(), bench.new_id())))

        assert foreign.run_id in answer.lost
        assert len(answer.lost) == 2
        bench.clock.advance(LEASE - SECOND)
        assert len(await bench.recover()) == 1

    @pytest.mark.parametrize("owner_first", [True, False])
    @pytest.mark.parametrize("owner_lists_it", [True, False])
    async def test_the_token_of_another_worker_is_no_lease(
        self, bench: Bench, owner_first: bool, owner_lists_it: bool
    ) -> None:
        """In whichever order their heartbeats stand in a batch, and whether or not the owner's gives the run back."""
        other = bench.new_id()
        await bench.store.workers.register(bench.registration())
        await bench.store.workers.register(bench.registration(worker_id=other))
        claim = await bench.started_claim()  # poll 1
        owners = bench.heartbeat(*([claim] if owner_lists_it else []), heard=1)
        others = bench.heartbeat(claim, worker_id=other)

        beaten = await bench.store.workers.heartbeats([owners, others] if owner_first else [others, owners])

        by_owner, by_other = beaten if owner_first else reversed(beaten)
        assert (by_other.answer.lost, by_other.released) == ((claim.run_id,), [])
        assert by_owner.answer.lost == ()
        assert [each.run_id for each in by_owner.released] == ([] if owner_lists_it else [claim.run_id])

    async def test_a_run_listed_under_two_tokens_is_held_by_the_right_one(self, bench: Bench) -> None:
        await bench.store.workers.register(bench.registration())
        claim = await bench.started_claim()
        right, wrong = (claim.run_id, claim.token), (claim.run_id, bench.new_id())
        for held in ((right, wrong), (wrong, right)):
            answer, recovered = await bench.beat(held=held, heard=1)
            assert (answer.lost, recovered) == ((), [])

    async def test_a_claim_whose_answer_was_lost_goes_back_at_once(self, bench: Bench) -> None:
        await bench.store.workers.register(bench.registration())
        lost = await bench.started_claim()  # poll 1
        await bench.start()
        kept = await bench.claim()  # poll 2
        bench.clock.advance(SECOND)

        answer, recovered = await bench.beat(kept, heard=2)

        assert answer.lost == ()
        assert [(each.run_id, each.status, each.available_at) for each in recovered] == [
            (lost.run_id, RunStatus.PENDING, bench.now())
        ]
        run = await bench.run(lost.run_id)
        assert (run.status, run.attempts, run.crashes) == (RunStatus.PENDING, 0, 0)
        assert await bench.send(lost, CompleteRun(output=b"1")) is ChunkAnswer.LEASE_LOST
        await bench.claim(lost.run_id)
        await bench.done(kept, HandBackRun())

    async def test_listing_an_old_lease_of_a_run_does_not_keep_a_lost_claim_of_it(self, bench: Bench) -> None:
        await bench.store.workers.register(bench.registration())
        old = await bench.started_claim()  # poll 1
        await bench.crash(old)
        new = await bench.claim(old.run_id)  # poll 2, whose answer is lost

        answer, recovered = await bench.beat(old, heard=2)

        assert answer.lost == (old.run_id,)
        assert [each.run_id for each in recovered] == [old.run_id]
        assert await bench.send(new, CompleteRun(output=b"1")) is ChunkAnswer.LEASE_LOST

    async def test_a_claim_still_on_its_way_stays(self, bench: Bench) -> None:
        await bench.store.workers.register(bench.registration())
        claim = await bench.started_claim()

        answer, recovered = await bench.beat(heard=0)

        assert (answer.lost, recovered) == ((), [])
        await bench.done(claim, CompleteRun(output=b"1"))

    async def test_a_run_born_under_a_worker_does_not_go_back(self, bench: Bench) -> None:
        """It came with no poll, so no poll can say that it was lost on the way."""
        await bench.store.workers.register(bench.registration())
        lease = BirthLease(worker_id=bench.worker_id, token=bench.new_id(), length=LEASE)
        start = bench.start_run(lease=lease)
        await bench.answer(start)

        assert (await bench.beat(heard=1000))[1] == []
        assert (await bench.run(start.run_id)).status is RunStatus.RUNNING

    async def test_repeated_heartbeats_change_nothing_more(self, bench: Bench) -> None:
        await bench.store.workers.register(bench.registration())
        claim = await bench.started_claim()
        first = await bench.beat(claim, heard=1)
        before = await bench.state(claim.run_id)

        assert await bench.beat(claim, heard=1) == first
        assert await bench.state(claim.run_id) == before

    async def test_the_shortest_lease_renewed_is_told(self, bench: Bench) -> None:
        await bench.store.workers.register(bench.registration())
        (idle,) = await bench.store.workers.heartbeats([bench.heartbeat()])
        short = await bench.started_claim(lease_length=3 * SECOND)
        long = await bench.started_claim(lease_length=300 * SECOND)

        (both,) = await bench.store.workers.heartbeats([bench.heartbeat(short, long)])
        (one,) = await bench.store.workers.heartbeats([bench.heartbeat(long)])

        assert (idle.shortest, both.shortest, one.shortest) == (None, 3 * SECOND, 300 * SECOND)


class TestHeartbeatsTogether:
    async def test_none_at_all(self, bench: Bench) -> None:
        assert await bench.store.workers.heartbeats([]) == []

    async def test_everybody_gets_the_answer_to_the_own_heartbeat(self, bench: Bench) -> None:
        """All that can happen to a worker, at once and in no order."""
        kept, crashed, unheard, drained, gone, foreign = (bench.new_id() for _ in range(6))
        for worker_id in (kept, crashed, unheard, drained, gone, foreign):
            await bench.store.workers.register(bench.registration(worker_id=worker_id))
        await bench.store.workers.drain(drained)
        await bench.store.workers.deregister(gone)
        lost = await self._claim(bench, crashed)
        await bench.crash(lost)
        held = await self._claim(bench, kept, lost.run_id)
        stray = await self._claim(bench, unheard)
        hidden = await self._claim(bench, foreign)
        bench.clock.advance(SECOND)

        beats = [
            bench.heartbeat(lost, worker_id=crashed, heard=99),
            bench.heartbeat(worker_id=bench.new_id()),
            bench.heartbeat(worker_id=drained, completed=3, failed=1),
            bench.heartbeat(worker_id=unheard, heard=99),
            bench.heartbeat(held, worker_id=kept, heard=99, completed=7),
            bench.heartbeat(worker_id=gone),
            bench.heartbeat(hidden, worker_id=foreign, heard=99, namespace="tenant"),
        ]
        beaten = await bench.store.workers.heartbeats(beats)

        assert [each.answer.lost for each in beaten] == [(lost.run_id,), (), (), (), (), (), (hidden.run_id,)]
        assert [each.answer.known for each in beaten] == [True, False, True, True, True, False, False]
        assert [each.answer.drain for each in beaten] == [False, False, True, False, False, False, False]
        assert [[run.run_id for run in each.released] for each in beaten] == [[], [], [], [stray.run_id], [], [], []]
        assert [each.shortest for each in beaten] == [None, None, None, None, LEASE, None, None]
        assert all(each.answer.now == bench.now() for each in beaten if each.answer.known)
        workers = {worker.worker_id: worker for worker in await bench.store.workers.rows(NAMESPACE)}
        assert len(workers) == 6
        assert (workers[kept].completed, workers[drained].completed, workers[drained].failed) == (7, 3, 1)
        heard_now = {each for each in workers if workers[each].last_heartbeat_at == bench.now()}
        assert heard_now == {kept, crashed, unheard, drained}
        assert (await bench.run(stray.run_id)).status is RunStatus.PENDING
        # The lease that was listed is a second younger than the one that was not, being another tenant's.
        bench.clock.advance(LEASE - SECOND)
        assert [run.run_id for run in await bench.recover()] == [hidden.run_id]
        bench.clock.advance(SECOND)
        assert [run.run_id for run in await bench.recover()] == [held.run_id]

    async def test_a_list_speaks_for_its_own_worker_only(self, bench: Bench) -> None:
        thief, holder = bench.new_id(), bench.new_id()
        for worker_id in (thief, holder):
            await bench.store.workers.register(bench.registration(worker_id=worker_id))
        claim = await self._claim(bench, holder)

        first, second = await bench.store.workers.heartbeats(
            [bench.heartbeat(claim, worker_id=thief, heard=99), bench.heartbeat(worker_id=holder, heard=99)]
        )

        assert (first.shortest, first.released) == (None, [])
        assert [run.run_id for run in second.released] == [claim.run_id]

    async def test_workers_with_and_without_lists(self, bench: Bench) -> None:
        listing, silent = bench.new_id(), bench.new_id()
        for worker_id in (listing, silent):
            await bench.store.workers.register(bench.registration(worker_id=worker_id))
        held = await self._claim(bench, listing)
        confirmed = await self._claim(bench, silent)
        unconfirmed = await self._claim(bench, silent)
        await bench.store.work.read_lease(NAMESPACE, confirmed.run_id, confirmed.token, True)
        bench.clock.advance(SECOND)

        beaten = await bench.store.workers.heartbeats(
            [
                bench.heartbeat(worker_id=silent, confirmed=True),
                bench.heartbeat(held, worker_id=listing, heard=99),
            ]
        )

        assert [(each.answer.lost, each.released, each.shortest) for each in beaten] == [((), [], LEASE)] * 2
        bench.clock.advance(LEASE - SECOND)
        assert [run.run_id for run in await bench.recover()] == [unconfirmed.run_id]
        bench.clock.advance(SECOND)
        assert {run.run_id for run in await bench.recover()} == {confirmed.run_id, held.run_id}

    async def test_of_two_from_one_worker_the_later_one_counts(self, bench: Bench) -> None:
        other = bench.new_id()
        for worker_id in (bench.worker_id, other):
            await bench.store.workers.register(bench.registration(worker_id=worker_id))
        first = await bench.started_claim()
        second = await bench.started_claim()

        beaten = await bench.store.workers.heartbeats(
            [
                bench.heartbeat(first, heard=1, completed=1),
                bench.heartbeat(worker_id=other, completed=5),
                bench.heartbeat(first, second, heard=2, completed=2),
                bench.heartbeat(second, heard=2, completed=3, namespace="tenant"),
            ]
        )

        assert [each.answer.lost for each in beaten] == [(), (), (), (second.run_id,)]
        assert [each.answer.known for each in beaten] == [True, True, True, False]
        assert [each.released for each in beaten] == [[]] * 4
        completed = {worker.worker_id: worker.completed for worker in await bench.store.workers.rows(NAMESPACE)}
        assert completed == {bench.worker_id: 2, other: 5}

    async def test_news_and_cancellations_reach_their_workers(self, bench: Bench) -> None:
        claims = {}
        for worker_id in (bench.new_id(), bench.new_id()):
            await bench.store.workers.register(bench.registration(worker_id=worker_id))
            claims[worker_id] = await self._claim(bench, worker_id)
        told, _ = claims.values()
        await bench.answer(CancelRun(namespace=NAMESPACE, run_id=told.run_id, grace=SECOND))

        beaten = await bench.store.workers.heartbeats(
            [bench.heartbeat(claim, worker_id=worker_id, heard=99) for worker_id, claim in claims.items()]
        )

        assert [(each.answer.news, each.answer.cancelled) for each in beaten] == [
            (((told.run_id, 1),), (told.run_id,)),
            ((), ()),
        ]

    async def _claim(self, bench: Bench, worker_id: str, run_id: str | None = None) -> Claim:
        return await bench.claim(run_id or await bench.start(), worker_id=worker_id)
