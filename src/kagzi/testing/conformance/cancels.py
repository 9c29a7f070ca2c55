"""Cancelling, terminating and repeating runs: what is asked for outside of a lease."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from kagzi.api.operations import (
    CancelAnswer,
    CancelRun,
    ChunkAnswer,
    CompleteRun,
    EndCancelledRun,
    FailRun,
    HandBackRun,
    ParkRun,
    RepeatRun,
    RetryRun,
    Started,
    TerminateRun,
    WakeAnswer,
)
from kagzi.core.failure import Failure
from kagzi.core.instant import SECOND
from kagzi.core.run import CANCEL_GRACE, RunStatus
from kagzi.core.step import CANCEL, LATE, Step, StepKind
from kagzi.core.wake import Woken, read_woken
from kagzi.errors import Conflict, NotFound
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


class TestRepeats:
    def repeat(self, bench: Bench, run_id: str, *, keep_steps: bool = True, namespace: str = NAMESPACE) -> RepeatRun:
        """Without its id, which `restarts.py` is about: so the source does not change at all."""
        return RepeatRun(
            namespace=namespace, run_id=bench.new_id(), of_run_id=run_id, keep_steps=keep_steps, keep_id=False
        )

    async def failed_run(self, bench: Bench, **fields: object) -> str:
        claim = await bench.started_claim(**fields)
        bench.clock.advance(SECOND)
        await bench.done(
            claim,
            bench.failed("charge", retry_at=bench.now()),
            bench.completed("charge", 1, attempt=2, input=b"[1]", input_hash=5),
            bench.completed("@sleep", 2, kind=StepKind.SLEEP, output=None),
            bench.failed("ship", completed_seq=3),
            bench.completed("refund", 4),
            bench.begun("report"),
            FailRun(error=b"no"),
        )
        return claim.run_id

    @pytest.mark.parametrize("size", [10, 5000])
    async def test_it_goes_on_before_the_first_final_failure(self, bench: Bench, size: int) -> None:
        source = await self.failed_run(
            bench, input=b"x" * size, priority=2, version="3", external_id="order", timeout=FAR, retry_policy=b"{}"
        )
        old = await bench.state(source)
        bench.clock.advance(SECOND)
        request = self.repeat(bench, source)

        answer = await bench.answer(request)

        assert answer == Started(run_id=request.run_id, available_at=bench.now())
        run = await bench.run(request.run_id)
        assert (run.status, run.input, run.priority, run.version) == (RunStatus.PENDING, b"x" * size, 2, "3")
        assert (run.external_id, run.created_at, run.deadline_at) == (None, bench.now(), bench.now() + FAR)
        assert (run.attempts, run.executions, run.crashes) == (0, 0, 0)
        claim = await bench.claim(request.run_id)
        kept = [step for step in old[1] if step.completed_seq in (1, 2)]
        assert len(kept) == 2
        assert list(claim.history) == _without_input(kept)
        # The workflow's clock and its chance are those of the first run.
        assert (claim.started_at, claim.origin_run_id) == (old[0].started_at, source)
        assert claim.retry_policy == b"{}"
        assert await bench.state(source) == old

    async def test_a_repeat_of_a_repeat_has_the_first_run_s_chance(self, bench: Bench) -> None:
        source = await self.failed_run(bench)
        second = self.repeat(bench, source)
        await bench.answer(second)
        claim = await bench.claim(second.run_id)
        await bench.done(claim, FailRun(error=b"no"))
        third = self.repeat(bench, second.run_id)

        await bench.answer(third)

        claim = await bench.claim(third.run_id)
        assert (claim.origin_run_id, len(claim.history)) == (source, 2)

    async def test_from_scratch_nothing_is_kept_but_the_question(self, bench: Bench) -> None:
        source = await self.failed_run(bench, input=b"y" * 3000)
        request = self.repeat(bench, source, keep_steps=False)

        await bench.answer(request)

        claim = await bench.claim(request.run_id)
        assert (claim.history, claim.started_at, claim.origin_run_id) == ((), bench.now(), None)
        assert claim.input == b"y" * 3000

    async def test_a_cancelled_run_goes_on_before_its_cancellation(self, bench: Bench) -> None:
        claim = await bench.started_claim()
        await bench.answer(cancel(claim.run_id))
        await bench.done(
            claim,
            bench.completed("charge", 1),
            bench.completed(CANCEL, 2, kind=StepKind.CANCEL, output=None),
            bench.completed("refund", 3),
            EndCancelledRun(error=b"over"),
        )
        request = self.repeat(bench, claim.run_id)

        await bench.answer(request)

        again = await bench.claim(request.run_id)
        assert [step.step_id for step in again.history] == ["charge"]
        assert not again.cancel_requested

    async def test_a_sleep_called_cancel_is_kept(self, bench: Bench) -> None:
        claim = await bench.started_claim()
        await bench.done(claim, bench.completed(CANCEL, 1, kind=StepKind.SLEEP, output=None), CompleteRun(output=b"1"))
        request = self.repeat(bench, claim.run_id)

        await bench.answer(request)

        assert [step.step_id for step in (await bench.claim(request.run_id)).history] == [CANCEL]

    async def test_cancelling_a_repeat_that_keeps_steps_lets_it_clean_up(self, bench: Bench) -> None:
        request = self.repeat(bench, await self.failed_run(bench))
        await bench.answer(request)

        assert await asked(bench, cancel(request.run_id)) == (True, RunStatus.PENDING)

        assert (await bench.claim(request.run_id)).cancel_requested

    async def test_what_a_retry_has_set_aside_stays_behind(self, bench: Bench) -> None:
        claim = await bench.started_claim()
        steps = (bench.completed("kept", 1), bench.failed("ship", completed_seq=2))
        await bench.done(claim, *steps, RetryRun(available_at=bench.now(), keep_seq=1, error=b"no"))
        claim = await bench.claim()
        await bench.done(claim, CompleteRun(output=b"1"))
        request = self.repeat(bench, claim.run_id)

        await bench.answer(request)

        assert [step.step_id for step in await bench.steps(request.run_id)] == ["kept"]

    async def test_repeating_a_repeat_request_makes_one_run(self, bench: Bench) -> None:
        request = self.repeat(bench, await self.failed_run(bench))
        first = await bench.answer(request)
        claim = await bench.claim(request.run_id)
        bench.clock.advance(SECOND)
        before = await bench.state(request.run_id)

        answer = await bench.answer(request)

        assert isinstance(first, Started)
        assert isinstance(answer, Started)
        assert (answer.run_id, answer.status) == (request.run_id, RunStatus.RUNNING)
        assert await bench.state(request.run_id) == before
        await bench.done(claim, CompleteRun(output=b"1"))

    async def test_an_id_that_another_run_has_is_a_conflict(self, bench: Bench) -> None:
        source = await self.failed_run(bench, input=b"x" * 5000)
        stranger = await self.failed_run(bench, input=b"y" * 5000)
        kept = self.repeat(bench, source)
        await bench.answer(kept)
        taken = [stranger, stranger, source, source, kept.run_id]
        before = [await bench.state(run_id) for run_id in taken]

        for run_id, keep_steps in zip(taken, (True, False, True, False, False), strict=True):
            request = replace(self.repeat(bench, source, keep_steps=keep_steps), run_id=run_id)
            answer = await bench.answer(request)

            assert isinstance(answer, Conflict)
            assert run_id in str(answer)

        assert [await bench.state(run_id) for run_id in taken] == before

    @pytest.mark.parametrize("keep_steps", [True, False])
    async def test_a_live_run_is_a_conflict(self, bench: Bench, keep_steps: bool) -> None:
        claim = await bench.started_claim()
        request = self.repeat(bench, claim.run_id, keep_steps=keep_steps)

        answer = await bench.answer(request)

        assert isinstance(answer, Conflict)
        assert "RUNNING" in str(answer)
        assert await bench.store.runs.get(NAMESPACE, request.run_id) is None

    async def test_an_unknown_or_foreign_run_is_not_found(self, bench: Bench) -> None:
        source = await self.failed_run(bench)

        assert isinstance(await bench.answer(self.repeat(bench, bench.new_id())), NotFound)
        assert isinstance(await bench.answer(self.repeat(bench, source, namespace="another")), NotFound)


def _without_input(steps: list[Step]) -> list[Step]:
    return [replace(step, input=None) for step in steps]
