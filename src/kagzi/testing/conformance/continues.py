"""Runs that begin anew in place: what stays, what is set aside, and what a repeat finds."""

from __future__ import annotations

import pytest

from kagzi.api.operations import (
    CancelRun,
    ChunkAnswer,
    CompleteRun,
    ContinueRun,
    FailRun,
    RepeatRun,
    RetryRun,
    Started,
)
from kagzi.api.workers import Claim
from kagzi.core.instant import SECOND
from kagzi.core.run import RunStatus
from kagzi.errors import Conflict
from kagzi.testing.conformance.bench import NAMESPACE, Bench
from kagzi.testing.conformance.children import inbox as inbox_of_parent
from kagzi.testing.conformance.children import parent_and_child
from kagzi.testing.conformance.signals import inbox, sent, signal, take

DONE, LEASE_LOST = ChunkAnswer.DONE, ChunkAnswer.LEASE_LOST
SMALL, LARGE = b"[1]", b'["' + b"x" * 5000 + b'"]'


async def continued(bench: Bench, claim: Claim, input: bytes = SMALL, version: str | None = None) -> Claim:
    """Lets a run begin anew; returns its next claim."""
    await bench.done(claim, ContinueRun(input=input, version=version))
    return await bench.claim(claim.run_id)


class TestContinuing:
    @pytest.mark.parametrize("input", [SMALL, LARGE], ids=["small", "large"])
    @pytest.mark.parametrize("first", [SMALL, LARGE], ids=["from small", "from large"])
    async def test_a_run_begins_anew_with_another_input_and_nothing_recorded(
        self, bench: Bench, first: bytes, input: bytes
    ) -> None:
        claim = await bench.started_claim(input=first)
        await bench.done(claim, bench.completed("charge", 1), bench.completed("mail", 2))
        bench.clock.advance(SECOND)
        await bench.done(claim, bench.completed("late", 3), ContinueRun(input=input))

        run = await bench.run(claim.run_id)
        assert (run.status, run.input, run.incarnation, run.started_at) == (
            RunStatus.PENDING,
            input,
            1,
            bench.now(),
        )
        bench.clock.advance(SECOND)
        again = await bench.claim(claim.run_id)
        assert (again.input, again.history, again.incarnation, again.version) == (input, (), 1, claim.version)
        assert (again.executions, again.executions_before) == (2, 1)
        assert again.started_at == bench.now() - SECOND
        assert again.token != claim.token
        # People see what the last incarnation has done, until the next one ends.
        assert {step.step_id for step in await bench.steps(claim.run_id)} == {"charge~i1", "mail~i1", "late~i1"}
        await bench.done(again, bench.completed("charge", 1), ContinueRun(input=first))
        assert {step.step_id for step in await bench.steps(claim.run_id)} == {"charge~i2"}

    async def test_failures_and_crashes_count_anew_and_set_aside_rows_do_not_meet(self, bench: Bench) -> None:
        claim = await bench.started_claim()
        await bench.done(claim, bench.completed("a", 1), RetryRun(available_at=bench.now(), keep_seq=0, error=b"no"))
        claim = await bench.claim(claim.run_id)
        assert claim.attempts == 1
        claim = await continued(bench, claim)
        assert (claim.attempts, claim.crashes, (await bench.run(claim.run_id)).error) == (0, 0, None)
        await bench.done(claim, bench.completed("a", 1), RetryRun(available_at=bench.now(), keep_seq=0, error=b"no"))
        claim = await bench.claim(claim.run_id)
        assert (claim.attempts, claim.history) == (1, ())
        claim = await continued(bench, claim, version="2")
        assert (claim.version, claim.incarnation) == ("2", 2)
        await bench.crash(claim)
        assert (await bench.claim(claim.run_id)).crashes == 1

    async def test_it_is_fenced_and_a_repeat_changes_nothing(self, bench: Bench) -> None:
        claim = await bench.started_claim()
        anew = ContinueRun(input=SMALL)
        assert await bench.send(claim, anew, token="ffffffff" + claim.token[8:]) is LEASE_LOST
        chunk = bench.chunk(claim, bench.completed("charge", 1), anew)
        assert await bench.apply([chunk, chunk]) == [DONE, DONE]
        state = await bench.state(claim.run_id)
        assert await bench.answer(chunk) is DONE
        assert await bench.state(claim.run_id) == state
        await bench.claim(claim.run_id)
        assert await bench.answer(chunk) is LEASE_LOST

    async def test_untaken_signals_stay_and_taken_ones_are_not_given_back(self, bench: Bench) -> None:
        claim = await bench.started_claim()
        await sent(bench, signal(claim.run_id, key="k1"))
        await sent(bench, signal(claim.run_id, key="k2"))
        claim = await self._after(bench, claim, take(bench, 1))
        assert [each.key for each in (await inbox(bench, claim)).signals] == ["k2"]
        # The key of the one that was taken is still known, and a retry of the new incarnation gives it to nobody.
        assert (await sent(bench, signal(claim.run_id, key="k1"))).repeated
        await bench.done(claim, RetryRun(available_at=bench.now(), keep_seq=0, error=b"no"))
        claim = await bench.claim(claim.run_id)
        assert [each.key for each in (await inbox(bench, claim)).signals] == ["k2"]

    async def test_old_keys_are_forgotten(self, bench: Bench) -> None:
        claim = await bench.started_claim()
        await sent(bench, signal(claim.run_id, key="~1"))
        await sent(bench, signal(claim.run_id, key="given"))
        claim = await self._after(bench, claim, take(bench, 1, "~1"), take(bench, 2, "given"))
        assert len(await bench.store.signals.page(NAMESPACE, claim.run_id, 0, 100)) == 2
        bench.clock.advance(2 * 3600 * SECOND)
        await bench.beat(claim)
        claim = await self._after(bench, claim)
        assert [each.key for each in await bench.store.signals.page(NAMESPACE, claim.run_id, 0, 100)] == ["given"]

    async def _after(self, bench: Bench, claim: Claim, *operations: object) -> Claim:
        assert await bench.send(claim, *operations, ContinueRun(input=SMALL)) is DONE  # type: ignore[arg-type]
        return await bench.claim(claim.run_id)

    async def test_a_cancellation_is_told_to_the_new_incarnation(self, bench: Bench) -> None:
        claim = await bench.started_claim()
        cancel = CancelRun(namespace=NAMESPACE, run_id=claim.run_id)
        await bench.answer(cancel)
        claim = await continued(bench, claim)
        assert claim.cancel_requested
        other = await bench.started_claim()
        await bench.done(other, ContinueRun(input=SMALL))
        await bench.answer(CancelRun(namespace=NAMESPACE, run_id=other.run_id))
        assert (await bench.run(other.run_id)).status is RunStatus.PENDING  # it was begun, so it hears of it
        assert (await bench.claim(other.run_id)).cancel_requested

    async def test_starts_are_compared_with_the_first_input(self, bench: Bench) -> None:
        start = bench.start_run(external_id="sub-1", input=LARGE)
        assert isinstance(await bench.answer(start), Started)
        claim = await bench.claim(start.run_id)
        for _ in range(2):
            claim = await continued(bench, claim, version="2")
        again = await bench.answer(start)
        assert isinstance(again, Started), again
        assert again.run_id == start.run_id
        same = await bench.answer(bench.start_run(external_id="sub-1", input=LARGE))
        assert isinstance(same, Started), same
        assert (same.run_id, same.already_exists) == (start.run_id, True)
        assert isinstance(await bench.answer(bench.start_run(external_id="sub-1", input=SMALL)), Conflict)
        # One that repeats it has the id, and was given the same, although it has begun anew never.
        await bench.done(claim, FailRun(error=b"boom"))
        repeat = RepeatRun(
            namespace=NAMESPACE, run_id=bench.new_id(), of_run_id=claim.run_id, keep_steps=True, keep_id=True
        )
        await bench.answer(repeat)
        same = await bench.answer(bench.start_run(external_id="sub-1", input=LARGE))
        assert isinstance(same, Started), same
        assert (same.run_id, same.already_exists) == (repeat.run_id, True)

    async def test_a_repeat_goes_on_in_the_incarnation(self, bench: Bench) -> None:
        claim = await continued(bench, await bench.started_claim(), LARGE)
        await bench.done(claim, bench.completed("charge", 1), FailRun(error=b"boom"))
        for keep_steps, history, incarnation in ((True, ["charge"], 1), (False, [], 0)):
            request = RepeatRun(
                namespace=NAMESPACE, run_id=bench.new_id(), of_run_id=claim.run_id, keep_steps=keep_steps
            )
            await bench.answer(request)
            repeated = await bench.claim(request.run_id)
            assert [step.step_id for step in repeated.history] == history
            assert (repeated.input, repeated.incarnation, repeated.executions_before) == (LARGE, incarnation, 0)
            await bench.done(repeated, ContinueRun(input=SMALL))
            assert isinstance(await bench.answer(request), Started)  # it came twice
            await bench.done(await bench.claim(request.run_id), CompleteRun(output=b"1"))

    async def test_a_child_of_the_incarnation_before_is_told_to_nobody(self, bench: Bench) -> None:
        parent, child = await parent_and_child(bench)
        anew = await continued(bench, parent)
        assert anew.family
        await bench.done(child, CompleteRun(output=b"1"))
        found = await inbox_of_parent(bench, anew)
        assert (found.inbox_seq, found.outcomes) == (0, ())
