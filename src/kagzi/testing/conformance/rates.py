"""Rates and turns: which of the runs that wait may begin next, and when."""

from __future__ import annotations

from typing import Any

from kagzi.api.operations import (
    CompleteRun,
    Fork,
    HandBackRun,
    ParkRun,
    RepeatRun,
)
from kagzi.api.workers import DeclaredLimit
from kagzi.core.flow import Scope
from kagzi.core.instant import SECOND
from kagzi.core.rate import RateLimit
from kagzi.store.protocol.limits import LimitChange
from kagzi.testing.conformance.bench import NAMESPACE, QUEUE, TYPE, Bench
from kagzi.testing.conformance.limits import unhold


def rated(count: int, burst: int = 1) -> str:
    """So many a second."""
    return RateLimit(count, SECOND, burst).encode()


async def come(bench: Bench, **fields: Any) -> list[str]:
    """The runs that are claimed now, after those that were held were told when to come."""
    found = await bench.claimed_ids(**fields)
    await bench.store.limits.unhold(NAMESPACE, ())
    return found


class TestRates:
    async def test_runs_begin_one_after_the_other_and_a_burst_at_once(self, bench: Bench) -> None:
        await bench.store.limits.change(NAMESPACE, Scope.WORKFLOW, TYPE, LimitChange(rate=rated(2, 3)))
        runs = []
        for _ in range(6):
            runs.append(await bench.start())
            bench.clock.advance(1)
        assert await come(bench) == runs[:3]
        assert await come(bench) == []
        due = (await bench.store.overview.horizon([(NAMESPACE, QUEUE)])).due[NAMESPACE, QUEUE]
        wait = await bench.store.limits.wait_of(NAMESPACE, runs[4])
        assert wait is not None
        assert (wait.rate, wait.next_at) == ("2 in 1s", due)
        bench.clock.advance(due - bench.now() - 1)
        assert await come(bench) == []
        bench.clock.advance(1)
        assert await come(bench) == [runs[3]]
        bench.clock.advance(2 * SECOND)
        assert await come(bench) == [runs[4]]
        assert await come(bench) == [runs[5]]
        bench.clock.advance(120 * SECOND)
        await unhold(bench)
        runs = [await bench.start() for _ in range(4)]
        assert set(await come(bench)) == set(runs[:3])

    async def test_only_a_run_that_has_never_begun_takes_a_turn(self, bench: Bench) -> None:
        await bench.store.limits.change(NAMESPACE, Scope.QUEUE, QUEUE, LimitChange(rate=rated(1)))
        begun = await bench.start()
        claim = await bench.claim(begun)
        waiting = [await bench.start() for _ in range(2)]
        assert await come(bench) == []
        for _ in range(3):
            await bench.done(claim, ParkRun(available_at=bench.now() + 1, inbox_seq=0))
            bench.clock.advance(1)
            claim = await bench.claim(begun)
        await bench.done(claim, HandBackRun())
        claim = await bench.claim(begun)
        bench.clock.advance(SECOND)
        assert await come(bench) == waiting[:1]

    async def test_runs_that_go_on_where_another_one_was_take_a_turn(self, bench: Bench) -> None:
        source = await bench.started_claim()
        await bench.done(source, bench.completed("pay", 1), CompleteRun(output=b"1"))
        await bench.store.limits.change(NAMESPACE, Scope.WORKFLOW, TYPE, LimitChange(rate=rated(1)))
        for keeps in ({"keep_steps": True}, {"keep_steps": True, "fork": Fork(from_step="pay")}, {"keep_steps": False}):
            again: Any = {"namespace": NAMESPACE, "of_run_id": source.run_id, "keep_id": False, **keeps}
            await bench.answer(RepeatRun(run_id=bench.new_id(), **again))
        for _ in range(3):
            assert len(await come(bench)) == 1
            assert await come(bench) == []
            bench.clock.advance(SECOND)

    async def test_one_that_has_begun_is_not_behind_those_that_may_not(self, bench: Bench) -> None:
        change = LimitChange(concurrency=1, rate=rated(1))
        await bench.store.limits.change(NAMESPACE, Scope.WORKFLOW, TYPE, change)
        begun = await bench.start()
        claim = await bench.claim(begun)
        await bench.done(claim, ParkRun(available_at=bench.now() + 2 * SECOND, inbox_seq=0))
        bench.clock.advance(SECOND)
        holder = await bench.claim(await bench.start())
        for _ in range(3):
            await bench.start()
        assert await come(bench) == []
        bench.clock.advance(2 * SECOND)
        assert await come(bench) == []  # it is held behind the others
        await bench.done(holder, CompleteRun(output=b"1"))
        await bench.store.limits.unhold(NAMESPACE, ())
        assert await bench.claimed_ids() == [begun]

    async def test_keys_have_a_rate_of_their_own_and_a_change_counts_at_once(self, bench: Bench) -> None:
        await bench.store.limits.change(NAMESPACE, Scope.WORKFLOW, TYPE, LimitChange(key_rate=rated(1)))
        slow = [await bench.start(limit_key="a") for _ in range(3)]
        bench.clock.advance(1)
        other = await bench.start(limit_key="b")
        assert set(await come(bench)) == {slow[0], other}
        assert (await bench.store.limits.unhold(NAMESPACE, ())).queues == []  # the first was told when to come
        cleared = await bench.store.limits.change(NAMESPACE, Scope.WORKFLOW, TYPE, LimitChange())
        assert cleared.effective_key_rate is None
        await bench.store.limits.unhold(NAMESPACE, ())
        assert set(await bench.claimed_ids()) == set(slow[1:])

    async def test_a_clock_that_was_set_back_stops_nothing_for_long(self, bench: Bench) -> None:
        rate = RateLimit(2, SECOND)
        far = bench.now() + 3600 * SECOND
        assert rate.next_at(far, bench.now()) <= bench.now() + SECOND

    async def test_the_slowest_that_workers_declare_counts_unless_one_is_set(self, bench: Bench) -> None:
        slow, fast = RateLimit(1, SECOND), RateLimit(5, SECOND, 9)
        await bench.store.workers.register(bench.registration(limits=(DeclaredLimit(TYPE, rate=fast, key_rate=fast),)))
        other = DeclaredLimit(TYPE, rate=slow, fair=True)
        await bench.store.workers.register(bench.registration(worker_id=bench.new_id(), limits=(other,)))
        await bench.store.limits.declare(NAMESPACE)
        (found,) = await bench.store.limits.read(NAMESPACE)
        assert (found.effective_rate, found.effective_key_rate, found.fair) == (slow, fast, True)
        change = LimitChange(concurrency=-1, key_concurrency=-1, rate=fast.encode(), key_rate="")
        changed = await bench.store.limits.change(NAMESPACE, Scope.WORKFLOW, TYPE, change)
        assert changed.effective_rate == fast


class TestTurns:
    async def test_keys_take_turns_however_many_of_one_came_first(self, bench: Bench) -> None:
        await bench.store.workers.register(bench.registration(limits=(DeclaredLimit(TYPE, fair=True),)))
        await bench.store.limits.declare(NAMESPACE)
        many = []
        for _ in range(30):
            many.append(await bench.start(limit_key="many"))
            bench.clock.advance(1)
        few = [await bench.start(limit_key="few") for _ in range(3)]
        order = []
        for _ in range(33):
            bench.clock.advance(1)
            (claim,) = await bench.claims(limit=1)
            order.append(claim.run_id)
            await bench.done(claim, CompleteRun(output=b"1"))
            await bench.store.limits.unhold(NAMESPACE, ())
        assert set(order) == {*many, *few}
        assert set(few) < set(order[:6])
        assert [run_id for run_id in order if run_id in many] == many

    async def test_a_key_that_is_alone_gets_every_slot(self, bench: Bench) -> None:
        await bench.store.workers.register(bench.registration(limits=(DeclaredLimit(TYPE, fair=True),)))
        await bench.store.limits.declare(NAMESPACE)
        runs = [await bench.start(limit_key="many") for _ in range(8)]
        assert set(await bench.claimed_ids()) == set(runs)
