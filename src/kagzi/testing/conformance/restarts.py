"""Restarts: the id of a finished run goes to the run that takes its place, and everything else of it stays."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from kagzi.api.operations import (
    Answer,
    BirthLease,
    CompleteRun,
    FailRun,
    ParkRun,
    RepeatRun,
    RetryRun,
    Started,
    StartRun,
    StartSignal,
    TerminateRun,
    Write,
)
from kagzi.api.workers import Claim
from kagzi.core.conflict import OnConflict
from kagzi.core.failure import Failure
from kagzi.core.run import Run, RunStatus
from kagzi.core.step import StepStatus
from kagzi.errors import Conflict
from kagzi.testing.conformance.bench import LEASE, NAMESPACE, Bench
from kagzi.testing.conformance.children import ERROR, claim_child, spawn

ID = "order-42"
FINISHED, FAILED = OnConflict.RESTART_FINISHED, OnConflict.RESTART_FAILED


async def finished(bench: Bench, status: RunStatus = RunStatus.FAILED, **fields: Any) -> Run:
    """A run that has the id and has ended so."""
    claim = await bench.started_claim(external_id=ID, **fields)
    if status is RunStatus.COMPLETED:
        await bench.done(claim, bench.completed("charge", 1), CompleteRun(output=b"1"))
    elif status is RunStatus.FAILED:
        await bench.done(claim, bench.completed("charge", 1), FailRun(error=ERROR))
    else:
        await bench.answer(TerminateRun(namespace=NAMESPACE, run_id=claim.run_id))
    return await bench.run(claim.run_id)


async def holder(bench: Bench) -> Run:
    run = await bench.store.runs.get_by_external_id(NAMESPACE, ID)
    assert run is not None
    return run


async def at_once(bench: Bench, batches: Sequence[Sequence[Write]]) -> list[Answer]:
    groups = await asyncio.gather(*(bench.apply(batch) for batch in batches))
    return [answer for group in groups for answer in group]


def moved(old: Run, to: str) -> Run:
    """What an old run looks like when its id has gone to another one."""
    return msgspec.structs.replace(old, external_id=None, former_id=ID, superseded_by=to)


def repeat_of(bench: Bench, run_id: str, *, keep_steps: bool = True, keep_id: bool = True) -> RepeatRun:
    return RepeatRun(
        namespace=NAMESPACE, run_id=bench.new_id(), of_run_id=run_id, keep_steps=keep_steps, keep_id=keep_id
    )


class TestRestarts:
    @pytest.mark.parametrize("size", [3, 5000])
    @pytest.mark.parametrize("how", [FINISHED, FAILED])
    @pytest.mark.parametrize("status", [RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED])
    async def test_a_finished_run_gives_its_id_up(
        self, bench: Bench, status: RunStatus, how: OnConflict, size: int
    ) -> None:
        old = await finished(bench, status, input=b"x" * size)
        steps = await bench.steps(old.run_id)
        # Of a run that gives its id up only the type counts; one that is returned has the same input, too.
        input = b"x" * size if how is FAILED and status is RunStatus.COMPLETED else b"y" * size
        start = bench.start_run(external_id=ID, on_conflict=how, input=input)

        answer = await bench.answer(start)

        assert isinstance(answer, Started)
        if how is FAILED and status is RunStatus.COMPLETED:
            assert (answer.run_id, answer.already_exists) == (old.run_id, True)
            assert await bench.run(old.run_id) == old
            return
        assert (answer.run_id, answer.already_exists) == (start.run_id, False)
        new = await holder(bench)
        assert (new.run_id, new.status, new.input) == (start.run_id, RunStatus.PENDING, b"y" * size)
        assert (new.origin, new.superseded_by, new.former_id) == (old.run_id, None, None)
        assert await bench.run(old.run_id) == moved(old, new.run_id)
        assert await bench.steps(old.run_id) == steps
        claim = await bench.claim(new.run_id)
        assert (claim.history, claim.origin_run_id, claim.external_id) == ((), None, ID)

    @pytest.mark.parametrize("how", [FINISHED, FAILED])
    async def test_a_live_run_is_returned(self, bench: Bench, how: OnConflict) -> None:
        run_id = await bench.start(external_id=ID)
        before = await bench.run(run_id)

        answer = await bench.answer(bench.start_run(external_id=ID, on_conflict=how))
        other = await bench.answer(bench.start_run(external_id=ID, on_conflict=how, input=b"other"))

        assert isinstance(answer, Started)
        assert (answer.run_id, answer.already_exists) == (run_id, True)
        assert isinstance(other, Conflict)
        assert await bench.run(run_id) == before

    async def test_a_run_of_another_type_keeps_its_id(self, bench: Bench) -> None:
        old = await finished(bench)

        answer = await bench.answer(bench.start_run(external_id=ID, on_conflict=FINISHED, workflow_type="other"))

        assert isinstance(answer, Conflict)
        assert await bench.run(old.run_id) == old

    async def test_an_id_that_nobody_has_is_simply_taken(self, bench: Bench) -> None:
        start = bench.start_run(external_id=ID, on_conflict=FINISHED)
        assert await bench.answer(start) == Started(run_id=start.run_id, available_at=bench.now())
        assert (await holder(bench)).origin is None

    async def test_whoever_knows_nothing_of_restarts_finds_the_run_that_has_the_id_now(self, bench: Bench) -> None:
        """A server of the version before looks by id alone, and starts what nobody has."""
        await finished(bench)
        restart = bench.start_run(external_id=ID, on_conflict=FINISHED)
        await bench.answer(restart)

        answer = await bench.answer(bench.start_run(external_id=ID))

        assert isinstance(answer, Started)
        assert (answer.run_id, answer.already_exists) == (restart.run_id, True)
        assert (await holder(bench)).run_id == restart.run_id

    async def test_fail_is_a_conflict_but_for_its_own_repeat(self, bench: Bench) -> None:
        start = bench.start_run(external_id=ID, on_conflict=OnConflict.FAIL)
        assert isinstance(await bench.answer(start), Started)
        assert isinstance(await bench.answer(start), Started)
        assert isinstance(await bench.answer(bench.start_run(external_id=ID, on_conflict=OnConflict.FAIL)), Conflict)

    async def test_a_restart_that_comes_twice_is_one_restart(self, bench: Bench) -> None:
        old = await finished(bench)
        start = bench.start_run(external_id=ID, on_conflict=FINISHED)
        first = await bench.answer(start)

        assert await bench.answer(start) == first
        # Also when the new run has finished, and even if it has been superseded since.
        await bench.done(await bench.claim(start.run_id), FailRun(error=ERROR))
        again = await bench.answer(start)
        assert isinstance(again, Started)
        assert (again.run_id, again.already_exists) == (start.run_id, False)
        third = await bench.start(external_id=ID, on_conflict=FINISHED)
        again = await bench.answer(start)
        assert isinstance(again, Started)
        assert (again.run_id, again.status) == (start.run_id, RunStatus.FAILED)
        assert (await holder(bench)).run_id == third
        assert (await bench.run(old.run_id)).superseded_by == start.run_id

    async def test_fifty_restarts_at_once_make_one_run(self, bench: Bench) -> None:
        old = await finished(bench)
        starts = [bench.start_run(external_id=ID, on_conflict=FINISHED) for _ in range(50)]

        batches = [starts[place : place + 5] for place in range(0, 50, 5)]
        answers = await at_once(bench, batches)

        started = [answer for answer in answers if isinstance(answer, Started)]
        assert len(started) == 50, answers
        assert len({answer.run_id for answer in started}) == 1
        assert sum(not answer.already_exists for answer in started) == 1
        new = await holder(bench)
        assert (new.run_id, new.origin) == (started[0].run_id, old.run_id)
        assert (await bench.run(old.run_id)).superseded_by == new.run_id

    async def test_restarts_of_two_ids_crosswise_do_not_wait_for_each_other(self, bench: Bench) -> None:
        ids = ("a", "b")
        for name in ids:
            await bench.done(await bench.started_claim(external_id=name), FailRun(error=ERROR))
        batches = [
            [bench.start_run(external_id=name, on_conflict=FINISHED) for name in order]
            for order in (ids, ids[::-1], ids, ids[::-1])
        ]

        answers = await at_once(bench, batches)

        assert [type(answer) for answer in answers] == [Started] * 8
        assert len({answer.run_id for answer in answers if isinstance(answer, Started)}) == 2

    async def test_a_restarted_run_may_be_born_under_a_lease(self, bench: Bench) -> None:
        await finished(bench)
        lease = BirthLease(worker_id=bench.worker_id, token=bench.new_id(), length=LEASE)
        start = bench.start_run(external_id=ID, on_conflict=FINISHED, lease=lease)

        answer = await bench.answer(start)

        assert isinstance(answer, Started)
        assert (answer.born, answer.status) == (True, RunStatus.RUNNING)
        assert (await holder(bench)).status is RunStatus.RUNNING

    # Repeats.

    @pytest.mark.parametrize("keep_steps", [True, False])
    async def test_a_repeat_takes_the_id_over(self, bench: Bench, keep_steps: bool) -> None:
        old = await finished(bench)
        request = repeat_of(bench, old.run_id, keep_steps=keep_steps)

        first = await bench.answer(request)

        assert isinstance(first, Started)
        assert await bench.answer(request) == first
        new = await holder(bench)
        assert (new.run_id, new.origin) == (request.run_id, old.run_id)
        assert await bench.run(old.run_id) == moved(old, new.run_id)
        # And so on: the next one follows the holder.
        await bench.done(await bench.claim(new.run_id), FailRun(error=ERROR))
        third = repeat_of(bench, new.run_id)
        await bench.answer(third)
        assert (await holder(bench)).run_id == third.run_id
        again = await bench.answer(request)
        assert isinstance(again, Started)
        assert again.run_id == request.run_id

    async def test_a_repeat_may_leave_the_id_where_it_is(self, bench: Bench) -> None:
        old = await finished(bench)
        for _ in range(2):
            request = repeat_of(bench, old.run_id, keep_id=False)
            assert isinstance(await bench.answer(request), Started)
            assert isinstance(await bench.answer(request), Started)
            new = await bench.run(request.run_id)
            assert (new.external_id, new.origin) == (None, old.run_id)
        assert await holder(bench) == old

    async def test_a_run_without_an_id_has_none_to_give(self, bench: Bench) -> None:
        claim = await bench.started_claim()
        await bench.done(claim, FailRun(error=ERROR))
        old = await bench.run(claim.run_id)
        for _ in range(2):
            request = repeat_of(bench, old.run_id)
            assert isinstance(await bench.answer(request), Started)
            assert (await bench.run(request.run_id)).origin == old.run_id
        assert await bench.run(old.run_id) == old

    async def test_a_run_is_superseded_once(self, bench: Bench) -> None:
        old = await finished(bench)
        first = repeat_of(bench, old.run_id)
        await bench.answer(first)

        # While the new run is on its way, or has completed, it is the answer.
        again = await bench.answer(repeat_of(bench, old.run_id))
        assert isinstance(again, Started)
        assert (again.run_id, again.already_exists) == (first.run_id, True)
        await bench.done(await bench.claim(first.run_id), FailRun(error=ERROR))
        refused = await bench.answer(repeat_of(bench, old.run_id))
        assert isinstance(refused, Conflict)
        assert first.run_id in str(refused)
        alone = repeat_of(bench, old.run_id, keep_id=False)
        assert isinstance(await bench.answer(alone), Started)
        assert (await bench.run(alone.run_id)).external_id is None
        assert (await holder(bench)).run_id == first.run_id

    async def test_many_repeats_at_once_make_one_run(self, bench: Bench) -> None:
        old = await finished(bench)
        repeats = [repeat_of(bench, old.run_id) for _ in range(10)]
        starts = [bench.start_run(external_id=ID, on_conflict=FINISHED) for _ in range(10)]

        answers = await at_once(bench, [[write] for pair in zip(repeats, starts, strict=True) for write in pair])

        assert {answer.run_id for answer in answers if isinstance(answer, Started)} == {(await holder(bench)).run_id}
        assert all(isinstance(answer, Started) for answer in answers), answers

    # Children.

    async def test_a_retried_parent_takes_the_id_of_its_child_over(self, bench: Bench) -> None:
        parent = await self.parent(bench)
        first = spawn(bench, external_id=ID)
        await bench.done(parent, first)
        child = await claim_child(bench)
        await bench.done(child, FailRun(error=ERROR))
        await bench.done(parent, RetryRun(available_at=bench.now(), keep_seq=0, error=ERROR))
        parent = await bench.claim(parent.run_id)
        second = spawn(bench, external_id=ID)

        await bench.done(parent, second)

        new = await holder(bench)
        assert (new.run_id, new.origin, new.parent_run_id) == (second.child.run_id, child.run_id, parent.run_id)
        (step,) = [step for step in await bench.steps(parent.run_id) if step.child_run_id == new.run_id]
        assert step.status is StepStatus.RUNNING
        assert (await bench.run(child.run_id)).superseded_by == new.run_id

    @pytest.mark.parametrize("generations", [1, 2])
    async def test_a_repeated_parent_takes_the_id_of_the_child_over(self, bench: Bench, generations: int) -> None:
        parent = await self.parent(bench)
        await bench.done(parent, spawn(bench, external_id=ID))
        child = await claim_child(bench)
        await bench.done(child, CompleteRun(output=b"1"))
        for _ in range(generations):
            await bench.done(parent, FailRun(error=ERROR))
            request = repeat_of(bench, parent.run_id)
            await bench.answer(request)
            parent = await bench.claim(request.run_id)
        second = spawn(bench, external_id=ID)

        await bench.done(parent, second)

        assert (await holder(bench)).run_id == second.child.run_id
        assert (await claim_child(bench)).run_id == second.child.run_id

    async def test_a_child_does_not_take_the_id_of_others(self, bench: Bench) -> None:
        old = await finished(bench)
        parent = await self.parent(bench)
        await bench.done(parent, spawn(bench, external_id=ID))

        (step,) = await bench.steps(parent.run_id)
        assert (step.status, Failure.decode(step.error or b"").type) == (StepStatus.FAILED, "kagzi.errors.Conflict")
        assert await holder(bench) == old

    @pytest.mark.parametrize("who", ["another step", "another parent", "another parent in the batch of the first"])
    async def test_a_child_gets_an_id_back_from_its_own_step_alone(self, bench: Bench, who: str) -> None:
        first, second = await self.parent(bench), await self.parent(bench)
        await bench.done(first, spawn(bench, external_id=ID))
        await bench.done(await claim_child(bench), CompleteRun(output=b"1"))
        before = await holder(bench)
        asked = spawn(bench, "ship" if who == "another step" else "pay", external_id=ID)
        batch: list[Write] = [bench.chunk(first if who == "another step" else second, asked)]
        if "batch" in who:
            batch.append(bench.chunk(first, spawn(bench, "ship", external_id=ID)))

        await bench.apply(batch)

        assert await holder(bench) == before
        refused = [step for step in await bench.steps(batch[0].run_id) if step.child_run_id == asked.child.run_id]
        assert [step.status for step in refused] == [StepStatus.FAILED]

    @pytest.mark.parametrize("how", [FINISHED, FAILED])
    async def test_a_child_may_restart_what_has_its_id(self, bench: Bench, how: OnConflict) -> None:
        old = await finished(bench)
        parent = await self.parent(bench)
        asked = [spawn(bench, "pay", external_id=ID, on_conflict=how), spawn(bench, "ship")]
        await bench.done(parent, *asked)
        await bench.done(parent, *asked)

        new = await holder(bench)
        assert (new.run_id, new.origin, new.parent_step_id) == (asked[0].child.run_id, old.run_id, "pay")
        assert {step.status for step in await bench.steps(parent.run_id)} == {StepStatus.RUNNING}
        assert await bench.run(old.run_id) == moved(old, new.run_id)

    async def parent(self, bench: Bench) -> Claim:
        return await bench.started_claim()


class TestSignalsWithStarts:
    """A start that tells the run something which has the id, made or found."""

    def start(self, bench: Bench, key: str = "k", **fields: Any) -> StartRun:
        signal = StartSignal(name="added", value=b'"%s"' % key.encode(), key=key)
        return bench.start_run(**{"external_id": ID, "on_conflict": FINISHED, "signal": signal, **fields})

    async def keys(self, bench: Bench, run_id: str) -> list[str]:
        return [signal.key for signal in await bench.store.signals.page(NAMESPACE, run_id, 0, 100)]

    @pytest.mark.parametrize("size", [3, 5000])
    async def test_a_run_is_made_with_its_first_signal(self, bench: Bench, size: int) -> None:
        start = self.start(bench, input=b"x" * size)

        answer = await bench.answer(start)

        assert isinstance(answer, Started)
        assert answer.signal is not None
        assert (answer.run_id, answer.already_exists, answer.signal.seq) == (start.run_id, False, 1)
        claim = await bench.claim(start.run_id)
        assert (claim.inbox_seq, claim.input, await self.keys(bench, start.run_id)) == (1, b"x" * size, ["k"])
        again = await bench.answer(start)
        assert isinstance(again, Started)
        assert again.signal is not None
        assert (again.run_id, again.already_exists, again.signal.repeated) == (start.run_id, False, True)
        assert await self.keys(bench, start.run_id) == ["k"]

    async def test_a_live_run_is_told_and_woken_whatever_its_input_was(self, bench: Bench) -> None:
        claim = await bench.started_claim(external_id=ID, input=b"first")
        later = bench.now() + 10**12
        await bench.done(claim, ParkRun(available_at=later, inbox_seq=0, waiting_for=("s:added",)))

        answer = await bench.answer(self.start(bench, input=b"other"))

        assert isinstance(answer, Started)
        assert answer.signal is not None
        assert (answer.run_id, answer.already_exists, answer.signal.repeated) == (claim.run_id, True, False)
        assert await bench.claimed_ids() == [claim.run_id]
        assert await self.keys(bench, claim.run_id) == ["k"]

    async def test_a_finished_run_is_superseded_and_the_new_one_told(self, bench: Bench) -> None:
        old = await finished(bench, RunStatus.COMPLETED)
        start = self.start(bench)

        answer = await bench.answer(start)

        assert isinstance(answer, Started)
        assert (answer.run_id, answer.already_exists) == (start.run_id, False)
        assert await bench.run(old.run_id) == moved(old, start.run_id)
        assert (await self.keys(bench, old.run_id), await self.keys(bench, start.run_id)) == ([], ["k"])
        # One that was told before it ended is not told again, and nothing is made.
        await bench.done(await bench.claim(start.run_id), CompleteRun(output=b"1"))
        again = await bench.answer(self.start(bench))
        assert isinstance(again, Started)
        assert (again.run_id, again.status) == (start.run_id, RunStatus.COMPLETED)

    async def test_what_takes_no_signal_is_a_conflict_and_nothing_is_written(self, bench: Bench) -> None:
        old = await finished(bench, RunStatus.COMPLETED)
        for asked in (
            self.start(bench, on_conflict=FAILED),
            self.start(bench, on_conflict=OnConflict.FAIL),
            self.start(bench, workflow_type="other"),
        ):
            assert isinstance(await bench.answer(asked), Conflict)
        assert await holder(bench) == old
        assert await self.keys(bench, old.run_id) == []
        assert await bench.claims() == ()

    async def test_many_at_once_make_one_run_that_is_told_everything(self, bench: Bench) -> None:
        await finished(bench)
        starts = [self.start(bench, f"k{number}") for number in range(20)]
        plain = [bench.start_run() for _ in range(4)]

        answers = await at_once(bench, [[*starts[place : place + 5], plain[place // 5]] for place in range(0, 20, 5)])

        assert all(isinstance(answer, Started) for answer in answers), answers
        new = await holder(bench)
        told = [answer for answer in answers if isinstance(answer, Started) and answer.signal is not None]
        assert ({answer.run_id for answer in told}, len(told)) == ({new.run_id}, 20)
        assert sorted(await self.keys(bench, new.run_id)) == sorted(f"k{number}" for number in range(20))
