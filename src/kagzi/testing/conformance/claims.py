"""Claiming: which runs, in which order, to whom."""

from __future__ import annotations

from kagzi.api.operations import ChunkAnswer, CompleteRun, HandBackRun, ParkRun
from kagzi.core.instant import SECOND
from kagzi.core.run import AGEING, RunStatus
from kagzi.core.worker import WorkflowType
from kagzi.testing.conformance.bench import LEASE, QUEUE, TYPE, Bench


class TestClaims:
    async def test_a_claim_brings_everything_needed_to_drive_the_run(self, bench: Bench) -> None:
        run_id = await bench.start(input=b"[1]", external_id="order-1", version="3", retry_policy=b"policy", priority=2)
        bench.clock.advance(SECOND)
        poll = bench.poll()

        polled = await bench.polled(poll)

        assert polled.now == bench.now()
        (claim,) = polled.claims
        assert (claim.namespace, claim.run_id) == (poll.namespace, run_id)
        assert claim.token == f"{1:08x}{poll.token[8:]}"
        assert (claim.workflow_type, claim.version, claim.task_queue) == (TYPE, "3", QUEUE)
        assert (claim.external_id, claim.input, claim.retry_policy) == ("order-1", b"[1]", b"policy")
        assert (claim.started_at, claim.lease, claim.inbox_seq) == (bench.now(), LEASE, 0)
        assert (claim.attempts, claim.executions, claim.crashes) == (0, 1, 0)
        assert claim.history == ()
        run = await bench.run(run_id)
        assert (run.status, run.started_at, run.executions) == (RunStatus.RUNNING, bench.now(), 1)
        assert run.worker_id == bench.worker_id

    async def test_an_empty_queue_answers_with_the_time(self, bench: Bench) -> None:
        polled = await bench.polled(bench.poll())

        assert (polled.now, polled.claims) == (bench.now(), ())

    async def test_a_run_is_claimed_once(self, bench: Bench) -> None:
        run_id = await bench.start()

        assert await bench.claimed_ids() == [run_id]
        assert await bench.claimed_ids() == []
        assert await bench.claimed_ids(worker_id=bench.new_id()) == []

    async def test_no_more_than_the_limit(self, bench: Bench) -> None:
        for _ in range(5):
            await bench.start()
            bench.clock.advance(1)

        assert [len(await bench.claims(limit=2)) for _ in range(4)] == [2, 2, 1, 0]

    async def test_the_limit_counts_over_all_queues(self, bench: Bench) -> None:
        for queue in ("a", "b", "c"):
            for _ in range(2):
                await bench.start(task_queue=queue)

        assert len(await bench.claims(queues=("a", "b", "c"), limit=4)) == 4
        assert len(await bench.claims(queues=("a", "b", "c", "a"), limit=4)) == 2

    async def test_the_longest_waiting_comes_first(self, bench: Bench) -> None:
        expected = []
        for queue in ("b", "a", "b", "a"):
            expected.append(await bench.start(task_queue=queue))
            bench.clock.advance(1)

        assert await bench.claimed_ids(queues=("a", "b")) == expected

    async def test_priority_goes_ahead_but_nothing_starves(self, bench: Bench) -> None:
        old = await bench.start(priority=0)
        bench.clock.advance(2 * AGEING)
        low = await bench.start(priority=0)
        high = await bench.start(priority=3)
        middle = await bench.start(priority=1)

        # Two levels are worth as much as the time the old run has waited; three are worth more, one is worth
        # less.
        assert await bench.claimed_ids() == [high, old, middle, low]

    async def test_a_run_of_negative_priority_is_claimed_too(self, bench: Bench) -> None:
        run_id = await bench.start(priority=-5)

        assert await bench.claimed_ids() == [run_id]

    async def test_future_runs_are_not_claimed(self, bench: Bench) -> None:
        later = await bench.start(delay=5 * SECOND, priority=1000)
        now = await bench.start()

        assert await bench.claimed_ids() == [now]
        bench.clock.advance(5 * SECOND - 1)
        assert await bench.claimed_ids() == []
        bench.clock.advance(1)
        assert await bench.claimed_ids() == [later]

    async def test_a_parked_run_of_high_priority_does_not_wake_early(self, bench: Bench) -> None:
        claim = await bench.started_claim(priority=1000)
        await bench.done(claim, ParkRun(available_at=bench.now() + SECOND, inbox_seq=0))

        assert await bench.claimed_ids() == []
        bench.clock.advance(SECOND)
        assert await bench.claimed_ids() == [claim.run_id]

    async def test_other_queues_are_left_alone(self, bench: Bench) -> None:
        await bench.start(task_queue="mail")

        assert await bench.claimed_ids() == []
        assert len(await bench.claims(queues=("mail", QUEUE))) == 1

    async def test_of_several_queues_the_run_that_has_waited_longest_comes_first(self, bench: Bench) -> None:
        oldest = await bench.start(task_queue="b")
        bench.clock.advance(1)
        second = await bench.start(task_queue="a")
        bench.clock.advance(1)
        third = await bench.start(task_queue="b")

        for queues in (("a", "b"), ("b", "a"), ("a", "b")):
            assert await bench.claimed_ids(queues=queues, limit=1) == [oldest]
            oldest, second = second, third

    async def test_other_namespaces_are_left_alone(self, bench: Bench) -> None:
        await bench.start(namespace="tenant")

        assert await bench.claimed_ids() == []
        assert len(await bench.claims(namespace="tenant")) == 1

    async def test_a_worker_gets_only_types_and_versions_it_has(self, bench: Bench) -> None:
        one = await bench.start(version="1")
        two = await bench.start(version="2")
        refund = await bench.start(workflow_type="refund", version="2")

        assert await bench.claimed_ids(types=()) == []
        assert await bench.claimed_ids(types=(WorkflowType("mail"),)) == []
        assert await bench.claimed_ids(types=(WorkflowType(TYPE, "3"),)) == []
        assert await bench.claimed_ids(types=(WorkflowType(TYPE, "2"),)) == [two]
        mixed = (WorkflowType(TYPE, "2"), WorkflowType("refund"), WorkflowType(TYPE, "1"))
        assert sorted(await bench.claimed_ids(types=mixed)) == [one, refund]

    async def test_runs_that_nobody_can_serve_do_not_hide_those_behind_them(self, bench: Bench) -> None:
        for _ in range(10):
            await bench.start(workflow_type="unknown")
            bench.clock.advance(1)
        run_id = await bench.start()

        assert await bench.claimed_ids(limit=1) == [run_id]

    async def test_a_run_may_have_a_lease_of_its_own_length(self, bench: Bench) -> None:
        await bench.start(lease_length=3 * SECOND)

        claim = await bench.claim()

        assert claim.lease == 3 * SECOND
        bench.clock.advance(3 * SECOND)
        assert [recovered.run_id for recovered in await bench.recover()] == [claim.run_id]

    async def test_time_zero_is_the_first_claim(self, bench: Bench) -> None:
        claim = await bench.started_claim()
        first = claim.started_at
        bench.clock.advance(SECOND)
        await bench.done(claim, HandBackRun())

        assert (await bench.claim(claim.run_id)).started_at == first

    async def test_finished_runs_are_not_claimed(self, bench: Bench) -> None:
        claim = await bench.started_claim()
        await bench.done(claim, CompleteRun(output=b"1"))
        bench.clock.advance(1000 * SECOND)

        assert await bench.claimed_ids() == []


class TestPolls:
    async def test_a_repeated_poll_returns_the_same_claims(self, bench: Bench) -> None:
        for _ in range(3):
            await bench.start()
            bench.clock.advance(1)
        poll = bench.poll(limit=2)
        first = await bench.polled(poll)
        assert len(first.claims) == 2

        second = await bench.polled(poll)

        assert sorted(second.claims, key=lambda claim: claim.run_id) == list(first.claims)
        run = await bench.run(first.claims[0].run_id)
        assert run.executions == 1

    async def test_a_repeat_brings_the_history_recorded_meanwhile(self, bench: Bench) -> None:
        await bench.start()
        poll = bench.poll()
        (claim,) = (await bench.polled(poll)).claims
        await bench.done(claim, bench.completed("a", 1))

        (again,) = (await bench.polled(poll)).claims

        assert [step.step_id for step in again.history] == ["a"]

    async def test_for_a_repeat_the_lease_begins_anew(self, bench: Bench) -> None:
        await bench.start()
        poll = bench.poll()
        await bench.polled(poll)
        bench.clock.advance(LEASE - SECOND)
        await bench.polled(poll)

        bench.clock.advance(LEASE - 1)
        assert await bench.recover() == []
        bench.clock.advance(1)
        assert len(await bench.recover()) == 1

    async def test_a_poll_that_comes_late_does_not_revive_an_old_lease(self, bench: Bench) -> None:
        await bench.start()
        poll = bench.poll()
        (old,) = (await bench.polled(poll)).claims
        bench.clock.advance(LEASE)
        await bench.recover()

        (new,) = (await bench.polled(poll)).claims

        assert new.token != old.token
        assert await bench.send(old, CompleteRun(output=b"1")) is ChunkAnswer.LEASE_LOST
        assert await bench.send(new, CompleteRun(output=b"2")) is ChunkAnswer.DONE

    async def test_a_repeat_does_not_return_what_was_taken_away(self, bench: Bench) -> None:
        await bench.start()
        poll = bench.poll()
        (claim,) = (await bench.polled(poll)).claims
        await bench.crash(claim)
        other = await bench.claim(claim.run_id, worker_id=bench.new_id())

        assert (await bench.polled(poll)).claims == ()
        await bench.done(other, CompleteRun(output=b"1"))

    async def test_a_token_never_claims_a_run_twice(self, bench: Bench) -> None:
        """A poll that arrives again late must not revive a lease: its old writes would pass for new ones."""
        await bench.start()
        poll = bench.poll()
        (claim,) = (await bench.polled(poll)).claims
        await bench.done(claim, ParkRun(available_at=bench.now(), inbox_seq=0))

        assert (await bench.polled(poll)).claims == ()
        assert (await bench.run(claim.run_id)).status is RunStatus.SLEEPING
        assert (await bench.claim(claim.run_id)).executions == 2

    async def test_another_worker_with_the_same_number_gets_its_own(self, bench: Bench) -> None:
        first = await bench.start()
        claimed = await bench.claimed_ids(number=1)
        bench.clock.advance(1)
        second = await bench.start()

        assert claimed == [first]
        assert await bench.claimed_ids(number=1, worker_id=bench.new_id()) == [second]
