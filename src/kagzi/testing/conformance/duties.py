"""Background duties: recovery, timeouts, deadlines, retention, and when the next is due."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kagzi.api.operations import BirthLease, ChunkAnswer, CompleteRun, FailRun, HandBackRun, ParkRun, RetryRun
from kagzi.core.failure import Failure
from kagzi.core.instant import SECOND, Span
from kagzi.core.page import Cursor
from kagzi.core.run import RunStatus
from kagzi.errors import StepTimeout, WorkflowTimedOut
from kagzi.testing.conformance.bench import LEASE, MAX_CRASHES, NAMESPACE, QUEUE, Bench

DAY: Span = 86_400 * SECOND


class TestRecovery:
    async def test_a_dead_lease_goes_back(self, bench: Bench) -> None:
        claim = await bench.started_claim()
        bench.clock.advance(LEASE - 1)
        assert await bench.recover() == []
        bench.clock.advance(1)

        (recovered,) = await bench.recover()

        assert (recovered.namespace, recovered.run_id, recovered.task_queue) == (
            NAMESPACE,
            claim.run_id,
            QUEUE,
        )
        assert (recovered.status, recovered.available_at) == (RunStatus.PENDING, bench.now())
        run = await bench.run(claim.run_id)
        assert (run.status, run.attempts, run.executions, run.crashes) == (RunStatus.PENDING, 0, 1, 1)
        assert await bench.recover() == []

    async def test_history_survives_the_crash(self, bench: Bench) -> None:
        claim = await bench.started_claim()
        await bench.done(claim, bench.completed("a", 1), bench.begun("b"))
        await bench.crash(claim)

        again = await bench.claim(claim.run_id)

        assert [(step.step_id, step.status) for step in again.history] == [
            ("a", "COMPLETED"),
            ("b", "RUNNING"),
        ]
        assert (again.attempts, again.executions, again.crashes) == (0, 2, 1)

    async def test_the_pause_grows_with_the_crashes(self, bench: Bench) -> None:
        await bench.start()
        backoff: Callable[[int], Span] = lambda crashes: (crashes - 1) * 10 * SECOND  # noqa: E731
        for crashes in (1, 2, 3):
            claim = await bench.claim()
            bench.clock.advance(LEASE)
            (recovered,) = await bench.recover(max_crashes=10, backoff=backoff)
            assert recovered.available_at == bench.now() + backoff(crashes)
            assert (await bench.run(claim.run_id)).available_at == recovered.available_at
            if crashes > 1:
                assert await bench.claims() == ()
            bench.clock.set(recovered.available_at)

    async def test_a_run_that_only_crashes_is_given_up(self, bench: Bench) -> None:
        await bench.start()
        for crashes in range(1, MAX_CRASHES):
            claim = await bench.claim()
            assert (await bench.crash(claim)).status is RunStatus.PENDING
            assert (await bench.run(claim.run_id)).crashes == crashes
        claim = await bench.claim()

        recovered = await bench.crash(claim)

        assert recovered.status is RunStatus.FAILED
        run = await bench.run(claim.run_id)
        assert (run.status, run.crashes, run.attempts) == (RunStatus.FAILED, MAX_CRASHES, 0)
        assert run.finished_at == bench.now()
        assert run.error is not None
        assert str(MAX_CRASHES) in Failure.decode(run.error).message
        assert await bench.claims() == ()
        assert await bench.send(claim, CompleteRun(output=b"1")) is ChunkAnswer.LEASE_LOST

    async def test_a_new_event_makes_the_count_start_over(self, bench: Bench) -> None:
        await bench.start()
        for seq in range(1, 3 * MAX_CRASHES):
            claim = await bench.claim()
            await bench.done(claim, bench.completed(f"s{seq}", seq))
            assert (await bench.crash(claim)).status is RunStatus.PENDING
            assert (await bench.run(claim.run_id)).crashes == 1

    async def test_repeating_old_events_is_no_progress(self, bench: Bench) -> None:
        await bench.start()
        statuses = []
        for _ in range(MAX_CRASHES):
            claim = await bench.claim()
            await bench.done(claim, bench.completed("s", 1), bench.begun("t"))
            statuses.append((await bench.crash(claim)).status)
        # The first crash came with progress and counts as one; the others had none.
        assert statuses == [RunStatus.PENDING] * (MAX_CRASHES - 1) + [RunStatus.FAILED]

    async def test_sleeping_and_handing_back_do_not_interrupt_a_row_of_crashes(self, bench: Bench) -> None:
        await bench.start()
        for _ in range(MAX_CRASHES - 1):
            await bench.crash(await bench.claim())
        await bench.done(await bench.claim(), ParkRun(available_at=bench.now(), inbox_seq=0))
        await bench.done(await bench.claim(), HandBackRun())

        assert (await bench.crash(await bench.claim())).status is RunStatus.FAILED

    async def test_events_after_a_retry_of_the_run_are_progress(self, bench: Bench) -> None:
        claim = await bench.started_claim()
        await bench.done(claim, *[bench.completed(f"s{seq}", seq) for seq in range(1, 6)])
        await bench.crash(claim)
        claim = await bench.claim()
        await bench.done(claim, RetryRun(available_at=bench.now(), keep_seq=1, error=b"no"))
        claim = await bench.claim()
        await bench.done(claim, bench.completed("s2", 2))

        await bench.crash(claim)

        assert (await bench.run(claim.run_id)).crashes == 1

    async def test_no_more_than_the_limit(self, bench: Bench) -> None:
        await bench.apply([bench.start_run() for _ in range(5)])
        assert len(await bench.claims()) == 5
        bench.clock.advance(LEASE)

        assert [len(await bench.recover(limit=2)) for _ in range(4)] == [2, 2, 1, 0]

    async def test_every_namespace_is_looked_after(self, bench: Bench) -> None:
        await bench.start(namespace="tenant")
        claim = await bench.claim(namespace="tenant")

        assert (await bench.crash(claim)).namespace == "tenant"

    async def test_a_recovered_run_keeps_its_priority(self, bench: Bench) -> None:
        low = await bench.started_claim(priority=0)
        high = await bench.started_claim(priority=5)
        bench.clock.advance(LEASE)
        await bench.recover()

        assert await bench.claimed_ids() == [high.run_id, low.run_id]


class TestStepTimeouts:
    async def test_a_step_that_takes_too_long_fails_and_its_lease_is_revoked(self, bench: Bench) -> None:
        claim = await bench.started_claim()
        await bench.done(claim, bench.completed("quick", 1), bench.begun("slow", timeout=5 * SECOND))
        bench.clock.advance(7 * SECOND - 1)
        assert (await bench.store.duties.time_out_steps(100, 2 * SECOND)).runs == []
        bench.clock.advance(1)

        (recovered,) = (await bench.store.duties.time_out_steps(100, 2 * SECOND)).runs

        assert (recovered.run_id, recovered.status) == (claim.run_id, RunStatus.PENDING)
        assert recovered.available_at == bench.now()
        run = await bench.run(claim.run_id)
        assert (run.status, run.attempts, run.crashes) == (RunStatus.PENDING, 0, 0)
        assert await bench.send(claim, bench.completed("slow", 2)) is ChunkAnswer.LEASE_LOST
        again = await bench.claim(claim.run_id)
        quick, slow = again.history
        assert quick.status == "COMPLETED"
        assert (slow.status, slow.finished_at, slow.completed_seq) == ("FAILED", bench.now(), None)
        assert slow.error is not None
        assert Failure.decode(slow.error).is_a(StepTimeout)
        assert (await bench.store.duties.time_out_steps(100, 2 * SECOND)).runs == []

    async def test_all_overdue_steps_of_a_run_fail_and_the_others_do_not(self, bench: Bench) -> None:
        claim = await bench.started_claim()
        await bench.done(
            claim,
            bench.begun("a", timeout=SECOND),
            bench.begun("b", timeout=2 * SECOND),
            bench.begun("c", timeout=60 * SECOND),
            bench.begun("d"),
        )
        bench.clock.advance(2 * SECOND)

        assert len((await bench.store.duties.time_out_steps(100, 0)).runs) == 1

        statuses = {step.step_id: step.status for step in await bench.steps(claim.run_id)}
        assert statuses == {"a": "FAILED", "b": "FAILED", "c": "RUNNING", "d": "RUNNING"}

    async def test_a_step_that_ended_in_time_is_left_alone(self, bench: Bench) -> None:
        claim = await bench.started_claim()
        await bench.done(claim, bench.begun("a", timeout=SECOND))
        await bench.done(claim, bench.completed("a", 1))
        bench.clock.advance(10 * SECOND)

        assert (await bench.store.duties.time_out_steps(100, 0)).runs == []
        await bench.done(claim, CompleteRun(output=b"1"))

    @pytest.mark.parametrize("end", ["crash", "hand back", "deregister", "lost claim"])
    async def test_the_timeout_of_an_old_lease_does_not_reach_the_new_one(self, bench: Bench, end: str) -> None:
        await bench.store.workers.register(bench.registration())
        claim = await bench.started_claim()
        await bench.done(claim, bench.begun("a", timeout=LEASE + SECOND))
        match end:
            case "crash":
                await bench.crash(claim)
            case "hand back":
                await bench.done(claim, HandBackRun())
            case "deregister":
                await bench.store.workers.deregister(bench.worker_id)
            case _:
                await bench.beat(heard=1)
        again = await bench.claim(claim.run_id)
        bench.clock.advance(2 * LEASE)

        assert (await bench.store.duties.time_out_steps(100, 0)).runs == []
        await bench.done(again, bench.begun("a", timeout=SECOND))
        bench.clock.advance(SECOND)
        assert len((await bench.store.duties.time_out_steps(100, 0)).runs) == 1

    @pytest.mark.parametrize("end", ["complete", "fail", "deadline"])
    async def test_steps_left_running_by_a_finished_run_are_forgotten(self, bench: Bench, end: str) -> None:
        claim = await bench.started_claim(timeout=SECOND)
        await bench.done(claim, bench.begun("a", timeout=2 * SECOND))
        bench.clock.advance(SECOND)
        match end:
            case "complete":
                await bench.done(claim, CompleteRun(output=b"1"))
            case "fail":
                await bench.done(claim, FailRun(error=b"no"))
            case _:
                await bench.store.duties.time_out_runs(100)
        before = await bench.run(claim.run_id)
        bench.clock.advance(10 * SECOND)

        assert (await bench.store.duties.time_out_steps(100, 0)).runs == []
        # They must not make the duty look again and again either.
        assert (await bench.store.overview.horizon([])).step_timeout is None
        assert await bench.run(claim.run_id) == before


class TestDeadlines:
    @pytest.mark.parametrize("state", ["pending", "future", "running", "sleeping", "expired lease"])
    async def test_a_deadline_ends_a_run_in_any_live_state(self, bench: Bench, state: str) -> None:
        delay = 1000 * SECOND if state == "future" else 0
        run_id = await bench.start(timeout=60 * SECOND, delay=delay)
        claim = None
        if state not in ("pending", "future"):
            claim = await bench.claim()
            if state == "sleeping":
                await bench.done(claim, ParkRun(available_at=bench.now() + 1000 * SECOND, inbox_seq=0))
        bench.clock.advance(60 * SECOND - 1)
        if claim is not None and state == "running":
            await bench.store.workers.register(bench.registration())
            await bench.beat(claim, heard=1)
        assert (await bench.store.duties.time_out_runs(100)).runs == []
        bench.clock.advance(1)

        (timed_out,) = (await bench.store.duties.time_out_runs(100)).runs

        assert (timed_out.run_id, timed_out.status) == (run_id, RunStatus.TIMED_OUT)
        run = await bench.run(run_id)
        assert (run.status, run.finished_at, run.output) == (RunStatus.TIMED_OUT, bench.now(), None)
        assert run.error is not None
        assert Failure.decode(run.error).is_a(WorkflowTimedOut)
        assert (await bench.store.duties.time_out_runs(100)).runs == []
        bench.clock.advance(1000 * SECOND)
        assert await bench.claims() == ()
        assert await bench.recover() == []
        if claim is not None:
            assert await bench.send(claim, CompleteRun(output=b"1")) is ChunkAnswer.LEASE_LOST
            assert (await bench.run(run_id)) == run

    async def test_a_run_that_finished_in_time_is_left_alone(self, bench: Bench) -> None:
        claim = await bench.started_claim(timeout=60 * SECOND)
        await bench.done(claim, CompleteRun(output=b"1"))
        bench.clock.advance(60 * SECOND)

        assert (await bench.store.duties.time_out_runs(100)).runs == []
        assert (await bench.run(claim.run_id)).status is RunStatus.COMPLETED

    async def test_no_more_than_the_limit(self, bench: Bench) -> None:
        await bench.apply([bench.start_run(timeout=SECOND) for _ in range(5)])
        bench.clock.advance(SECOND)

        assert [len((await bench.store.duties.time_out_runs(2)).runs) for _ in range(4)] == [2, 2, 1, 0]


class TestRetention:
    async def prune(self, bench: Bench, limit: int = 100) -> int:
        """A whole walk."""
        deleted, cursor = await bench.store.duties.prune_runs(limit, None)
        walks = 1
        while cursor is not None:
            more, cursor = await bench.store.duties.prune_runs(limit, cursor)
            deleted += more
            walks += 1
            assert walks < 100
        return deleted

    async def test_finished_runs_go_after_thirty_days(self, bench: Bench) -> None:
        claim = await bench.started_claim(external_id="order-1", input=b"x" * 5000)
        await bench.done(claim, bench.completed("a", 1), CompleteRun(output=b"y" * 5000))
        bench.clock.advance(30 * DAY - 1)
        assert await self.prune(bench) == 0
        bench.clock.advance(1)

        assert await self.prune(bench) == 1

        assert await bench.store.runs.get(NAMESPACE, claim.run_id) is None
        assert await bench.steps(claim.run_id) == []
        # The id is free again, and nothing is left of the old run's payloads.
        await bench.start(run_id=claim.run_id, external_id="order-1", input=b"z" * 5000)
        assert (await bench.run(claim.run_id)).input == b"z" * 5000

    async def test_age_counts_from_the_end(self, bench: Bench) -> None:
        claim = await bench.started_claim()
        bench.clock.advance(100 * DAY)
        await bench.done(claim, CompleteRun(output=b"1"))

        assert await self.prune(bench) == 0

    async def test_live_runs_stay(self, bench: Bench) -> None:
        await bench.start(task_queue="pending")
        await bench.started_claim()
        sleeping = await bench.started_claim()
        await bench.done(sleeping, ParkRun(available_at=bench.now() + 1000 * DAY, inbox_seq=0))
        bench.clock.advance(400 * DAY)

        assert await self.prune(bench) == 0

    async def test_a_walk_is_bounded_and_meets_every_run(self, bench: Bench) -> None:
        for number in range(25):
            await bench.store.namespaces.ensure(f"tenant-{number % 3}")
            await bench.start(namespace=f"tenant-{number % 3}")
        for number in range(3):
            for claim in (await bench.claims(namespace=f"tenant-{number}", limit=100))[::2]:
                await bench.done(claim, CompleteRun(output=b"1"))
        bench.clock.advance(30 * DAY)

        deleted, cursor = await bench.store.duties.prune_runs(4, None)
        assert deleted <= 4
        assert cursor is not None
        rest = 0
        walks = 0
        while cursor is not None:
            more, cursor = await bench.store.duties.prune_runs(4, cursor)
            assert more <= 4
            rest += more
            walks += 1
        assert deleted + rest == 13
        assert walks >= 5
        assert await self.prune(bench) == 0

    async def test_an_empty_store_ends_the_walk(self, bench: Bench) -> None:
        assert await bench.store.duties.prune_runs(100, None) == (0, None)

    async def test_a_cursor_behind_the_last_run_ends_the_walk(self, bench: Bench) -> None:
        await bench.start()
        deleted, cursor = await bench.store.duties.prune_runs(1, None)
        assert (deleted, cursor is not None) == (0, True)
        assert isinstance(cursor, Cursor)

        assert await bench.store.duties.prune_runs(1, cursor) == (0, None)

    async def test_workers_go_when_they_have_been_gone_for_thirty_days(self, bench: Bench) -> None:
        stopped, lost, alive = bench.new_id(), bench.new_id(), bench.new_id()
        for worker_id in (stopped, lost, alive):
            await bench.store.workers.register(bench.registration(worker_id=worker_id))
        bench.clock.advance(60 * SECOND)
        await bench.beat(worker_id=alive)
        await bench.store.workers.deregister(stopped)
        assert await bench.store.workers.expire(100, 30 * SECOND) == [lost]
        bench.clock.advance(30 * DAY - 1)
        # Only the three events of the registrations are old enough.
        assert await bench.store.workers.prune(100) == 3
        assert len(await bench.store.workers.rows(NAMESPACE)) == 3
        bench.clock.advance(1)

        assert await bench.store.workers.prune(100) == 4

        assert [worker.worker_id for worker in await bench.store.workers.rows(NAMESPACE)] == [alive]
        assert await bench.store.workers.prune(100) == 0

    async def test_no_more_workers_and_events_go_than_the_limit(self, bench: Bench) -> None:
        for _ in range(3):
            worker_id = bench.new_id()
            await bench.store.workers.register(bench.registration(worker_id=worker_id))
            await bench.store.workers.deregister(worker_id)
        bench.clock.advance(30 * DAY)

        # Three workers with two events each, and the type that they have offered.
        assert [await bench.store.workers.prune(4) for _ in range(4)] == [4, 4, 2, 0]
        assert await bench.store.workers.rows(NAMESPACE) == []


class TestHorizon:
    async def test_nothing_in_sight(self, bench: Bench) -> None:
        horizon = await bench.store.overview.horizon([(NAMESPACE, QUEUE)])

        assert (horizon.now, horizon.due) == (bench.now(), {})
        assert (horizon.lease, horizon.step_timeout, horizon.deadline, horizon.heartbeat) == (
            None,
            None,
            None,
            None,
        )

    async def test_the_earliest_claim_of_each_queue(self, bench: Bench) -> None:
        now = bench.now()
        await bench.start(task_queue="a", delay=9 * SECOND)
        await bench.start(task_queue="a", delay=5 * SECOND)
        await bench.start(task_queue="b", priority=3)
        await bench.start(task_queue="c")
        await bench.start(namespace="tenant", task_queue="a", delay=2 * SECOND)
        asked = [(NAMESPACE, "a"), (NAMESPACE, "b"), ("tenant", "a"), (NAMESPACE, "d")]

        due = (await bench.store.overview.horizon(asked)).due

        assert due.keys() == {(NAMESPACE, "a"), (NAMESPACE, "b"), ("tenant", "a")}
        assert due[NAMESPACE, "a"] == now + 5 * SECOND
        assert due[NAMESPACE, "b"] <= now
        assert due["tenant", "a"] == now + 2 * SECOND

    async def test_the_earliest_lease_timeout_deadline_and_heartbeat(self, bench: Bench) -> None:
        now = bench.now()
        await bench.store.workers.register(bench.registration(worker_id=bench.new_id()))
        bench.clock.advance(SECOND)
        await bench.store.workers.register(bench.registration())
        claim = await bench.started_claim(deadline_at=now + 50 * SECOND)
        lease = BirthLease(worker_id=bench.worker_id, token=bench.new_id(), length=7 * SECOND)
        await bench.answer(bench.start_run(lease=lease, deadline_at=now + 60 * SECOND))
        await bench.done(claim, bench.begun("a", timeout=3 * SECOND), bench.begun("b", timeout=2 * SECOND))

        horizon = await bench.store.overview.horizon([])

        assert horizon.lease == now + 8 * SECOND
        assert horizon.step_timeout == now + 3 * SECOND
        assert horizon.deadline == now + 50 * SECOND
        assert horizon.heartbeat == now

    async def test_what_is_over_is_out_of_sight(self, bench: Bench) -> None:
        await bench.store.workers.register(bench.registration())
        claim = await bench.started_claim(timeout=60 * SECOND)
        await bench.done(claim, bench.begun("a", timeout=SECOND))
        await bench.done(claim, bench.completed("a", 1), CompleteRun(output=b"1"))
        await bench.store.workers.deregister(bench.worker_id)

        horizon = await bench.store.overview.horizon([(NAMESPACE, QUEUE)])

        assert horizon.due == {}
        assert (horizon.lease, horizon.step_timeout, horizon.deadline, horizon.heartbeat) == (
            None,
            None,
            None,
            None,
        )
