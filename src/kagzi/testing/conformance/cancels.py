"""Cancelling and terminating runs: what is asked for outside of a lease."""

from __future__ import annotations

import pytest

from kagzi.api.operations import (
    CancelAnswer,
    CancelRun,
    ChunkAnswer,
    CompleteRun,
    EndCancelledRun,
    FailRun,
    HandBackRun,
    ParkRun,
    RetryRun,
    Started,
    TerminateRun,
    WakeAnswer,
)
from kagzi.core.failure import Failure
from kagzi.core.instant import SECOND
from kagzi.core.run import CANCEL_GRACE, RunStatus
from kagzi.core.step import CANCEL, LATE, StepKind
from kagzi.core.wake import Woken, read_woken
from kagzi.errors import NotFound
from kagzi.testing.conformance.bench import NAMESPACE, QUEUE, Bench

GRACE = 10 * SECOND
FAR = 1000 * SECOND


def cancel(run_id: str, namespace: str = NAMESPACE) -> CancelRun:
    return CancelRun(namespace=namespace, run_id=run_id, grace=GRACE)


def terminate(run_id: str, reason: str = "enough", namespace: str = NAMESPACE) -> TerminateRun:
    return TerminateRun(namespace=namespace, run_id=run_id, reason=reason)


async def asked(bench: Bench, request: CancelRun | TerminateRun) -> tuple[bool, RunStatus]:
    answer = await bench.answer(request)
    assert isinstance(answer, CancelAnswer), answer
    assert (answer.run_id, answer.task_queue) == (request.run_id, QUEUE)
    return answer.effective, answer.status


class TestCancels:
    async def test_a_run_that_nobody_has_begun_ends_at_once(self, bench: Bench) -> None:
        run_id = await bench.start(delay=5 * SECOND)

        assert await asked(bench, cancel(run_id)) == (True, RunStatus.CANCELLED)

        run = await bench.run(run_id)
        assert (run.status, run.finished_at, run.executions) == (RunStatus.CANCELLED, bench.now(), 0)
        assert "before it began" in str(Failure.decode(run.error or b""))
        bench.clock.advance(FAR)
        assert await bench.claims() == ()
        assert (await bench.store.duties.end_cancelled_runs(100)).runs == []

    async def test_a_run_that_waits_for_a_moment_can_be_claimed_when_it_is_woken(self, bench: Bench) -> None:
        delayed = await bench.start(delay=FAR)
        held = await bench.started_claim()
        sleeping = await bench.started_claim()
        until = bench.now() + FAR
        await bench.done(sleeping, bench.completed("a", 7), ParkRun(available_at=until, inbox_seq=sleeping.inbox_seq))
        wake = bench.store.work.wake
        assert await wake("tenant", delayed) is None
        assert await wake(NAMESPACE, bench.new_id()) is None

        for run_id, status in ((delayed, RunStatus.PENDING), (sleeping.run_id, RunStatus.SLEEPING)):
            for woken in (True, False):  # the second time it is due already
                assert await wake(NAMESPACE, run_id) == WakeAnswer(
                    run_id=run_id, woken=woken, status=status, task_queue=QUEUE, available_at=bench.now()
                )
        answer = await wake(NAMESPACE, held.run_id)
        assert answer is not None
        assert (answer.woken, answer.status) == (False, RunStatus.RUNNING)

        claims = {claim.run_id: claim for claim in await bench.claims()}
        assert claims.keys() == {delayed, sleeping.run_id}
        assert claims[delayed].woken is None
        note = read_woken(claims[sleeping.run_id].woken, incarnation=0, attempts=0)
        assert note == Woken(0, 0, 7, until)
        await bench.done(held, CompleteRun(output=b"1"))
        answer = await wake(NAMESPACE, held.run_id)
        assert answer is not None
        assert (answer.woken, answer.status) == (False, RunStatus.COMPLETED)
        await bench.done(claims[delayed], CompleteRun(output=b"1"))
        await bench.crash(claims[sleeping.run_id])
        bench.clock.advance(FAR)  # nobody has heard of it: the next one does
        assert (await bench.claim(sleeping.run_id)).woken == claims[sleeping.run_id].woken

    async def test_a_sleeping_run_is_woken_and_told(self, bench: Bench) -> None:
        claim = await bench.started_claim()
        await bench.done(claim, ParkRun(available_at=bench.now() + FAR, inbox_seq=claim.inbox_seq))
        assert await bench.claims() == ()

        assert await asked(bench, cancel(claim.run_id)) == (True, RunStatus.SLEEPING)

        again = await bench.claim(claim.run_id)
        assert (again.cancel_requested, again.inbox_seq) == (True, claim.inbox_seq + 1)
        assert (await bench.run(claim.run_id)).available_at == bench.now()

    async def test_a_run_that_waits_to_be_tried_again_is_woken_and_told(self, bench: Bench) -> None:
        claim = await bench.started_claim()
        await bench.done(claim, RetryRun(available_at=bench.now() + FAR, keep_seq=0, error=b"no"))

        assert await asked(bench, cancel(claim.run_id)) == (True, RunStatus.PENDING)

        assert (await bench.claim(claim.run_id)).cancel_requested

    async def test_a_running_run_keeps_its_lease_and_hears_it_by_heartbeat(self, bench: Bench) -> None:
        await bench.store.workers.register(bench.registration())
        claim = await bench.started_claim()
        other = await bench.started_claim()
        assert (await bench.beat(claim, other))[0].cancelled == ()

        assert await asked(bench, cancel(claim.run_id)) == (True, RunStatus.RUNNING)

        answer, _ = await bench.beat(claim, other)
        assert (answer.cancelled, answer.news, answer.lost) == ((claim.run_id,), ((claim.run_id, 1),), ())
        await bench.done(claim, bench.completed("step", 1))

    async def test_a_cancelled_run_is_not_parked_by_who_has_not_heard_of_it(self, bench: Bench) -> None:
        claim = await bench.started_claim()
        await bench.answer(cancel(claim.run_id))
        step = bench.completed("step", 1)

        park = ParkRun(available_at=bench.now() + FAR, inbox_seq=claim.inbox_seq)
        assert await bench.send(claim, step, park) is ChunkAnswer.NEWS

        assert (await bench.run(claim.run_id)).status is RunStatus.RUNNING
        await bench.done(claim, HandBackRun())
        again = await bench.claim(claim.run_id)
        assert again.cancel_requested
        assert [step.step_id for step in again.history] == ["step"]
        # Whoever has heard of it may park: cleaning up may include a sleep.
        await bench.done(again, ParkRun(available_at=bench.now() + SECOND, inbox_seq=again.inbox_seq))
        assert await bench.claims() == ()

    @pytest.mark.parametrize("form", ["alone", "with a large output", "in a batch"])
    async def test_a_cancelled_run_is_not_completed_by_who_has_not_heard_of_it(self, bench: Bench, form: str) -> None:
        claim, other = await bench.started_claim(), await bench.started_claim()
        await bench.answer(cancel(claim.run_id))
        complete = CompleteRun(output=b"1" * (5000 if form == "with a large output" else 1), unless_cancelled=True)
        beside = [bench.chunk(other, bench.completed("step", 1))] if form == "in a batch" else []
        chunks = [bench.chunk(claim, bench.completed("step", 1), complete), *beside]

        for _ in range(2):  # repeated, too
            answers = await bench.apply(chunks)
            assert answers == [ChunkAnswer.NEWS, *([ChunkAnswer.DONE] * len(beside))]

        run, steps = await bench.state(claim.run_id)
        assert (run.status, run.output) == (RunStatus.RUNNING, None)
        assert [step.step_id for step in steps] == ["step"]
        told = bench.completed(CANCEL, 2, kind=StepKind.CANCEL, output=LATE)
        await bench.done(claim, told, HandBackRun())
        again = await bench.claim(claim.run_id)
        assert [step.step_id for step in again.history] == ["step", CANCEL]
        assert again.history[-1].output == LATE
        # Whoever has heard of it may complete it: what it makes of that is its own business.
        await bench.done(again, CompleteRun(output=b"2"))
        assert (await bench.run(claim.run_id)).output == b"2"

    async def test_steps_of_a_cancelled_run_are_stored_beside_ends_of_others(self, bench: Bench) -> None:
        claim, other = await bench.started_claim(), await bench.started_claim()
        await bench.answer(cancel(claim.run_id))
        chunks = [
            bench.chunk(claim, bench.completed("step", 1)),
            bench.chunk(other, CompleteRun(output=b"1", unless_cancelled=True)),
        ]

        assert await bench.apply(chunks) == [ChunkAnswer.DONE, ChunkAnswer.DONE]

    async def test_who_cannot_tell_a_run_that_it_is_cancelled_completes_it(self, bench: Bench) -> None:
        claim = await bench.started_claim()
        await bench.answer(cancel(claim.run_id))

        await bench.done(claim, CompleteRun(output=b"1"))

        assert (await bench.run(claim.run_id)).status is RunStatus.COMPLETED

    @pytest.mark.parametrize("alone", [True, False])
    async def test_a_cancelled_run_does_not_wait_for_its_next_try(self, bench: Bench, alone: bool) -> None:
        claim, other = await bench.started_claim(), await bench.started_claim()
        await bench.answer(cancel(claim.run_id))
        retry = RetryRun(available_at=bench.now() + FAR, keep_seq=0, error=b"no")

        chunks = [bench.chunk(claim, retry)] + ([] if alone else [bench.chunk(other, retry)])
        answers = await bench.apply(chunks)

        assert set(answers) == {ChunkAnswer.DONE}
        again = await bench.claim(claim.run_id)
        assert (again.cancel_requested, again.attempts) == (True, 1)

    async def test_handing_back_a_cancelled_run_does_not_put_it_off(self, bench: Bench) -> None:
        claim = await bench.started_claim()
        await bench.answer(cancel(claim.run_id))

        await bench.done(claim, HandBackRun(available_at=bench.now() + FAR))

        assert (await bench.claim(claim.run_id)).cancel_requested

    async def test_a_run_ends_cancelled_under_its_lease(self, bench: Bench) -> None:
        claims = [await bench.started_claim() for _ in range(3)]
        for claim in claims:
            await bench.answer(cancel(claim.run_id))
        told = bench.completed(CANCEL, 1, kind=StepKind.CANCEL, output=None)

        # Alone with a step, alone with several, and in a batch.
        await bench.done(claims[0], told, EndCancelledRun(error=b"over"))
        chunks = [
            bench.chunk(claims[1], told, bench.completed("undo", 2), EndCancelledRun(error=b"over")),
            bench.chunk(claims[2], EndCancelledRun(error=b"over")),
        ]
        assert await bench.apply(chunks) == [ChunkAnswer.DONE, ChunkAnswer.DONE]

        for claim in claims:
            run = await bench.run(claim.run_id)
            assert (run.status, run.error, run.finished_at) == (RunStatus.CANCELLED, b"over", bench.now())
        assert [(step.step_id, step.kind) for step in await bench.steps(claims[1].run_id)] == [
            (CANCEL, StepKind.CANCEL),
            ("undo", StepKind.FUNCTION),
        ]
        # Repeats are recognised by their token.
        assert await bench.apply(chunks) == [ChunkAnswer.DONE, ChunkAnswer.DONE]

    async def test_cancelling_twice_is_cancelling_once(self, bench: Bench) -> None:
        claim = await bench.started_claim()
        first = await bench.answer(cancel(claim.run_id))
        bench.clock.advance(SECOND)
        before = await bench.state(claim.run_id)

        assert await bench.answer(cancel(claim.run_id)) == first

        assert await bench.state(claim.run_id) == before
        assert (await bench.store.overview.horizon([])).cancel == bench.now() - SECOND + GRACE
        await bench.done(claim, HandBackRun())
        assert (await bench.claim()).inbox_seq == claim.inbox_seq + 1

    @pytest.mark.parametrize("request_", [cancel, terminate])
    async def test_ending_what_has_ended_cancelled_is_a_repeat(self, bench: Bench, request_: object) -> None:
        run_id = await bench.start()
        make = cancel if request_ is cancel else terminate
        assert await asked(bench, make(run_id)) == (True, RunStatus.CANCELLED)
        before = await bench.state(run_id)
        bench.clock.advance(SECOND)

        assert await asked(bench, make(run_id)) == (True, RunStatus.CANCELLED)
        assert await asked(bench, terminate(run_id, "another reason")) == (True, RunStatus.CANCELLED)

        assert await bench.state(run_id) == before

    @pytest.mark.parametrize(
        ("end", "status"),
        [(CompleteRun(output=b"1"), RunStatus.COMPLETED), (FailRun(error=b"no"), RunStatus.FAILED)],
    )
    async def test_nothing_undoes_an_end(self, bench: Bench, end: CompleteRun | FailRun, status: RunStatus) -> None:
        claim = await bench.started_claim()
        await bench.done(claim, end)
        before = await bench.state(claim.run_id)

        assert await asked(bench, cancel(claim.run_id)) == (False, status)
        assert await asked(bench, terminate(claim.run_id)) == (False, status)

        assert await bench.state(claim.run_id) == before

    async def test_a_cancelled_run_may_still_complete(self, bench: Bench) -> None:
        claim = await bench.started_claim()
        await bench.answer(cancel(claim.run_id))

        await bench.done(claim, CompleteRun(output=b"1"))

        assert (await bench.run(claim.run_id)).status is RunStatus.COMPLETED
        assert await asked(bench, cancel(claim.run_id)) == (False, RunStatus.COMPLETED)
        bench.clock.advance(FAR)
        assert (await bench.store.duties.end_cancelled_runs(100)).runs == []

    @pytest.mark.parametrize("make", [cancel, terminate])
    async def test_an_unknown_or_foreign_run_is_not_found(self, bench: Bench, make: object) -> None:
        request = cancel if make is cancel else terminate
        run_id = await bench.start()

        assert isinstance(await bench.answer(request(bench.new_id())), NotFound)
        assert isinstance(await bench.answer(request(run_id, namespace="another")), NotFound)

        assert (await bench.run(run_id)).status is RunStatus.PENDING

    async def test_requests_share_a_batch_with_everything_else(self, bench: Bench) -> None:
        claim, pending = await bench.started_claim(), await bench.start()
        start = bench.start_run()
        unknown = bench.new_id()

        answers = await bench.apply(
            [
                cancel(pending),
                bench.chunk(claim, bench.completed("step", 1)),
                cancel(unknown),
                start,
                terminate(claim.run_id),
            ],
        )

        assert [type(answer) for answer in answers] == [CancelAnswer, ChunkAnswer, NotFound, Started, CancelAnswer]
        assert answers[1] is ChunkAnswer.DONE
        assert [step.step_id for step in await bench.steps(claim.run_id)] == ["step"]
        assert await bench.claimed_ids() == [start.run_id]


class TestTermination:
    @pytest.mark.parametrize("state", ["pending", "running", "sleeping", "told"])
    async def test_it_ends_a_run_whatever_it_is_doing(self, bench: Bench, state: str) -> None:
        run_id = await bench.start()
        claim = None if state == "pending" else await bench.claim(run_id)
        if claim is not None and state == "sleeping":
            await bench.done(claim, ParkRun(available_at=bench.now() + FAR, inbox_seq=0))
        if state == "told":
            await bench.answer(cancel(run_id))

        assert await asked(bench, terminate(run_id, "order 7 was a test")) == (True, RunStatus.CANCELLED)

        run = await bench.run(run_id)
        assert (run.status, run.finished_at) == (RunStatus.CANCELLED, bench.now())
        assert "terminated: order 7 was a test" in str(Failure.decode(run.error or b""))
        bench.clock.advance(FAR)
        assert await bench.claims() == ()
        assert await bench.recover() == []
        if claim is not None:
            before = await bench.state(run_id)
            assert await bench.send(claim, CompleteRun(output=b"1")) is ChunkAnswer.LEASE_LOST
            assert (await bench.beat(claim))[0].lost == (run_id,)
            assert await bench.state(run_id) == before


class TestCancelGrace:
    @pytest.mark.parametrize("state", ["running", "sleeping", "pending", "dead"])
    async def test_a_run_that_does_not_end_in_time_is_ended(self, bench: Bench, state: str) -> None:
        claim = await bench.started_claim()
        await bench.answer(cancel(claim.run_id))
        at = bench.now()
        if state == "sleeping":
            await bench.done(claim, HandBackRun())
            claim = await bench.claim()
            await bench.done(claim, ParkRun(available_at=bench.now() + FAR, inbox_seq=claim.inbox_seq))
        elif state == "pending":
            await bench.done(claim, HandBackRun())
        elif state == "dead":
            bench.clock.advance(GRACE // 2)
        horizon = await bench.store.overview.horizon([])
        assert horizon.cancel == at + GRACE
        bench.clock.advance(at + GRACE - bench.now() - 1)
        assert (await bench.store.duties.end_cancelled_runs(100)).runs == []
        bench.clock.advance(1)

        (ended,) = (await bench.store.duties.end_cancelled_runs(100)).runs

        assert (ended.run_id, ended.task_queue, ended.status) == (claim.run_id, QUEUE, RunStatus.CANCELLED)
        run = await bench.run(claim.run_id)
        assert (run.status, run.finished_at) == (RunStatus.CANCELLED, bench.now())
        assert "clean up" in str(Failure.decode(run.error or b""))
        assert await bench.send(claim, CompleteRun(output=b"1")) is ChunkAnswer.LEASE_LOST
        assert (await bench.store.duties.end_cancelled_runs(100)).runs == []
        assert (await bench.store.overview.horizon([])).cancel is None

    async def test_a_tick_ends_no_more_than_its_limit(self, bench: Bench) -> None:
        claims = [await bench.started_claim() for _ in range(5)]
        for claim in claims:
            await bench.answer(cancel(claim.run_id))
        bench.clock.advance(GRACE)

        ended = [(await bench.store.duties.end_cancelled_runs(2)).runs for _ in range(4)]

        assert [len(runs) for runs in ended] == [2, 2, 1, 0]

    async def test_the_default_is_half_a_minute(self, bench: Bench) -> None:
        claim = await bench.started_claim()
        await bench.answer(CancelRun(namespace=NAMESPACE, run_id=claim.run_id))
        assert (
            (await bench.store.overview.horizon([])).cancel == bench.now() + CANCEL_GRACE == bench.now() + 30 * SECOND
        )

    async def test_a_deadline_that_comes_first_comes_first(self, bench: Bench) -> None:
        claim = await bench.started_claim(timeout=SECOND)
        await bench.answer(cancel(claim.run_id))
        bench.clock.advance(SECOND)

        (ended,) = (await bench.store.duties.time_out_runs(100)).runs

        assert ended.status is RunStatus.TIMED_OUT
        bench.clock.advance(GRACE)
        assert (await bench.store.duties.end_cancelled_runs(100)).runs == []
