"""Repeating finished runs: which events the new run begins with. What becomes of ids: `restarts`."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from kagzi.api.operations import (
    CompleteRun,
    EndCancelledRun,
    FailRun,
    RepeatRun,
    RetryRun,
    Started,
)
from kagzi.core.instant import SECOND
from kagzi.core.run import RunStatus
from kagzi.core.step import CANCEL, Step, StepKind
from kagzi.errors import Conflict, NotFound
from kagzi.testing.conformance.bench import NAMESPACE, Bench
from kagzi.testing.conformance.cancels import FAR, asked, cancel


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
