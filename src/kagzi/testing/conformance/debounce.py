"""Debounced starts: those of one key become one run while nobody has begun it, and the last input counts."""

from __future__ import annotations

import asyncio
from typing import Any

from kagzi.api.operations import Answer, CompleteRun, RepeatRun, StartDebounce, Started, StartRun, TerminateRun
from kagzi.core.flow import Scope
from kagzi.core.instant import SECOND
from kagzi.core.run import RunStatus
from kagzi.errors import Conflict
from kagzi.store.protocol.limits import LimitChange
from kagzi.testing.conformance.bench import NAMESPACE, TYPE, Bench

LARGE = b'"' + b"x" * 100_000 + b'"'
WAIT = 30 * SECOND


def debounced(bench: Bench, input: bytes, *, key: str = "d-7", most: int | None = None, **fields: Any) -> StartRun:
    debounce = StartDebounce(key=key, wait=WAIT, most=most)
    return bench.start_run(input=input, debounce=debounce, **fields)


async def started(bench: Bench, input: bytes, **fields: Any) -> Started:
    answer = await bench.answer(debounced(bench, input, **fields))
    assert isinstance(answer, Started), answer
    return answer


class TestDebounce:
    async def test_starts_of_a_key_become_one_run_with_the_last_input(self, bench: Bench) -> None:
        first = await started(bench, b"1", tags={"batch": "1"}, priority=3)
        assert (first.already_exists, first.status) == (False, RunStatus.PENDING)
        assert first.available_at == bench.now() + WAIT
        bench.clock.advance(20 * SECOND)
        joined = await started(bench, LARGE, version="2", trace_context="a trace", timeout=100 * SECOND)
        assert (joined.run_id, joined.already_exists) == (first.run_id, True)
        assert joined.available_at == bench.now() + WAIT
        joined = await started(bench, b"3", version="2", timeout=200 * SECOND)
        run = await bench.run(first.run_id)
        assert (run.input, run.version, run.priority, run.tags) == (b"3", "2", 3, {"batch": "1"})
        assert run.deadline_at == bench.now() + 200 * SECOND
        bench.clock.advance(WAIT - 1)
        assert await bench.claimed_ids() == []
        bench.clock.advance(1)
        claim = await bench.claim(first.run_id)
        assert (claim.input, claim.version) == (b"3", "2")

    async def test_a_run_tells_what_became_of_its_starts(self, bench: Bench) -> None:
        first = await started(bench, b"1")
        made = bench.now()
        run = await bench.run(first.run_id)
        assert (run.debounce_key, run.joins, run.joined_at, run.joined_by) == ("d-7", 0, None, None)
        bench.clock.advance(SECOND)
        await started(bench, LARGE)
        bench.clock.advance(SECOND)
        last = debounced(bench, b"3")
        for _ in range(2):  # its answer was lost, and it comes again
            await bench.answer(last)
        bench.clock.advance(WAIT)
        claim = await bench.claim(first.run_id)
        await bench.done(claim, CompleteRun(output=b"1"))
        run = await bench.run(first.run_id)
        assert (run.created_at, run.debounce_key, run.joins) == (made, "d-7", 2)
        assert (run.joined_at, run.joined_by) == (made + 2 * SECOND, last.run_id)
        again = await bench.answer(
            RepeatRun(namespace=NAMESPACE, run_id=bench.new_id(), of_run_id=run.run_id, keep_steps=False)
        )
        assert isinstance(again, Started)
        plain = await bench.run(again.run_id)
        assert (plain.debounce_key, plain.joins, plain.joined_at, plain.joined_by) == (None, 0, None, None)

    async def test_large_and_small_inputs_take_turns(self, bench: Bench) -> None:
        for inputs in ((LARGE, b"1"), (b"1", LARGE), (LARGE, LARGE.replace(b"x", b"y"))):
            first = await started(bench, inputs[0])
            await started(bench, inputs[1])
            assert (await bench.run(first.run_id)).input == inputs[1]
            bench.clock.advance(WAIT)
            claim = await bench.claim(first.run_id)
            await bench.done(claim, CompleteRun(output=b"1"))
            assert (await bench.run(first.run_id)).input == inputs[1]

    async def test_it_begins_at_most_so_long_after_the_first(self, bench: Bench) -> None:
        first = await started(bench, b"0", most=60 * SECOND)
        made = bench.now()
        for second in range(1, 8):
            bench.clock.advance(9 * SECOND)
            answer = await started(bench, b"%d" % second, most=60 * SECOND)
            assert answer.run_id == first.run_id
            assert answer.available_at == min(bench.now() + WAIT, made + 60 * SECOND)
        claim = await bench.claim(first.run_id)  # it is due, and takes inputs until somebody begins it
        assert claim.input == b"7"

    async def test_a_run_that_has_begun_or_ended_is_not_joined(self, bench: Bench) -> None:
        first = await started(bench, b"1")
        bench.clock.advance(WAIT)
        claim = await bench.claim(first.run_id)
        second = await started(bench, b"2")
        assert not second.already_exists
        assert (await bench.run(first.run_id)).input == b"1"
        await bench.done(claim, CompleteRun(output=b"1"))
        await bench.answer(TerminateRun(namespace=NAMESPACE, run_id=second.run_id))
        third = await started(bench, b"3")
        assert not third.already_exists
        assert len({first.run_id, second.run_id, third.run_id}) == 3

    async def test_keys_workflows_and_plain_starts_are_apart(self, bench: Bench) -> None:
        ids = {
            (await started(bench, b"1")).run_id,
            (await started(bench, b"1", key="d-8")).run_id,
            (await started(bench, b"1", key="")).run_id,
            (await started(bench, b"1", workflow_type="other")).run_id,
            await bench.start(),
        }
        assert len(ids) == 5
        answer = await bench.answer(debounced(bench, b"2", task_queue="elsewhere"))
        assert isinstance(answer, Conflict)
        assert "elsewhere" in str(answer)

    async def test_a_start_that_arrives_twice_makes_no_second_run(self, bench: Bench) -> None:
        first = debounced(bench, b"1")
        assert await bench.answer(first) == await bench.answer(first)
        joining = debounced(bench, b"2")
        for _ in range(2):
            answer = await bench.answer(joining)
            assert isinstance(answer, Started)
            assert (answer.run_id, answer.already_exists) == (first.run_id, True)
        await bench.answer(first)
        assert (await bench.run(first.run_id)).input == b"2"
        bench.clock.advance(WAIT)
        await bench.claim(first.run_id)
        later = await started(bench, b"3")
        # It has made a run that has begun: it neither makes another, nor changes the one that waits now.
        answer = await bench.answer(first)
        assert isinstance(answer, Started)
        assert (answer.run_id, answer.already_exists, answer.status) == (first.run_id, False, RunStatus.RUNNING)
        assert (await bench.run(later.run_id)).input == b"3"
        answer = await bench.answer(debounced(bench, b"1", run_id=first.run_id, workflow_type="other"))
        assert isinstance(answer, Conflict)

    async def test_starts_at_once_make_one_run(self, bench: Bench) -> None:
        starts = [[debounced(bench, b"%d" % each), debounced(bench, b"0", key="k")] for each in range(20)]
        starts += [list(reversed(pair)) for pair in starts]
        answers = await asyncio.gather(*[bench.store.work.apply(pair) for pair in starts])
        given: list[Answer] = [answer for applied in answers for answer in applied.answers]
        assert all(isinstance(answer, Started) for answer in given), given
        assert len({answer.run_id for answer in given if isinstance(answer, Started)}) == 2

    async def test_starts_against_claims_lose_no_input(self, bench: Bench) -> None:
        """The last input of a key is the one that some run begins with, whoever is first."""
        begun: list[bytes] = []
        for number in range(15):
            await started(bench, b"%d" % (2 * number))
            bench.clock.advance(WAIT)
            poll = bench.poll()
            answer, polled = await asyncio.gather(
                bench.answer(debounced(bench, b"%d" % (2 * number + 1))), bench.polled(poll)
            )
            assert isinstance(answer, Started)
            begun += [claim.input for claim in polled.claims]
            bench.clock.advance(WAIT)
            begun += [claim.input for claim in await bench.claims()]
        # Each later start was either joined before the claim, or has made a run of its own.
        assert {b"%d" % (2 * number + 1) for number in range(15)} <= set(begun)
        assert len(begun) == len(set(begun))

    async def test_a_run_that_is_held_leaves_its_line(self, bench: Bench) -> None:
        await bench.store.limits.change(NAMESPACE, Scope.WORKFLOW, TYPE, LimitChange(concurrency=1))
        await bench.start()
        held = await started(bench, b"1")
        bench.clock.advance(WAIT)
        (running,) = await bench.claims()
        assert await bench.claims() == ()
        joined = await started(bench, b"2", version="2")
        assert (joined.run_id, joined.left_line) == (held.run_id, True)
        again = await started(bench, b"2", version="2")  # it stands in no line any more that it could leave
        assert (again.run_id, again.left_line) == (held.run_id, False)
        await bench.done(running, CompleteRun(output=b"1"))
        await bench.store.limits.unhold(NAMESPACE, ())
        assert await bench.claims() == ()
        bench.clock.advance(WAIT)
        assert [claim.input for claim in await bench.claims()] == [b"2"]
