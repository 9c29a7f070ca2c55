"""Limits: how many runs are handed out at once, and who gets a slot that is free."""

from __future__ import annotations

import pytest

from kagzi.api.operations import (
    BirthLease,
    CancelRun,
    CompleteRun,
    FailRun,
    Fork,
    HandBackRun,
    ParkRun,
    RepeatRun,
    SendSignal,
    Started,
    WakeAnswer,
)
from kagzi.api.workers import Claim, DeclaredLimit
from kagzi.core.failure import Failure
from kagzi.core.flow import FlowLimit, Scope, SlotWait
from kagzi.core.instant import SECOND
from kagzi.core.run import CANCEL_GRACE, HELD_GRACE, RunStatus
from kagzi.core.worker import WorkflowType
from kagzi.store.lines import HELD
from kagzi.store.protocol.limits import LimitChange
from kagzi.testing.conformance.bench import LEASE, NAMESPACE, QUEUE, TYPE, Bench
from kagzi.testing.conformance.children import spawn
from kagzi.testing.conformance.handlers import handlers
from kagzi.testing.conformance.schedules import fire, made, runs, until


async def unhold(bench: Bench) -> None:
    """As engines do after a run was let go of."""
    unheld = await bench.store.limits.unhold(NAMESPACE, ())
    assert all(queue == (NAMESPACE, QUEUE) for queue in unheld.queues)


async def held_run(bench: Bench) -> tuple[str, Claim]:
    """A run that has slept and is held, and the claim of the one that has the only slot."""
    await limit(bench, 1)
    run_id = await bench.start()
    claim = await bench.claim(run_id)
    await bench.done(claim, ParkRun(available_at=bench.now() + SECOND, inbox_seq=0))
    holder = await bench.claim(await bench.start())
    bench.clock.advance(2 * SECOND)
    assert await bench.claims() == ()
    return run_id, holder


async def waiting_run(bench: Bench) -> tuple[str, Claim]:
    """A run that has slept and is due in a queue that is full, and the claim of the one that has its only slot."""
    run_id = await bench.start()
    await bench.done(await bench.claim(run_id), ParkRun(available_at=bench.now() + SECOND, inbox_seq=0))
    holder = await bench.claim(await bench.start())
    await bench.store.limits.change(NAMESPACE, Scope.QUEUE, QUEUE, LimitChange(concurrency=1))
    bench.clock.advance(2 * SECOND)
    return run_id, holder


async def limit(bench: Bench, most: int | None, key_most: int | None = None) -> FlowLimit:
    return await bench.store.limits.change(
        NAMESPACE, Scope.WORKFLOW, TYPE, LimitChange(concurrency=most, key_concurrency=key_most)
    )


class TestLimits:
    async def test_never_more_than_the_limit_run_and_a_freed_slot_goes_to_the_next(self, bench: Bench) -> None:
        await limit(bench, 2)
        runs = []
        for _ in range(5):
            runs.append(await bench.start())
            bench.clock.advance(1)
        claims = await bench.claims()
        assert [claim.run_id for claim in claims] == runs[:2]
        assert all(claim.limited for claim in claims)
        assert await bench.claims() == ()
        await bench.done(claims[0], CompleteRun(output=b"1"))
        assert await bench.claims() == ()  # they are held until somebody says that there is room
        await unhold(bench)
        await unhold(bench)  # once is enough: the one that is free already counts
        assert await bench.claimed_ids() == [runs[2]]
        assert await bench.claims() == ()

    async def test_a_run_is_not_born_under_a_limit(self, bench: Bench) -> None:
        await limit(bench, 10)
        lease = BirthLease(worker_id=bench.worker_id, token=bench.new_id(), length=LEASE)
        answer = await bench.answer(bench.start_run(lease=lease))
        assert isinstance(answer, Started)
        assert not answer.born
        assert await bench.claimed_ids() == [answer.run_id]

    async def test_keys_have_a_share_of_their_own_and_hide_nothing_behind_them(self, bench: Bench) -> None:
        await limit(bench, 4, 1)
        first = [await bench.start(limit_name=TYPE, limit_key="a") for _ in range(3)]
        bench.clock.advance(1)
        others = [await bench.start(limit_name=TYPE, limit_key=key) for key in ("b", "c")]
        bench.clock.advance(1)
        free = await bench.start(workflow_type="other")
        types = (WorkflowType(TYPE), WorkflowType("other"))
        claims = await bench.claims(types=types)
        assert {claim.run_id for claim in claims} == {first[0], *others, free}
        (held,) = [claim for claim in claims if claim.run_id == first[0]]
        await bench.done(held, CompleteRun(output=b"1"))
        await unhold(bench)
        assert await bench.claimed_ids(types=types) == [first[1]]

    async def test_a_shared_name_is_one_budget_for_several_workflows(self, bench: Bench) -> None:
        await bench.store.limits.change(NAMESPACE, Scope.WORKFLOW, "stripe", LimitChange(concurrency=1))
        first = await bench.start(limit_name="stripe", limit_key="")
        bench.clock.advance(1)
        second = await bench.start(workflow_type="other", limit_name="stripe", limit_key="")
        types = (WorkflowType(TYPE), WorkflowType("other"))
        claim = await bench.claim(first, types=types)
        await bench.done(claim, CompleteRun(output=b"1"))
        await unhold(bench)
        assert await bench.claimed_ids(types=types) == [second]

    async def test_the_key_that_has_waited_longest_gets_the_slot(self, bench: Bench) -> None:
        await limit(bench, 1)
        holder = await bench.claim(await bench.start())
        waiting = []
        for key in ("z", "a", "m"):
            bench.clock.advance(1)
            waiting.append(await bench.start(limit_name=TYPE, limit_key=key))
        assert await bench.claims() == ()
        for run_id in waiting:
            await bench.done(holder, CompleteRun(output=b"1"))
            await unhold(bench)
            holder = await bench.claim(run_id)

    async def test_runs_that_nobody_can_take_keep_no_slot_from_others(self, bench: Bench) -> None:
        await limit(bench, 1)
        holder = await bench.claim(await bench.start())
        for _ in range(3):
            bench.clock.advance(1)
            await bench.start(task_queue="nobody's")
        bench.clock.advance(1)
        waiting = await bench.start()
        assert await bench.claims(queues=(QUEUE, "nobody's")) == ()
        await bench.done(holder, CompleteRun(output=b"1"))
        for _ in range(2):
            await bench.store.limits.unhold(NAMESPACE, ())
        assert await bench.claimed_ids() == [waiting]

    async def test_a_queue_has_a_limit(self, bench: Bench) -> None:
        await bench.store.limits.change(NAMESPACE, Scope.QUEUE, QUEUE, LimitChange(concurrency=1))
        first = await bench.start()
        bench.clock.advance(1)
        second = await bench.start()
        other = await bench.start(task_queue="other")
        claims = await bench.claims(queues=(QUEUE, "other"))
        assert {claim.run_id for claim in claims} == {first, other}
        assert await bench.claims(queues=(QUEUE, "other")) == ()
        await bench.done(next(claim for claim in claims if claim.run_id == first), CompleteRun(output=b"1"))
        assert await bench.claimed_ids() == [second]

    async def test_a_run_that_parks_gives_its_slot_and_asks_again(self, bench: Bench) -> None:
        await limit(bench, 1)
        first = await bench.start()
        bench.clock.advance(1)
        second = await bench.start()
        claim = await bench.claim(first)
        await bench.done(claim, ParkRun(available_at=bench.now() + SECOND, inbox_seq=0))
        await unhold(bench)
        holder = await bench.claim(second)
        bench.clock.advance(2 * SECOND)
        assert await bench.claims() == ()
        await bench.done(holder, CompleteRun(output=b"1"))
        await unhold(bench)
        assert await bench.claimed_ids() == [first]

    async def test_a_crash_leaves_nothing_behind(self, bench: Bench) -> None:
        await limit(bench, 1)
        first = await bench.start()
        bench.clock.advance(1)
        second = await bench.start()
        claim = await bench.claim(first)
        assert await bench.claims() == ()  # the second is held
        await bench.crash(claim)
        await unhold(bench)
        (again,) = await bench.claims()
        await bench.done(again, CompleteRun(output=b"1"))
        await unhold(bench)
        (last,) = await bench.claims()
        assert {again.run_id, last.run_id} == {first, second}

    async def test_raising_or_clearing_a_limit_frees_what_it_held(self, bench: Bench) -> None:
        await limit(bench, 1)
        runs = {await bench.start() for _ in range(4)}
        taken = set(await bench.claimed_ids())
        await limit(bench, 2)
        await unhold(bench)
        taken |= set(await bench.claimed_ids())
        assert len(taken) == 2
        assert (await limit(bench, None)).most is None
        await unhold(bench)
        assert taken | set(await bench.claimed_ids()) == runs
        await unhold(bench)
        assert await bench.store.limits.namespaces() == []  # nothing is held, so nothing is left of the limit

    async def test_the_smallest_that_live_workers_declare_counts_unless_one_is_set(self, bench: Bench) -> None:
        other = bench.new_id()
        await bench.store.workers.register(bench.registration(queue_limit=7, type_limits={TYPE: 5}))
        await bench.store.workers.register(
            bench.registration(worker_id=other, limits=(DeclaredLimit(TYPE, 3, 2), DeclaredLimit("stripe", None, 4)))
        )
        await bench.store.limits.declare(NAMESPACE)
        found = {(each.scope, each.name): each for each in await bench.store.limits.read(NAMESPACE)}
        assert (found[Scope.WORKFLOW, TYPE].most, found[Scope.WORKFLOW, TYPE].key_most) == (3, 2)
        assert found[Scope.WORKFLOW, "stripe"].key_most == 4
        assert found[Scope.QUEUE, QUEUE].most == 7
        assert (await limit(bench, 9, -1)).most == 9
        assert (await limit(bench, None, -1)).most == 3
        await bench.store.workers.deregister(other)
        await bench.store.limits.declare(NAMESPACE)
        found = {(each.scope, each.name): each for each in await bench.store.limits.read(NAMESPACE)}
        assert {key: each.most for key, each in found.items()} == {(Scope.WORKFLOW, TYPE): 5, (Scope.QUEUE, QUEUE): 7}

    async def test_a_signal_does_not_move_a_run_that_is_held(self, bench: Bench) -> None:
        await limit(bench, 1)
        first = await bench.start()
        claim = await bench.claim(first)
        await bench.done(claim, ParkRun(available_at=bench.now() + SECOND, inbox_seq=0, waiting_for=("s:go",)))
        holder = await bench.claim(await bench.start())
        bench.clock.advance(2 * SECOND)
        assert await bench.claims() == ()  # the first is held
        await bench.answer(SendSignal(namespace=NAMESPACE, run_id=first, name="go", value=b"1", key="k"))
        assert (await bench.store.overview.horizon([(NAMESPACE, QUEUE)])).due.get((NAMESPACE, QUEUE), HELD) == HELD
        await bench.done(holder, CompleteRun(output=b"1"))
        await unhold(bench)
        assert (await bench.claim(first)).inbox_seq == 1

    @pytest.mark.parametrize("grace", [CANCEL_GRACE, 10 * CANCEL_GRACE])
    async def test_the_time_to_clean_up_does_not_pass_while_a_cancelled_run_waits_for_a_slot(
        self, bench: Bench, grace: int
    ) -> None:
        run_id, holder = await held_run(bench)
        asked = bench.now()
        await bench.answer(CancelRun(namespace=NAMESPACE, run_id=run_id, grace=grace))
        assert await bench.claims() == ()  # there is no room for it: it is held once more
        bench.clock.advance(grace + SECOND)
        assert (await bench.store.duties.end_cancelled_runs(10)).runs == []
        await bench.done(holder, CompleteRun(output=b"1"))
        await unhold(bench)
        assert (await bench.run(run_id)).cancel_deadline == max(asked + grace, bench.now() + CANCEL_GRACE)
        bench.clock.advance(CANCEL_GRACE - 1)
        await bench.claim(run_id)
        bench.clock.advance(CANCEL_GRACE - 1)
        assert (await bench.store.duties.end_cancelled_runs(10)).runs == []
        bench.clock.advance(1)
        assert [run.run_id for run in (await bench.store.duties.end_cancelled_runs(10)).runs] == [run_id]

    async def test_a_cancelled_run_that_never_gets_a_slot_ends_all_the_same(self, bench: Bench) -> None:
        run_id, _ = await held_run(bench)
        await bench.answer(CancelRun(namespace=NAMESPACE, run_id=run_id))
        assert await bench.claims() == ()
        bench.clock.advance(CANCEL_GRACE + HELD_GRACE - 1)
        assert (await bench.store.duties.end_cancelled_runs(10)).runs == []
        bench.clock.advance(1)
        assert [run.run_id for run in (await bench.store.duties.end_cancelled_runs(10)).runs] == [run_id]

    @pytest.mark.parametrize("grace", [CANCEL_GRACE, 10 * CANCEL_GRACE])
    async def test_the_time_to_clean_up_does_not_pass_while_its_queue_is_full(self, bench: Bench, grace: int) -> None:
        run_id, holder = await waiting_run(bench)
        asked = bench.now()
        await bench.answer(CancelRun(namespace=NAMESPACE, run_id=run_id, grace=grace))
        for _ in range(3):
            assert await bench.claims() == ()
            bench.clock.advance(grace + SECOND)
            assert (await bench.store.duties.end_cancelled_runs(10)).runs == []
        await bench.done(holder, CompleteRun(output=b"1"))
        await unhold(bench)
        bench.clock.advance(CANCEL_GRACE - 1)
        await bench.claim(run_id)
        assert (await bench.run(run_id)).cancel_deadline == max(asked + grace, bench.now() + CANCEL_GRACE)

    async def test_a_cancelled_run_has_time_to_clean_up_once_its_queue_has_a_slot(self, bench: Bench) -> None:
        run_id, holder = await waiting_run(bench)
        await bench.answer(CancelRun(namespace=NAMESPACE, run_id=run_id))
        bench.clock.advance(CANCEL_GRACE - 1)  # nobody has looked after its time yet
        await bench.done(holder, CompleteRun(output=b"1"))
        claim = await bench.claim(run_id)
        assert (await bench.run(run_id)).cancel_deadline == bench.now() + CANCEL_GRACE
        bench.clock.advance(CANCEL_GRACE - 1)
        await bench.done(claim, HandBackRun())
        await bench.claim(run_id)  # once: it has been claimed since it was told
        bench.clock.advance(1)
        assert [run.run_id for run in (await bench.store.duties.end_cancelled_runs(10)).runs] == [run_id]

    @pytest.mark.parametrize("pause", [True, False])
    async def test_a_cancelled_run_whose_queue_nobody_serves_is_ended_after_its_grace(
        self, bench: Bench, pause: bool
    ) -> None:
        run_id, holder = await waiting_run(bench)
        await bench.answer(CancelRun(namespace=NAMESPACE, run_id=run_id))
        if pause:
            await bench.store.limits.pause(NAMESPACE, Scope.QUEUE, QUEUE, "ops", "")
        else:
            await bench.done(holder, CompleteRun(output=b"1"))
        bench.clock.advance(CANCEL_GRACE)
        assert [run.run_id for run in (await bench.store.duties.end_cancelled_runs(10)).runs] == [run_id]

    async def test_waking_does_not_move_a_run_that_is_held(self, bench: Bench) -> None:
        run_id, holder = await held_run(bench)
        for back in (0, 3600 * SECOND):  # also by a clock for which it is not due any more
            bench.clock.step_back(back)
            due = (await bench.run(run_id)).available_at
            answer = await bench.store.work.wake(NAMESPACE, run_id)
            assert answer == WakeAnswer(
                run_id=run_id, woken=False, status=RunStatus.SLEEPING, task_queue=QUEUE, available_at=due or 0
            )
            assert (await bench.store.overview.horizon([(NAMESPACE, QUEUE)])).due.get((NAMESPACE, QUEUE), HELD) == HELD
        bench.clock.advance(3600 * SECOND)
        await bench.done(holder, CompleteRun(output=b"1"))
        await unhold(bench)
        await bench.claim(run_id)

    async def test_deadlines_pass_for_runs_that_are_held(self, bench: Bench) -> None:
        await limit(bench, 1)
        await bench.claim(await bench.start())
        held = await bench.start(timeout=5 * SECOND)
        assert await bench.claims() == ()
        assert (await bench.store.limits.wait_of(NAMESPACE, held)) is not None
        bench.clock.advance(5 * SECOND)
        assert [run.run_id for run in (await bench.store.duties.time_out_runs(10)).runs] == [held]
        await unhold(bench)
        assert (await bench.run(held)).status is RunStatus.TIMED_OUT

    @pytest.mark.parametrize("name", [TYPE, "stripe"])
    @pytest.mark.parametrize("fork", [None, Fork()])
    async def test_a_repeated_run_keeps_its_name_and_its_key(self, bench: Bench, name: str, fork: Fork | None) -> None:
        await bench.store.limits.change(NAMESPACE, Scope.WORKFLOW, name, LimitChange(key_concurrency=1))
        first = await bench.start(limit_name=name, limit_key="a")
        claim = await bench.claim(first)
        await bench.done(claim, CompleteRun(output=b"1"))
        await bench.claim(await bench.start(limit_name=name, limit_key="a"))
        again = RepeatRun(
            namespace=NAMESPACE, run_id=bench.new_id(), of_run_id=first, keep_steps=False, keep_id=False, fork=fork
        )
        assert isinstance(await bench.answer(again), Started)
        assert await bench.claims() == ()

    async def test_lines_behind_those_of_one_look_get_their_slots(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for store in ("postgres", "sqlite"):
            monkeypatch.setattr(f"kagzi.store.{store}.lines.LINES", 2)
        await limit(bench, None, 1)
        keys = "abcde"
        running = [await bench.claim(await bench.start(limit_name=TYPE, limit_key=key)) for key in keys]
        waiting = [await bench.start(limit_name=TYPE, limit_key=key) for key in keys]
        assert await bench.claims() == ()
        for claim in running:
            await bench.done(claim, CompleteRun(output=b"1"))
        after: tuple[str, ...] = ()
        looks = 0
        while looks == 0 or after:
            after = (await bench.store.limits.unhold(NAMESPACE, after)).after
            looks += 1
        assert (looks, sorted(await bench.claimed_ids())) == (3, sorted(waiting))

    async def test_children_firings_and_handlers_take_a_share_of_their_key(self, bench: Bench) -> None:
        await limit(bench, None, 1)
        run_id = await bench.start(workflow_type="parent", limit_key="a", on_failure=TYPE)
        parent = await bench.claim(run_id, types=(WorkflowType("parent"),))
        child = spawn(bench, task_queue=QUEUE, limit_key="a")
        fired = await made(bench, limit_key="a")
        await bench.done(parent, child)
        until(bench, fired.next_fire_at)
        await fire(bench)
        await bench.done(parent, FailRun(error=Failure.of(ValueError, "no").encode()))
        (firing,) = await runs(bench, fired)
        (handler,) = await handlers(bench)
        waiting = {child.child.run_id, firing.run_id, handler.run_id}
        assert {(await bench.run(run_id)).limit_key for run_id in waiting} == {"a"}
        while waiting:
            (claim,) = await bench.claims()  # one at a time
            waiting.remove(claim.run_id)
            await bench.done(claim, CompleteRun(output=b"1"))
            await bench.store.limits.unhold(NAMESPACE, ())

    async def test_what_is_started_without_a_name_counts_for_the_one_its_workflow_shares(self, bench: Bench) -> None:
        declared = (DeclaredLimit("stripe", 2, 1), DeclaredLimit(TYPE, shares="stripe"))
        await bench.store.workers.register(bench.registration(limits=declared))
        await bench.store.limits.declare(NAMESPACE)
        lease = BirthLease(worker_id=bench.worker_id, token=bench.new_id(), length=LEASE)
        first = await bench.answer(bench.start_run(limit_key="a", lease=lease))
        assert isinstance(first, Started)
        assert not first.born
        bench.clock.advance(1)
        second = await bench.start(workflow_type="other", limit_name="stripe", limit_key="a")
        bench.clock.advance(1)
        third = await bench.start()
        bench.clock.advance(1)
        await bench.start()
        types = (WorkflowType(TYPE), WorkflowType("other"))
        claims = await bench.claims(types=types)
        assert [claim.run_id for claim in claims] == [first.run_id, third]
        wait = await bench.store.limits.wait_of(NAMESPACE, second)
        assert wait == SlotWait(slots="stripe/a", running=1, most=1, before=0)
        await bench.done(claims[0], CompleteRun(output=b"1"))
        await bench.store.limits.unhold(NAMESPACE, ())
        assert await bench.claimed_ids(types=types) == [second]
        await bench.store.workers.deregister(bench.worker_id)
        await bench.store.limits.declare(NAMESPACE)
        assert await bench.store.limits.read(NAMESPACE) == []

    async def test_runs_of_one_batch_stand_in_line_as_their_ids_do(self, bench: Bench) -> None:
        await limit(bench, 9, 1)
        waiting = sorted([await bench.start(limit_key="a") for _ in range(4)])  # in the same microsecond
        (runs,) = await bench.claims()
        waiting.remove(runs.run_id)

        waits = [await bench.store.limits.wait_of(NAMESPACE, run_id) for run_id in waiting]

        assert [None if wait is None else wait.before for wait in waits] == [0, 1, 2]
        await bench.done(runs, CompleteRun(output=b"1"))
        await limit(bench, None)
        await bench.store.limits.change(NAMESPACE, Scope.QUEUE, QUEUE, LimitChange(concurrency=1))
        await bench.claim(await bench.start(priority=9))
        wait = await bench.store.limits.wait_of(NAMESPACE, waiting[-1])
        assert wait == SlotWait(slots=f"queue {QUEUE}", running=1, most=1, before=2)

    async def test_a_run_that_waits_is_told_for_what_and_how_many_are_before_it(self, bench: Bench) -> None:
        await limit(bench, 9, 1)
        waiting = []
        for _ in range(4):
            bench.clock.advance(1)
            waiting.append(await bench.start(limit_key="a"))
        free = await bench.start(limit_key="b")
        assert await bench.store.limits.wait_of(NAMESPACE, waiting[0]) is None
        held = {claim.run_id: claim for claim in await bench.claims()}
        assert set(held) == {waiting[0], free}
        wait = await bench.store.limits.wait_of(NAMESPACE, waiting[3])
        assert wait == SlotWait(slots=f"{TYPE}/a", running=1, most=1, before=2)
        assert await bench.store.limits.wait_of(NAMESPACE, waiting[0]) is None  # it runs
        await limit(bench, 1, None)
        wait = await bench.store.limits.wait_of(NAMESPACE, waiting[1])
        assert wait == SlotWait(slots=f"workflow {TYPE}", running=2, most=1, before=0)
        await bench.store.limits.change(NAMESPACE, Scope.QUEUE, QUEUE, LimitChange(concurrency=1))
        wait = await bench.store.limits.wait_of(NAMESPACE, waiting[2])
        assert wait == SlotWait(slots=f"queue {QUEUE}", running=2, most=1, before=1)
