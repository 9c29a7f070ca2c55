"""Forks: runs that go on from a chosen step of another one."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kagzi.api.operations import (
    ChunkAnswer,
    FailRun,
    Fork,
    RepeatRun,
    SendSignal,
    Started,
    TakeSignal,
    Write,
)
from kagzi.api.workers import Claim
from kagzi.core.run import RunStatus
from kagzi.core.step import StepKind
from kagzi.errors import Conflict, NotFound
from kagzi.testing.conformance.bench import NAMESPACE, Bench
from kagzi.testing.conformance.children import ERROR
from kagzi.testing.conformance.restarts import ID, at_once


class TestForks:
    """Runs that go on from a chosen step of another one."""

    def fork(self, bench: Bench, run_id: str, **fields: Any) -> RepeatRun:
        return RepeatRun(
            namespace=NAMESPACE,
            run_id=bench.new_id(),
            of_run_id=run_id,
            keep_steps="from_step" in fields,
            keep_id=False,
            fork=Fork(**fields),
        )

    async def source(self, bench: Bench) -> Claim:
        """A live run with three events, two signals of which one is taken, and an id."""
        claim = await bench.started_claim(external_id=ID, input=b"x" * 3000, version="1", tags={"a": "b"})
        for key in ("s1", "s2"):
            await bench.answer(SendSignal(namespace=NAMESPACE, run_id=claim.run_id, name="go", value=b"1", key=key))
        at = bench.now()
        await bench.done(
            claim,
            bench.completed("reserve", 1),
            bench.failed("charge", retry_at=at),
            bench.completed("charge", 2, attempt=2),
            TakeSignal(
                step_id="@@go",
                kind=StepKind.SIGNAL,
                completed_seq=3,
                started_at=at,
                finished_at=at,
                signal="s1",
            ),
        )
        return claim

    @pytest.mark.parametrize("over", [False, True])
    async def test_it_keeps_what_came_before_the_step(self, bench: Bench, over: bool) -> None:
        source = await self.source(bench)
        if over:
            await bench.done(source, FailRun(error=ERROR))
        before = await bench.state(source.run_id)
        request = self.fork(bench, source.run_id, from_step="charge")

        first = await bench.answer(request)

        assert isinstance(first, Started)
        assert await bench.answer(request) == first
        new = await bench.run(request.run_id)
        assert (new.external_id, new.origin, new.input, new.tags) == (None, source.run_id, b"x" * 3000, {"a": "b"})
        claim = await bench.claim(request.run_id)
        assert [step.step_id for step in claim.history] == ["reserve"]
        assert (claim.started_at, claim.origin_run_id) == (source.started_at, source.run_id)
        # What the source has taken later can be taken again, in the old order.
        signals = await bench.store.signals.page(NAMESPACE, request.run_id, 0, 10)
        assert [(signal.key, signal.taken_seq) for signal in signals] == [("s1", None), ("s2", None)]
        assert await bench.state(source.run_id) == before

    async def test_a_burst_of_forks_makes_one_run_each(self, bench: Bench) -> None:
        """The first and the last of them come twice, and the source goes on meanwhile."""
        source = await self.source(bench)
        forks = [self.fork(bench, source.run_id, from_step="charge") for _ in range(1000)]
        batches: list[list[Write]] = [[*forks[at : at + 50]] for at in range(0, 1000, 50)]
        more = bench.chunk(source, bench.completed("ship", 4))

        answers = await at_once(bench, [*batches[:10], batches[0], [more], *batches[10:], batches[-1]])

        assert answers.count(ChunkAnswer.DONE) == 1
        started = [answer.run_id for answer in answers if isinstance(answer, Started)]
        assert sorted(started) == sorted(fork.run_id for fork in [*forks, *forks[:50], *forks[-50:]])
        for fork in (forks[0], forks[499], forks[999]):
            assert [step.step_id for step in await bench.steps(fork.run_id)] == ["reserve"]
            signals = await bench.store.signals.page(NAMESPACE, fork.run_id, 0, 10)
            assert [(signal.key, signal.taken_seq) for signal in signals] == [("s1", None), ("s2", None)]
        assert (await bench.run(source.run_id)).status is RunStatus.RUNNING

    @pytest.mark.parametrize("size", [3, 3000])
    async def test_it_may_have_another_input_and_version(self, bench: Bench, size: int) -> None:
        source = await self.source(bench)
        request = self.fork(bench, source.run_id, input=b"y" * size, version="2")

        first = await bench.answer(request)

        assert isinstance(first, Started)
        assert await bench.answer(request) == first
        claim = await bench.claim(request.run_id)
        assert (claim.input, claim.version, claim.history, claim.origin_run_id) == (b"y" * size, "2", (), None)
        assert await bench.store.signals.page(NAMESPACE, request.run_id, 0, 10) == []
        other = msgspec.structs.replace(request, fork=Fork(input=b"z", version="2"))
        assert isinstance(await bench.answer(other), Conflict)

    async def test_what_has_not_ended_is_not_found(self, bench: Bench) -> None:
        source = await self.source(bench)
        await bench.done(source, bench.begun("ship"))
        for asked in (
            self.fork(bench, source.run_id, from_step="ship"),
            self.fork(bench, source.run_id, from_step="nobody"),
            self.fork(bench, bench.new_id()),
        ):
            assert isinstance(await bench.answer(asked), NotFound)
            assert await bench.store.runs.get(NAMESPACE, asked.run_id) is None
