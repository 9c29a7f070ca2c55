"""Pauses: what is paused is not handed out, from the acknowledgement on."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from kagzi.api.operations import (
    BirthLease,
    CompleteRun,
    Started,
)
from kagzi.core.flow import FlowLimit, Scope
from kagzi.core.instant import SECOND
from kagzi.core.run import RunStatus
from kagzi.testing.conformance.bench import LEASE, NAMESPACE, QUEUE, TYPE, Bench
from kagzi.testing.conformance.limits import unhold

PAUSES = [(Scope.QUEUE, QUEUE), (Scope.WORKFLOW, TYPE), (Scope.NAMESPACE, "")]


class TestPauses:
    @pytest.mark.parametrize(("scope", "name"), PAUSES)
    async def test_what_is_paused_is_neither_claimed_nor_born(self, bench: Bench, scope: Scope, name: str) -> None:
        waiting = await bench.start()
        claim = await bench.claim(waiting)
        await bench.store.limits.pause(NAMESPACE, scope, name, "ops", "deploy")
        lease = BirthLease(worker_id=bench.worker_id, token=bench.new_id(), length=LEASE)
        born = await bench.answer(bench.start_run(lease=lease))
        assert isinstance(born, Started)
        assert not born.born
        assert born.status is RunStatus.PENDING
        assert await bench.claims() == ()
        await bench.done(claim, CompleteRun(output=b"1"))  # what runs goes on
        await bench.store.limits.resume(NAMESPACE, scope, name)
        await unhold(bench)
        assert await bench.claimed_ids() == [born.run_id]
        assert await bench.store.limits.read(NAMESPACE) == []
        await unhold(bench)  # nothing is held any more, so nothing is left of the pause
        again = await bench.answer(bench.start_run(lease=replace(lease, token=bench.new_id())))
        assert isinstance(again, Started)
        assert again.born

    @pytest.mark.parametrize(("scope", "name"), [(Scope.QUEUE, "other"), (Scope.WORKFLOW, "other")])
    async def test_other_queues_and_workflows_go_on(self, bench: Bench, scope: Scope, name: str) -> None:
        await bench.store.limits.pause(NAMESPACE, scope, name, "ops", "")
        await bench.store.namespaces.ensure("elsewhere")
        await bench.store.limits.pause("elsewhere", Scope.NAMESPACE, "", "ops", "")
        run_id = await bench.start()
        assert await bench.claimed_ids() == [run_id]

    async def test_pausing_twice_changes_nothing(self, bench: Bench) -> None:
        paused_at = bench.now()
        await bench.store.limits.pause(NAMESPACE, Scope.QUEUE, QUEUE, "ops", "deploy")
        bench.clock.advance(60 * SECOND)
        again = await bench.store.limits.pause(NAMESPACE, Scope.QUEUE, QUEUE, "somebody", "lunch")
        expected = FlowLimit(
            namespace=NAMESPACE,
            scope=Scope.QUEUE,
            name=QUEUE,
            paused_at=paused_at,
            paused_by="ops",
            pause_reason="deploy",
        )
        assert again == expected
        assert await bench.store.limits.read(NAMESPACE) == [expected]
        assert await bench.store.limits.read("other") == []

    async def test_nobody_is_told_of_what_is_due_in_a_paused_queue(self, bench: Bench) -> None:
        await bench.start()
        queue = (NAMESPACE, QUEUE)
        assert queue in (await bench.store.overview.horizon([queue])).due
        for scope, name in ((Scope.QUEUE, QUEUE), (Scope.NAMESPACE, "")):
            await bench.store.limits.pause(NAMESPACE, scope, name, "ops", "")
            assert (await bench.store.overview.horizon([queue])).due == {}
            await bench.store.limits.resume(NAMESPACE, scope, name)
        assert queue in (await bench.store.overview.horizon([queue])).due

    async def test_deadlines_and_lost_leases_are_seen_to_all_the_same(self, bench: Bench) -> None:
        doomed = await bench.start(timeout=SECOND)
        bench.clock.advance(1)
        lost = await bench.start()
        (claim,) = await bench.claims(limit=1)
        assert claim.run_id == doomed
        await bench.store.limits.pause(NAMESPACE, Scope.QUEUE, QUEUE, "ops", "")
        bench.clock.advance(2 * SECOND)
        assert [run.run_id for run in (await bench.store.duties.time_out_runs(10)).runs] == [doomed]
        assert await bench.claims() == ()
        await bench.store.limits.resume(NAMESPACE, Scope.QUEUE, QUEUE)
        assert await bench.claimed_ids() == [lost]
