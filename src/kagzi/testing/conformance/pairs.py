"""Two of a kind: rates of one run, parents of one step name, namespaces. Each counts, and each for itself."""

from __future__ import annotations

from itertools import permutations
from typing import Final

import pytest

from kagzi.api.operations import CompleteRun, SendSignal, StartDebounce, Started
from kagzi.core.flow import Scope
from kagzi.core.instant import SECOND
from kagzi.core.rate import RateLimit
from kagzi.core.step import StepStatus
from kagzi.store.protocol.limits import LimitChange
from kagzi.testing.conformance.bench import NAMESPACE, QUEUE, TYPE, Bench
from kagzi.testing.conformance.children import inbox, spawn, take

SLOW: Final = RateLimit(1, 10 * SECOND).encode()
FAST: Final = RateLimit(1, SECOND).encode()


async def begun(bench: Bench, seconds: int) -> list[int]:
    """The seconds in which runs begin, if somebody asks in each."""
    found = []
    for second in range(seconds):
        found += [second] * len(await bench.claimed_ids())
        await bench.store.limits.unhold(NAMESPACE, ())
        found += [second] * len(await bench.claimed_ids())
        bench.clock.advance(SECOND)
    return found


async def another(bench: Bench) -> str:
    """Another namespace."""
    await bench.store.namespaces.create("other-team", "", "")
    return "other-team"


class TestPairs:
    @pytest.mark.parametrize(("slow", "fast"), list(permutations(("queue", "workflow", "key"), 2)))
    async def test_of_two_rates_the_slower_counts(self, bench: Bench, slow: str, fast: str) -> None:
        rates = {fast: FAST, slow: SLOW}
        change = LimitChange(rate=rates.get("workflow"), key_rate=rates.get("key"))
        await bench.store.limits.change(NAMESPACE, Scope.WORKFLOW, TYPE, change)
        await bench.store.limits.change(NAMESPACE, Scope.QUEUE, QUEUE, LimitChange(rate=rates.get("queue")))
        for _ in range(3):
            await bench.start(limit_key="a")
        assert await begun(bench, 25) == [0, 10, 20]

    @pytest.mark.parametrize("first", [0, 1])
    @pytest.mark.parametrize("together", [True, False])
    async def test_two_parents_of_one_step_name_hear_of_their_own_children(
        self, bench: Bench, first: int, together: bool
    ) -> None:
        parents = [await bench.started_claim() for _ in range(2)]
        spawns = [spawn(bench) for _ in parents]
        chunks = [bench.chunk(parent, each) for parent, each in zip(parents, spawns, strict=True)]
        for batch in [chunks] if together else [chunks[:1], chunks[1:]]:
            await bench.apply(batch)
        children = {claim.run_id: claim for claim in await bench.claims(queues=("children",))}
        ends = [
            bench.chunk(children[spawns[number].child.run_id], CompleteRun(output=b"%d" % number))
            for number in (first, 1 - first)
        ]
        if together:
            await bench.apply(ends)
        else:
            await bench.apply(ends[:1])
            assert (await bench.steps(parents[1 - first].run_id))[0].status is StepStatus.RUNNING
            await bench.apply(ends[1:])
        for number, parent in enumerate(parents):
            (outcome,) = (await inbox(bench, parent)).outcomes
            assert (outcome.output, outcome.child_run_id) == (b"%d" % number, spawns[number].child.run_id)
        await bench.apply([bench.chunk(parent, take(bench, 1), CompleteRun(output=b"1")) for parent in parents])
        found = [(await bench.steps(parent.run_id))[0] for parent in parents]
        assert [(step.completed_seq, step.output) for step in found] == [(1, b"0"), (1, b"1")]

    async def test_an_id_of_a_child_is_taken_in_its_namespace_alone(self, bench: Bench) -> None:
        await bench.start(namespace=await another(bench), external_id="c-1")
        parent = await bench.started_claim()
        await bench.done(parent, spawn(bench, external_id="c-1"))
        assert [claim.external_id for claim in await bench.claims(queues=("children",))] == ["c-1"]

    @pytest.mark.parametrize("scope", [Scope.QUEUE, Scope.WORKFLOW, Scope.NAMESPACE])
    async def test_what_is_paused_in_one_namespace_goes_on_in_another(self, bench: Bench, scope: Scope) -> None:
        other = await another(bench)
        name = {Scope.QUEUE: QUEUE, Scope.WORKFLOW: TYPE, Scope.NAMESPACE: ""}[scope]
        await bench.store.limits.pause(NAMESPACE, scope, name, "ann", "")
        mine, theirs = await bench.start(), await bench.start(namespace=other)
        assert await bench.claimed_ids() == []
        assert await bench.claimed_ids(namespace=other) == [theirs]
        await bench.store.limits.pause(other, scope, name, "bob", "")
        await bench.store.limits.resume(NAMESPACE, scope, name)
        await bench.store.limits.unhold(NAMESPACE, ())
        await bench.start(namespace=other)
        assert await bench.claimed_ids() == [mine]
        assert await bench.claimed_ids(namespace=other) == []

    @pytest.mark.parametrize("scope", [Scope.QUEUE, Scope.WORKFLOW])
    @pytest.mark.parametrize("change", [LimitChange(concurrency=1), LimitChange(rate=SLOW)])
    async def test_slots_and_turns_are_of_one_namespace(self, bench: Bench, scope: Scope, change: LimitChange) -> None:
        namespaces = (NAMESPACE, await another(bench))
        for namespace in namespaces:
            await bench.store.limits.change(namespace, scope, QUEUE if scope is Scope.QUEUE else TYPE, change)
        runs = [[await bench.start(namespace=namespace) for _ in range(2)] for namespace in namespaces]
        # Each has one slot and one turn of its own.
        _, second = [await bench.claim(namespace=namespace) for namespace in namespaces]
        bench.clock.advance(10 * SECOND)
        await bench.done(second, CompleteRun(output=b"1"))
        found = []
        for namespace in namespaces:
            await bench.store.limits.unhold(namespace, ())
            found.append(await bench.claimed_ids(namespace=namespace))
        assert found[1] == runs[1][1:]
        assert found[0] == ([] if change.concurrency else runs[0][1:])  # nobody has given its slot back

    async def test_ids_debounce_keys_and_signals_are_of_one_namespace(self, bench: Bench) -> None:
        other = await another(bench)
        debounce = StartDebounce(key="d-7", wait=SECOND)
        made = [
            await bench.answer(bench.start_run(namespace=namespace, **fields))
            for fields in ({"external_id": "o-1"}, {"debounce": debounce})
            for namespace in (NAMESPACE, other)
        ]
        assert [each.already_exists for each in made if isinstance(each, Started)] == [False] * 4
        mine, theirs = (each.run_id for each in made[:2] if isinstance(each, Started))
        for namespace, run_id in ((NAMESPACE, mine), (other, theirs)):
            write = SendSignal(namespace=namespace, run_id=run_id, name="go", value=namespace.encode(), key="k")
            await bench.answer(write)
        for namespace, run_id in ((NAMESPACE, mine), (other, theirs)):
            found = await bench.store.signals.page(namespace, run_id, 0, 100)
            assert [signal.value for signal in found] == [namespace.encode()]
