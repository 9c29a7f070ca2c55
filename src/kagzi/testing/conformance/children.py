"""Children: runs that runs have started, whose ends they hear of."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from kagzi.api.operations import (
    CancelRun,
    ChildStart,
    ChunkAnswer,
    CompleteRun,
    EndCancelledRun,
    FailRun,
    Operation,
    ParkRun,
    RepeatRun,
    RetryRun,
    SpawnChild,
    Started,
    StartedBy,
    TakeOutcome,
    TerminateRun,
)
from kagzi.api.workers import Claim, Inbox
from kagzi.api.workflows import RunFilter
from kagzi.core.cancel import cancelled
from kagzi.core.failure import Failure
from kagzi.core.family import ParentPolicy
from kagzi.core.instant import SECOND
from kagzi.core.run import RunStatus
from kagzi.core.step import Step, StepKind, StepStatus
from kagzi.errors import InvalidRequest, WorkflowFailed
from kagzi.store.protocol.changes import Told
from kagzi.testing.conformance.bench import NAMESPACE, QUEUE, TYPE, Bench

FAR = 10**6 * SECOND
ERROR = Failure.of(WorkflowFailed, "no").encode()


def spawn(bench: Bench, step_id: str = "pay", run_id: str | None = None, **fields: Any) -> SpawnChild:
    child = ChildStart(
        **{
            "run_id": run_id or bench.new_id(),
            "workflow_type": TYPE,
            "task_queue": "children",
            "version": "1",
            **fields,
        }
    )
    at = bench.now()
    return SpawnChild(step_id=step_id, kind=StepKind.CHILD_WORKFLOW, started_at=at, input=b"[1]", child=child)


def take(bench: Bench, seq: int, step_id: str = "pay") -> TakeOutcome:
    at = bench.now()
    return TakeOutcome(step_id=step_id, kind=StepKind.CHILD_WORKFLOW, completed_seq=seq, started_at=at, finished_at=at)


def park(bench: Bench, *waits: str, seen: int = 0) -> ParkRun:
    return ParkRun(available_at=bench.now() + FAR, inbox_seq=seen, waiting_for=waits)


async def claim_child(bench: Bench) -> Claim:
    return await bench.claim(queues=("children",))


async def parent_and_child(bench: Bench, **fields: Any) -> tuple[Claim, Claim]:
    """A parent that is held, and its only child under a lease of its own."""
    parent = await bench.started_claim()
    assert await bench.send(parent, spawn(bench, **fields)) is ChunkAnswer.DONE
    return parent, await claim_child(bench)


async def apply(bench: Bench, claim: Claim, *operations: Operation) -> list[Told]:
    applied = await bench.store.work.apply([bench.chunk(claim, *operations)])
    assert applied.answers == [ChunkAnswer.DONE], applied.answers
    return applied.woken


async def step_of(bench: Bench, run_id: str, step_id: str = "pay") -> Step:
    (step,) = [step for step in await bench.steps(run_id) if step.step_id == step_id]
    return step


async def inbox(bench: Bench, claim: Claim, *, reconcile: bool = False) -> Inbox:
    found = await bench.store.signals.read_inbox(claim.namespace, claim.run_id, claim.token, (), 100, True, reconcile)
    assert found is not None
    return found


ENDS: dict[str, tuple[Operation, StepStatus]] = {
    "completed": (CompleteRun(output=b"7"), StepStatus.COMPLETED),
    "failed": (FailRun(error=ERROR), StepStatus.FAILED),
    "cancelled": (EndCancelledRun(error=cancelled()), StepStatus.CANCELLED),
}


class TestChildren:
    async def test_a_child_is_a_run_of_its_own_that_knows_its_parent(self, bench: Bench) -> None:
        parent = await bench.started_claim()
        child = spawn(bench, priority=3, timeout=5 * SECOND, external_id="c-1", depth=4, trace_context="t")
        (told,) = await apply(bench, parent, child)
        assert (told.run_id, told.status, told.task_queue) == (child.child.run_id, RunStatus.PENDING, "children")
        assert told.workflow_type == TYPE
        run = await bench.run(child.child.run_id)
        assert (run.parent_run_id, run.parent_step_id, run.parent_policy) == (parent.run_id, "pay", ParentPolicy.CANCEL)
        assert (run.depth, run.input, run.priority, run.external_id) == (4, b"[1]", 3, "c-1")
        assert run.deadline_at == bench.now() + 5 * SECOND
        claim = await claim_child(bench)
        assert (claim.family, claim.depth, claim.trace_context) == (True, 4, "t")
        step = await step_of(bench, parent.run_id)
        assert (step.status, step.child_run_id, step.kind) == (
            StepStatus.RUNNING,
            child.child.run_id,
            StepKind.CHILD_WORKFLOW,
        )
        assert (step.completed_seq, step.input) == (None, b"[1]")

    async def test_large_inputs_and_outputs_reach_the_other_side(self, bench: Bench) -> None:
        parent = await bench.started_claim()
        large = b'"' + b"x" * 5000 + b'"'
        child = spawn(bench)
        await apply(
            bench,
            parent,
            SpawnChild(step_id="pay", kind=StepKind.CHILD_WORKFLOW, started_at=1, input=large, child=child.child),
        )
        claim = await claim_child(bench)
        assert claim.input == large
        await bench.done(claim, CompleteRun(output=large))
        assert (await step_of(bench, parent.run_id)).output == large

    async def test_a_spawn_that_comes_twice_starts_one_child(self, bench: Bench) -> None:
        parent = await bench.started_claim()
        child = spawn(bench)
        assert len(await apply(bench, parent, child)) == 1
        assert await apply(bench, parent, child) == []
        applied = await bench.store.work.apply([bench.chunk(parent, child), bench.chunk(parent, child)])
        assert (applied.answers, applied.woken) == ([ChunkAnswer.DONE] * 2, [])
        claim = await claim_child(bench)
        await bench.done(claim, CompleteRun(output=b"7"))
        assert await apply(bench, parent, child) == []
        assert (await step_of(bench, parent.run_id)).output == b"7"

    async def test_many_children_in_one_chunk(self, bench: Bench) -> None:
        parent = await bench.started_claim()
        children = [spawn(bench, f"pay#{number}") for number in range(2, 132)]
        assert len(await apply(bench, parent, *children)) == 130
        assert len(await bench.claims(queues=("children",), limit=200)) == 130

    async def test_a_spawn_under_a_lost_lease_starts_nothing(self, bench: Bench) -> None:
        parent = await bench.started_claim()
        await bench.answer(TerminateRun(namespace=NAMESPACE, run_id=parent.run_id))
        assert await bench.send(parent, spawn(bench)) is ChunkAnswer.LEASE_LOST
        assert await bench.claims(queues=("children",)) == ()

    @pytest.mark.parametrize("end", ENDS)
    async def test_an_end_is_told_in_its_own_transaction(self, bench: Bench, end: str) -> None:
        parent, child = await parent_and_child(bench)
        if end == "cancelled":
            await bench.answer(CancelRun(namespace=NAMESPACE, run_id=child.run_id))
        operation, status = ENDS[end]
        bench.clock.advance(SECOND)
        (told,) = await apply(bench, child, operation)
        assert (told.run_id, told.status, told.inbox_seq) == (parent.run_id, RunStatus.RUNNING, 1)
        step = await step_of(bench, parent.run_id)
        assert (step.status, step.completed_seq, step.finished_at) == (status, None, bench.now())
        assert step.output == (b"7" if end == "completed" else None)
        assert (step.error is None) == (end == "completed")
        found = await inbox(bench, parent)
        assert (found.inbox_seq, [each.child_run_id for each in found.outcomes]) == (1, [child.run_id])

    @pytest.mark.parametrize("way", ["deadline", "poison", "terminate", "grace", "unbegun"])
    async def test_every_other_end_is_told_as_well(self, bench: Bench, way: str) -> None:
        parent = await bench.started_claim(lease_length=FAR)
        await apply(bench, parent, spawn(bench, timeout=20 * SECOND if way == "deadline" else None))
        run_id = (await step_of(bench, parent.run_id)).child_run_id
        assert run_id is not None
        woken: list[Told] = []
        if way == "unbegun":
            woken = (await bench.store.work.apply([CancelRun(namespace=NAMESPACE, run_id=run_id)])).woken
        else:
            await claim_child(bench)
        if way == "terminate":
            woken = (await bench.store.work.apply([TerminateRun(namespace=NAMESPACE, run_id=run_id)])).woken
        elif way == "grace":
            await bench.answer(CancelRun(namespace=NAMESPACE, run_id=run_id, grace=SECOND))
            bench.clock.advance(2 * SECOND)
            woken = (await bench.store.duties.end_cancelled_runs(10)).woken
        elif way == "deadline":
            bench.clock.advance(21 * SECOND)
            woken = (await bench.store.duties.time_out_runs(10)).woken
        elif way == "poison":
            bench.clock.advance(31 * SECOND)
            woken = (await bench.store.duties.recover_runs(10, 1, lambda _: 0)).woken
        assert [told.run_id for told in woken] == [parent.run_id]
        step = await step_of(bench, parent.run_id)
        assert step.status is (StepStatus.FAILED if way in ("deadline", "poison") else StepStatus.CANCELLED)
        assert Failure.decode(step.error or b"").message

    async def test_a_parent_that_waits_for_it_is_woken(self, bench: Bench) -> None:
        """At once, and by its step the child ends no earlier than it was spawned: a worker's clock may be ahead."""
        parent = await bench.started_claim()
        spawned = replace(spawn(bench), started_at=bench.now() + SECOND)
        await bench.done(parent, spawned)
        child = await claim_child(bench)
        await bench.done(parent, park(bench, f"c:{child.run_id}"))
        assert await bench.claims() == ()
        (told,) = await apply(bench, child, CompleteRun(output=b"7"))
        assert (told.status, told.available_at) == (RunStatus.SLEEPING, bench.now())
        claim = await bench.claim(parent.run_id)
        assert (claim.inbox_seq, claim.family) == (1, True)
        (step,) = claim.history
        assert (step.status, step.output, step.completed_seq) == (StepStatus.COMPLETED, b"7", None)
        assert step.finished_at == spawned.started_at

    async def test_a_parent_that_waits_for_any_child_is_woken(self, bench: Bench) -> None:
        parent, child = await parent_and_child(bench)
        await bench.done(parent, park(bench, "c:*"))
        await bench.done(child, CompleteRun(output=b"7"))
        await bench.claim(parent.run_id)

    async def test_a_parent_that_waits_for_something_else_sleeps_on(self, bench: Bench) -> None:
        parent, child = await parent_and_child(bench)
        await bench.done(parent, park(bench, f"c:{bench.new_id()}", "s:approved"))
        (told,) = await apply(bench, child, CompleteRun(output=b"7"))
        assert told.available_at > bench.now()
        assert await bench.claims() == ()

    async def test_a_child_that_ends_first_keeps_its_parent_from_parking(self, bench: Bench) -> None:
        parent, child = await parent_and_child(bench)
        await bench.done(child, CompleteRun(output=b"7"))
        assert await bench.send(parent, park(bench, f"c:{child.run_id}")) is ChunkAnswer.NEWS
        await bench.done(parent, take(bench, 1), park(bench, "s:x", seen=1))

    async def test_parent_and_child_in_one_batch(self, bench: Bench) -> None:
        """Whichever is written first: the parent parks and is woken, or does not park."""
        for turn in range(2):
            parent, child = await parent_and_child(bench)
            chunks = [
                bench.chunk(parent, park(bench, f"c:{child.run_id}")),
                bench.chunk(child, CompleteRun(output=b"7")),
            ]
            answers = await bench.apply(chunks if turn else chunks[::-1])
            assert ChunkAnswer.LEASE_LOST not in answers
            if ChunkAnswer.NEWS not in answers:
                parent = await bench.claim(parent.run_id)
            assert len((await inbox(bench, parent)).outcomes) == 1
            await bench.done(parent, CompleteRun(output=b"1"))

    async def test_an_outcome_that_is_taken_becomes_an_event(self, bench: Bench) -> None:
        parent, child = await parent_and_child(bench)
        await bench.done(child, FailRun(error=ERROR))
        bench.clock.advance(SECOND)
        await bench.done(parent, take(bench, 1))
        await bench.done(parent, take(bench, 1))
        step = await step_of(bench, parent.run_id)
        assert (step.completed_seq, step.finished_at, step.error) == (1, bench.now(), ERROR)
        assert (await inbox(bench, parent)).outcomes == ()

    async def test_an_outcome_that_is_not_there_cannot_be_taken(self, bench: Bench) -> None:
        parent, child = await parent_and_child(bench)
        wrong = bench.chunk(parent, bench.completed("other", 1), take(bench, 2))
        fine = await bench.started_claim()
        refused, done = await bench.apply([wrong, bench.chunk(fine, bench.completed("x", 1))])
        assert isinstance(refused, InvalidRequest)
        assert done is ChunkAnswer.DONE
        assert [step.step_id for step in await bench.steps(parent.run_id)] == ["pay"]
        await bench.done(child, CompleteRun(output=b"7"))
        await bench.done(parent, bench.completed("other", 1), take(bench, 2))

    async def test_an_id_that_is_taken_is_an_outcome(self, bench: Bench) -> None:
        await bench.start(external_id="c-1", task_queue="elsewhere")
        parent = await bench.started_claim()
        child = spawn(bench, external_id="c-1")
        (told,) = await apply(bench, parent, child)
        assert (told.run_id, told.inbox_seq, told.workflow_type) == (parent.run_id, 1, "")
        step = await step_of(bench, parent.run_id)
        assert step.status is StepStatus.FAILED
        assert "c-1" in Failure.decode(step.error or b"").message
        assert await bench.store.runs.get(NAMESPACE, child.child.run_id) is None
        assert await apply(bench, parent, child) == []
        assert (await inbox(bench, parent)).inbox_seq == 1

    async def test_a_place_that_is_taken_is_an_outcome(self, bench: Bench) -> None:
        """Another version of the code had a step where this one has a child, and left an attempt of it behind."""
        parent = await bench.started_claim()
        await bench.done(parent, bench.failed("pay", retry_at=bench.now() + SECOND))
        child, other = spawn(bench), spawn(bench, "ship")
        told = await apply(bench, parent, child, other)
        assert {each.run_id for each in told} == {parent.run_id, other.child.run_id}
        (outcome,) = (await inbox(bench, parent)).outcomes
        assert (outcome.step_id, outcome.status, outcome.child_run_id) == ("pay", StepStatus.FAILED, child.child.run_id)
        failure = Failure.decode(outcome.error or b"")
        assert failure.type == "kagzi.errors.Conflict"
        assert "step pay of this run is recorded, and not as a child" in failure.message
        assert await bench.store.runs.get(NAMESPACE, child.child.run_id) is None
        assert await apply(bench, parent, child) == []  # it came twice
        await bench.done(parent, take(bench, 1))
        assert (await step_of(bench, parent.run_id)).completed_seq == 1

    async def test_an_id_that_is_taken_keeps_its_parent_from_parking(self, bench: Bench) -> None:
        await bench.start(external_id="c-1", task_queue="elsewhere")
        parent = await bench.started_claim()
        child = spawn(bench, external_id="c-1")
        assert await bench.send(parent, child, park(bench, f"c:{child.child.run_id}")) is ChunkAnswer.NEWS
        assert (await bench.run(parent.run_id)).status is RunStatus.RUNNING

    async def test_a_finished_parent_is_not_told(self, bench: Bench) -> None:
        parent, child = await parent_and_child(bench, policy=ParentPolicy.ABANDON)
        await bench.done(parent, CompleteRun(output=b"1"))
        before = await step_of(bench, parent.run_id)
        assert await apply(bench, child, CompleteRun(output=b"7")) == []
        assert await step_of(bench, parent.run_id) == before

    async def test_a_last_act_may_be_a_spawn(self, bench: Bench) -> None:
        parent = await bench.started_claim()
        await bench.done(parent, spawn(bench, policy=ParentPolicy.ABANDON), CompleteRun(output=b"1", family=True))
        await bench.done(await claim_child(bench), CompleteRun(output=b"7"))
        assert await bench.store.duties.cascade_ends(10) == []

    async def test_children_follow_the_end_of_their_parent_by_their_policies(self, bench: Bench) -> None:
        parent = await bench.started_claim()
        policies = (ParentPolicy.CANCEL, ParentPolicy.ABANDON, ParentPolicy.TERMINATE)
        children = [spawn(bench, f"pay[{policy}]", policy=policy) for policy in policies]
        await apply(bench, parent, *children)
        await bench.claims(queues=("children",))
        assert (await bench.store.overview.horizon([])).cascade is None
        assert await bench.store.duties.cascade_ends(10) == []
        await bench.done(parent, CompleteRun(output=b"1"))
        assert (await bench.store.overview.horizon([])).cascade == bench.now()
        requests = await bench.store.duties.cascade_ends(10)
        assert {type(request): request.run_id for request in requests} == {
            CancelRun: children[0].child.run_id,
            TerminateRun: children[2].child.run_id,
        }
        await bench.apply(requests)
        assert await bench.store.duties.cascade_ends(10) == []
        assert (await bench.store.overview.horizon([])).cascade is None
        assert (await bench.run(children[1].child.run_id)).status is RunStatus.RUNNING

    async def test_a_cascade_goes_on_where_it_was(self, bench: Bench) -> None:
        parent = await bench.started_claim()
        await apply(bench, parent, *[spawn(bench, f"pay#{number}") for number in range(2, 7)])
        await bench.answer(TerminateRun(namespace=NAMESPACE, run_id=parent.run_id))
        ended = 0
        while requests := await bench.store.duties.cascade_ends(2):
            assert len(requests) <= 2
            ended += len(requests)
            await bench.apply(requests)
        assert ended == 5
        assert await bench.claims(queues=("children",)) == ()

    async def test_a_cascade_outlives_its_run(self, bench: Bench) -> None:
        parent, child = await parent_and_child(bench)
        await bench.done(parent, CompleteRun(output=b"1"))
        bench.clock.advance(31 * 86_400 * SECOND)
        assert (await bench.store.duties.prune_runs(100, None))[0] == 1
        (request,) = await bench.store.duties.cascade_ends(10)
        assert request.run_id == child.run_id

    async def test_an_outcome_outlives_its_child(self, bench: Bench) -> None:
        parent, child = await parent_and_child(bench)
        await bench.done(child, CompleteRun(output=b"7"))
        bench.clock.advance(31 * 86_400 * SECOND)
        assert (await bench.store.duties.prune_runs(100, None))[0] == 1
        assert (await step_of(bench, parent.run_id)).output == b"7"

    async def test_a_retry_keeps_children_that_run_or_have_succeeded(self, bench: Bench) -> None:
        parent = await bench.started_claim()
        await apply(bench, parent, *[spawn(bench, name) for name in ("runs", "seen", "unseen", "fails")])
        ids = {step.step_id: step.child_run_id for step in await bench.steps(parent.run_id)}
        claims = {claim.run_id: claim for claim in await bench.claims(queues=("children",))}
        for name in ("seen", "unseen"):
            await bench.done(claims[ids[name] or ""], CompleteRun(output=b"7"))
        await bench.done(claims[ids["fails"] or ""], FailRun(error=ERROR))
        await bench.done(parent, take(bench, 1, "seen"), take(bench, 2, "fails"))
        await bench.done(parent, RetryRun(available_at=bench.now(), keep_seq=0, error=ERROR))
        claim = await bench.claim(parent.run_id)
        found = {step.step_id: (step.status, step.completed_seq) for step in claim.history}
        assert found == {
            "runs": (StepStatus.RUNNING, None),
            "seen": (StepStatus.COMPLETED, None),
            "unseen": (StepStatus.COMPLETED, None),
        }
        assert len(await apply(bench, claim, spawn(bench, "fails"))) == 1
        await bench.done(claims[ids["runs"] or ""], CompleteRun(output=b"8"))
        assert {step.output for step in (await inbox(bench, claim)).outcomes} == {b"7", b"8"}

    async def test_a_repeat_keeps_what_children_have_returned(self, bench: Bench) -> None:
        parent, child = await parent_and_child(bench)
        await bench.done(child, CompleteRun(output=b"7"))
        await bench.done(parent, take(bench, 1), FailRun(error=ERROR))
        run_id = bench.new_id()
        answer = await bench.answer(
            RepeatRun(namespace=NAMESPACE, run_id=run_id, of_run_id=parent.run_id, keep_steps=True)
        )
        assert isinstance(answer, Started)
        claim = await bench.claim(run_id)
        assert [(step.output, step.completed_seq) for step in claim.history] == [(b"7", 1)]
        assert (await bench.run(run_id)).parent_run_id is None

    async def test_a_repeat_stops_before_a_child_that_was_cancelled(self, bench: Bench) -> None:
        parent = await bench.started_claim()
        await apply(bench, parent, spawn(bench))
        child = (await step_of(bench, parent.run_id)).child_run_id or ""
        await bench.answer(TerminateRun(namespace=NAMESPACE, run_id=child))
        await bench.done(parent, bench.completed("first", 1), take(bench, 2), FailRun(error=ERROR))
        run_id = bench.new_id()
        await bench.answer(RepeatRun(namespace=NAMESPACE, run_id=run_id, of_run_id=parent.run_id, keep_steps=True))
        assert [step.step_id for step in (await bench.claim(run_id)).history] == ["first"]

    async def test_ends_that_told_nobody_are_found(self, bench: Bench) -> None:
        """As a server of a version before children leaves them, which says that there is no family."""
        parent, child = await parent_and_child(bench)
        await bench.done(child, CompleteRun(output=b"7", family=False))
        assert (await step_of(bench, parent.run_id)).status is StepStatus.RUNNING
        assert (await inbox(bench, parent)).outcomes == ()
        found = await inbox(bench, parent, reconcile=True)
        assert ([step.output for step in found.outcomes], found.inbox_seq) == ([b"7"], 1)
        assert (await inbox(bench, parent, reconcile=True)).inbox_seq == 1
        stale = (parent.namespace, parent.run_id, child.token, (), 100, True)
        assert await bench.store.signals.read_inbox(*stale) is None, "outcomes are for the holder of the lease"

    async def test_children_that_are_gone_are_found(self, bench: Bench) -> None:
        parent, child = await parent_and_child(bench)
        await bench.done(child, CompleteRun(output=b"7", family=False))
        bench.clock.advance(31 * 86_400 * SECOND)
        await bench.store.duties.prune_runs(100, None)
        (step,) = (await inbox(bench, parent, reconcile=True)).outcomes
        assert step.status is StepStatus.FAILED
        assert child.run_id in Failure.decode(step.error or b"").message

    async def test_a_finished_run_is_not_told_of_children_that_are_gone(self, bench: Bench) -> None:
        """Whoever asks has lost its lease."""
        parent, child = await parent_and_child(bench)
        await bench.done(child, CompleteRun(output=b"7", family=False))
        bench.clock.advance(31 * 86_400 * SECOND)
        await bench.store.duties.prune_runs(100, None)
        await bench.done(parent, CompleteRun(output=b"1"))
        asked = (parent.namespace, parent.run_id, parent.token, (), 100, True, True)
        assert await bench.store.signals.read_inbox(*asked) is None
        assert (await step_of(bench, parent.run_id)).status is StepStatus.RUNNING

    async def test_children_are_listed(self, bench: Bench) -> None:
        parent = await bench.started_claim()
        children = [spawn(bench, f"pay#{number}") for number in range(2, 5)]
        await apply(bench, parent, *children)
        await bench.start()
        listed = await bench.store.runs.search(RunFilter(namespace=NAMESPACE, parent_run_id=parent.run_id), None, 10)
        assert [run.run_id for run in listed.runs] == [child.child.run_id for child in reversed(children)]

    async def test_a_run_without_a_family_has_none(self, bench: Bench) -> None:
        claim = await bench.started_claim()
        assert (claim.family, claim.depth) == (False, 0)
        applied = await bench.store.work.apply([bench.chunk(claim, CompleteRun(output=b"1", family=False))])
        assert (applied.answers, applied.woken) == ([ChunkAnswer.DONE], [])
        run = await bench.run(claim.run_id)
        assert (run.parent_run_id, run.parent_policy, run.depth) == (None, None, 0)
        assert run.task_queue == QUEUE

    async def test_a_run_remembers_the_step_that_started_it_and_is_no_child(self, bench: Bench) -> None:
        starter = await bench.started_claim()
        by = StartedBy(starter.run_id, "send", 2)
        asked = bench.start_run(started_by=by, task_queue="children")
        # Alone, and in a batch beside one that nobody's step has started.
        beside = bench.start_run(task_queue="children")
        third = bench.start_run(started_by=by, task_queue="children")
        await bench.answer(asked)
        await bench.apply([beside, third])
        for run_id in (asked.run_id, third.run_id):
            run = await bench.run(run_id)
            assert (run.parent_run_id, run.parent_step_id, run.parent_attempt) == (starter.run_id, "send", 2)
            assert (run.parent_policy, run.depth) == (ParentPolicy.NONE, 0)
        assert (await bench.run(beside.run_id)).parent_run_id is None
        found = await bench.store.runs.search(RunFilter(namespace=NAMESPACE, parent_run_id=starter.run_id), None, 10)
        assert {run.run_id for run in found.runs} == {asked.run_id, third.run_id}
        (claim, *_) = await bench.claims(queues=("children",), limit=1)
        assert not claim.family
        # The end of neither is told to the other.
        assert await apply(bench, claim, CompleteRun(output=b"1")) == []
        await bench.done(starter, CompleteRun(output=b"1"))
        assert (await bench.run(third.run_id)).status is RunStatus.PENDING
