"""Writing under a lease: the fence, repeats, order, and how a run ends or is let go."""

from __future__ import annotations

import pytest

from kagzi.api.operations import (
    Chunk,
    ChunkAnswer,
    CompleteRun,
    CompleteStep,
    FailRun,
    HandBackRun,
    ParkRun,
    RepeatRun,
    RetryRun,
    StartRun,
    Transition,
)
from kagzi.api.workers import Claim
from kagzi.core.instant import SECOND
from kagzi.core.run import RunStatus
from kagzi.core.step import StepKind
from kagzi.errors import InvalidRequest
from kagzi.testing.conformance.bench import LEASE, NAMESPACE, Bench

DONE, LEASE_LOST, NEWS = ChunkAnswer.DONE, ChunkAnswer.LEASE_LOST, ChunkAnswer.NEWS


def endings(bench: Bench) -> dict[str, Transition]:
    """One of each transition that a lease can end with."""
    later = bench.now() + 60 * SECOND
    return {
        "park": ParkRun(available_at=later, inbox_seq=0),
        "hand back": HandBackRun(),
        "retry": RetryRun(available_at=later, keep_seq=0, error=b"no"),
        "complete": CompleteRun(output=b"1"),
        "fail": FailRun(error=b"no"),
    }


ENDINGS = ["park", "hand back", "retry", "complete", "fail"]


def switched_on(bench: Bench, step_id: str) -> CompleteStep:
    """The row of a switch of the code: it is no event."""
    return CompleteStep(step_id=step_id, kind=StepKind.SIGNAL, started_at=bench.now(), finished_at=bench.now())


class TestChunks:
    async def test_a_switch_of_the_code_stays_on_when_its_run_is_tried_again_or_repeated(self, bench: Bench) -> None:
        claim = await bench.started_claim()
        switches = (switched_on(bench, "@@@fee"), switched_on(bench, "@@@tax#2"))
        await bench.done(claim, switches[0], bench.completed("charge", 1), switches[1], bench.completed("mail", 2))
        await bench.done(claim, RetryRun(available_at=bench.now(), keep_seq=1, error=b"no"))
        again = await bench.claim(claim.run_id)
        assert {step.step_id for step in again.history} == {"@@@fee", "charge", "@@@tax#2"}
        assert [step.completed_seq for step in again.history if step.kind is StepKind.SIGNAL] == [None, None]

        await bench.done(again, FailRun(error=b"boom"))
        request = RepeatRun(namespace=NAMESPACE, run_id=bench.new_id(), of_run_id=claim.run_id, keep_steps=True)
        await bench.answer(request)
        repeated = await bench.claim(request.run_id)
        assert {step.step_id for step in repeated.history} == {"@@@fee", "charge", "@@@tax#2"}

    async def test_a_run_completes_with_its_last_step(self, bench: Bench) -> None:
        claim = await bench.started_claim()
        bench.clock.advance(SECOND)

        await bench.done(claim, bench.completed("charge", 1), CompleteRun(output=b'"ok"'))

        run = await bench.run(claim.run_id)
        assert (run.status, run.output, run.error) == (RunStatus.COMPLETED, b'"ok"', None)
        assert run.finished_at == bench.now()
        assert (run.attempts, run.executions, run.crashes) == (0, 1, 0)
        assert [step.step_id for step in await bench.steps(claim.run_id)] == ["charge"]

    async def test_a_run_fails_with_its_error(self, bench: Bench) -> None:
        claim = await bench.started_claim()

        await bench.done(claim, FailRun(error=b"boom"))

        run = await bench.run(claim.run_id)
        assert (run.status, run.output, run.error) == (RunStatus.FAILED, None, b"boom")
        assert run.finished_at == bench.now()

    async def test_a_parked_run_sleeps_until_it_is_due(self, bench: Bench) -> None:
        claim = await bench.started_claim()
        due = bench.now() + 60 * SECOND

        await bench.done(claim, ParkRun(available_at=due, inbox_seq=0))

        run = await bench.run(claim.run_id)
        assert (run.status, run.available_at, run.finished_at) == (RunStatus.SLEEPING, due, None)
        bench.clock.set(due - 1)
        assert await bench.claims() == ()
        bench.clock.set(due)
        again = await bench.claim(claim.run_id)
        assert (again.executions, again.attempts, again.crashes) == (2, 0, 0)
        assert again.started_at == claim.started_at

    async def test_a_run_with_news_is_not_parked(self, bench: Bench) -> None:
        claim = await bench.started_claim()
        # The worker claims to have seen less than the run's inbox holds.
        park = ParkRun(available_at=bench.now() + 60 * SECOND, inbox_seq=claim.inbox_seq - 1)

        assert await bench.send(claim, bench.completed("charge", 1), park) is NEWS

        run, steps = await bench.state(claim.run_id)
        assert run.status is RunStatus.RUNNING
        assert [step.step_id for step in steps] == ["charge"]
        # A repeat hears the same, and the lease is still good.
        assert await bench.send(claim, bench.completed("charge", 1), park) is NEWS
        assert await bench.state(claim.run_id) == (run, steps)
        await bench.done(claim, CompleteRun(output=b"1"))

    async def test_handing_back_burns_nothing(self, bench: Bench) -> None:
        claim = await bench.started_claim()
        bench.clock.advance(SECOND)

        await bench.done(claim, bench.completed("charge", 1), HandBackRun())

        run = await bench.run(claim.run_id)
        assert (run.status, run.available_at) == (RunStatus.PENDING, bench.now())
        assert (run.attempts, run.crashes) == (0, 0)
        again = await bench.claim(claim.run_id)
        assert (again.attempts, again.executions, again.crashes) == (0, 2, 0)
        assert [step.step_id for step in again.history] == ["charge"]

    async def test_a_run_may_be_handed_back_for_later(self, bench: Bench) -> None:
        claim = await bench.started_claim()

        await bench.done(claim, HandBackRun(available_at=bench.now() + SECOND))

        assert await bench.claims() == ()
        bench.clock.advance(SECOND)
        await bench.claim(claim.run_id)

    async def test_a_run_survives_a_park_that_is_due_already(self, bench: Bench) -> None:
        claim = await bench.started_claim()

        await bench.done(claim, ParkRun(available_at=bench.now() - SECOND, inbox_seq=0))

        await bench.claim(claim.run_id)

    async def test_an_empty_chunk_says_whether_the_lease_holds(self, bench: Bench) -> None:
        claim = await bench.started_claim()
        before = await bench.state(claim.run_id)

        assert await bench.send(claim) is DONE
        assert await bench.send(claim, token=bench.new_id()) is LEASE_LOST
        assert await bench.state(claim.run_id) == before

    async def test_several_chunks_of_a_run_in_one_batch_apply_in_order(self, bench: Bench) -> None:
        claim = await bench.started_claim()
        chunks = [
            bench.chunk(claim, bench.begun("a", timeout=SECOND)),
            bench.chunk(claim, bench.completed("a", 1), bench.begun("b")),
            bench.chunk(claim, bench.completed("b", 2)),
            bench.chunk(claim, CompleteRun(output=b"1")),
        ]

        assert await bench.apply(chunks) == [DONE] * 4

        run, steps = await bench.state(claim.run_id)
        assert run.status is RunStatus.COMPLETED
        assert [(step.step_id, step.status, step.completed_seq) for step in steps] == [
            ("a", "COMPLETED", 1),
            ("b", "COMPLETED", 2),
        ]

    async def test_nothing_is_recorded_after_the_end_of_a_lease(self, bench: Bench) -> None:
        claim = await bench.started_claim()
        chunks = [
            bench.chunk(claim, bench.completed("a", 1), CompleteRun(output=b"1")),
            bench.chunk(claim, bench.completed("late", 2)),
            bench.chunk(claim, FailRun(error=b"no")),
        ]

        assert await bench.apply(chunks) == [DONE, LEASE_LOST, LEASE_LOST]

        run, steps = await bench.state(claim.run_id)
        assert (run.status, run.output, run.error) == (RunStatus.COMPLETED, b"1", None)
        assert [step.step_id for step in steps] == ["a"]

    async def test_one_bad_write_never_fails_another(self, bench: Bench) -> None:
        """Every kind of answer in one batch."""
        await bench.start(external_id="taken", task_queue="elsewhere")
        good, parked, stale, finished = [await bench.started_claim() for _ in range(4)]
        await bench.done(finished, CompleteRun(output=b"1"))
        far = bench.now() + 60 * SECOND
        start = bench.start_run()
        batch: list[StartRun | Chunk] = [
            bench.chunk(stale, bench.completed("a", 1), CompleteRun(output=b"x"), token=bench.new_id()),
            bench.start_run(external_id="taken", input=b"other"),
            bench.chunk(good, bench.completed("a", 1), CompleteRun(output=b"1")),
            Chunk(
                namespace=NAMESPACE,
                run_id=bench.new_id(),
                token=bench.new_id(),
                operations=(CompleteRun(output=b"x"),),
            ),
            bench.chunk(parked, ParkRun(available_at=far, inbox_seq=-1)),
            start,
            bench.chunk(finished, bench.completed("b", 2), FailRun(error=b"no")),
        ]

        answers = await bench.apply(batch)

        assert answers[0] is LEASE_LOST
        assert isinstance(answers[1], Exception)
        assert answers[2:5] == [DONE, LEASE_LOST, NEWS]
        assert not isinstance(answers[5], Exception)
        assert answers[6] is LEASE_LOST
        assert (await bench.run(good.run_id)).status is RunStatus.COMPLETED
        assert (await bench.run(parked.run_id)).status is RunStatus.RUNNING
        assert (await bench.run(start.run_id)).status is RunStatus.PENDING
        stale_run, stale_steps = await bench.state(stale.run_id)
        assert (stale_run.status, stale_steps) == (RunStatus.RUNNING, [])
        assert (await bench.run(finished.run_id)).status is RunStatus.COMPLETED

    async def test_nothing_is_kept_of_a_chunk_that_cannot_be_stored(self, bench: Bench) -> None:
        bad, good = await bench.started_claim(), await bench.started_claim()
        before = await bench.state(bad.run_id)
        never = ParkRun(available_at=2**70, inbox_seq=0)
        batch = [bench.chunk(bad, bench.completed("a", 1), never), bench.chunk(good, bench.completed("a", 1))]

        refused, done = await bench.apply(batch)

        assert isinstance(refused, InvalidRequest)
        assert done is DONE
        assert isinstance(await bench.answer(batch[0]), InvalidRequest)
        assert await bench.state(bad.run_id) == before
        assert [step.step_id for step in await bench.steps(good.run_id)] == ["a"]

    async def test_nothing_of_a_run_is_applied_after_a_chunk_that_cannot_be_stored(self, bench: Bench) -> None:
        bad, good = await bench.started_claim(), await bench.started_claim()
        before = await bench.state(bad.run_id)
        never = ParkRun(available_at=2**70, inbox_seq=0)
        batch = [
            bench.chunk(bad, bench.completed("a", 1), never),
            bench.chunk(good, bench.completed("a", 1)),
            bench.chunk(bad, bench.completed("b", 2)),
        ]

        refused, done, behind = await bench.apply(batch)

        assert isinstance(refused, InvalidRequest)
        assert done is DONE
        assert isinstance(behind, InvalidRequest)
        assert await bench.state(bad.run_id) == before

    async def test_a_large_batch_of_many_runs(self, bench: Bench) -> None:
        await bench.apply([bench.start_run() for _ in range(130)])
        claims = await bench.claims(limit=130)
        assert len(claims) == 130
        chunks = [
            bench.chunk(claim, bench.completed("a", 1), bench.completed("b", 2), CompleteRun(output=b"1"))
            for claim in claims
        ]

        assert await bench.apply(chunks) == [DONE] * 130

        finished = await bench.store.runs.finished_of([(NAMESPACE, claim.run_id) for claim in claims])
        assert len(finished) == 130
        assert len(await bench.steps(claims[77].run_id)) == 2


class TestLeases:
    @pytest.mark.parametrize("ending", ENDINGS)
    async def test_a_stale_token_changes_nothing(self, bench: Bench, ending: str) -> None:
        claim = await bench.started_claim()
        before = await bench.state(claim.run_id)

        answer = await bench.send(claim, bench.completed("a", 1), endings(bench)[ending], token=bench.new_id())

        assert answer is LEASE_LOST
        assert await bench.state(claim.run_id) == before

    @pytest.mark.parametrize("ending", ENDINGS)
    async def test_the_old_lease_is_refused_when_the_same_worker_holds_the_new_one(
        self, bench: Bench, ending: str
    ) -> None:
        old = await bench.started_claim()
        await bench.crash(old)
        new = await bench.claim(old.run_id)
        before = await bench.state(old.run_id)

        assert await bench.send(old, bench.completed("a", 1), endings(bench)[ending]) is LEASE_LOST
        assert await bench.state(old.run_id) == before
        await bench.done(new, CompleteRun(output=b"1"))

    async def test_a_cleared_token_is_refused_before_anybody_claims_anew(self, bench: Bench) -> None:
        claim = await bench.started_claim()
        await bench.crash(claim)

        assert await bench.send(claim, bench.completed("a", 1)) is LEASE_LOST
        assert await bench.steps(claim.run_id) == []

    async def test_an_expired_lease_that_nobody_took_still_writes(self, bench: Bench) -> None:
        claim = await bench.started_claim()
        bench.clock.advance(10 * LEASE)

        await bench.done(claim, bench.completed("a", 1), CompleteRun(output=b"1"))

    async def test_an_unknown_run_has_no_lease(self, bench: Bench) -> None:
        claim = await bench.started_claim()
        elsewhere = Chunk(
            namespace=NAMESPACE,
            run_id=bench.new_id(),
            token=claim.token,
            operations=(bench.completed("a", 1),),
        )

        assert await bench.answer(elsewhere) is LEASE_LOST
        assert await bench.steps(elsewhere.run_id) == []

    async def test_a_run_that_was_never_claimed_has_no_lease(self, bench: Bench) -> None:
        run_id = await bench.start()
        chunk = Chunk(
            namespace=NAMESPACE,
            run_id=run_id,
            token=bench.new_id(),
            operations=(CompleteRun(output=b"1"),),
        )

        assert await bench.answer(chunk) is LEASE_LOST
        assert (await bench.run(run_id)).status is RunStatus.PENDING

    @pytest.mark.parametrize("ending", ENDINGS)
    async def test_a_repeated_ending_changes_nothing_and_gets_the_same_answer(self, bench: Bench, ending: str) -> None:
        claim = await bench.started_claim()
        operations = (bench.completed("a", 1), endings(bench)[ending])
        await bench.done(claim, *operations)
        before = await bench.state(claim.run_id)
        bench.clock.advance(SECOND)

        await bench.done(claim, *operations)
        assert await bench.state(claim.run_id) == before
        # Also within one batch. What did not let go of the run was not applied, and is not said to be.
        late = [bench.chunk(claim, bench.completed("b", 2)), bench.chunk(claim)]
        repeats = [bench.chunk(claim, *operations), *late]
        assert await bench.apply(repeats) == [DONE, LEASE_LOST, LEASE_LOST]
        for chunk in late:
            assert await bench.answer(chunk) is LEASE_LOST
        assert await bench.state(claim.run_id) == before

    @pytest.mark.parametrize("ending", ["park", "hand back", "retry"])
    async def test_a_repeat_after_the_next_claim_is_refused(self, bench: Bench, ending: str) -> None:
        claim = await bench.started_claim()
        operations = (bench.completed("a", 1), endings(bench)[ending])
        await bench.done(claim, *operations)
        bench.clock.advance(60 * SECOND)
        await bench.claim(claim.run_id)
        before = await bench.state(claim.run_id)

        assert await bench.send(claim, *operations) is LEASE_LOST
        assert await bench.state(claim.run_id) == before

    @pytest.mark.parametrize("ending", ENDINGS)
    @pytest.mark.parametrize("end", ["complete", "fail"])
    async def test_what_has_finished_never_changes(self, bench: Bench, end: str, ending: str) -> None:
        claim = await bench.started_claim(timeout=10 * LEASE)
        await bench.done(claim, bench.completed("a", 1), endings(bench)[end])
        before = await bench.state(claim.run_id)

        await bench.send(claim, bench.completed("b", 2), endings(bench)[ending])
        await bench.beat(claim)
        await bench.store.workers.deregister(bench.worker_id)
        bench.clock.advance(20 * LEASE)
        await bench.recover()
        await bench.store.duties.time_out_runs(100)
        await bench.store.duties.time_out_steps(100, 0)

        assert await bench.claims() == ()
        assert await bench.state(claim.run_id) == before

    async def test_a_stale_chunk_does_not_hold_up_the_new_lease_in_one_batch(self, bench: Bench) -> None:
        old = await bench.started_claim()
        await bench.crash(old)
        new = await bench.claim(old.run_id)
        batch = [
            bench.chunk(old, bench.completed("a", 1, output=b"old")),
            bench.chunk(new, bench.completed("a", 1, output=b"new")),
            bench.chunk(old, CompleteRun(output=b"old")),
            bench.chunk(new, CompleteRun(output=b"new")),
        ]

        assert await bench.apply(batch) == [LEASE_LOST, DONE, LEASE_LOST, DONE]

        run, steps = await bench.state(old.run_id)
        assert run.output == b"new"
        assert [step.output for step in steps] == [b"new"]

    async def test_each_claim_has_a_token_of_its_own(self, bench: Bench) -> None:
        tokens = set()
        claim: Claim = await bench.started_claim()
        for _ in range(5):
            tokens.add(claim.token)
            await bench.done(claim, HandBackRun())
            claim = await bench.claim(claim.run_id)
        assert len(tokens | {claim.token}) == 6
