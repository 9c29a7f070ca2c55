"""Failure handlers: what is started when a run fails, in the same transaction, exactly once."""

from __future__ import annotations

import msgspec
import pytest

from kagzi.api.operations import (
    CancelRun,
    ChildStart,
    CompleteRun,
    EndCancelledRun,
    FailRun,
    Fork,
    RepeatRun,
    RetryRun,
    SpawnChild,
    Started,
    TerminateRun,
)
from kagzi.api.workers import Claim
from kagzi.api.workflows import RunFilter
from kagzi.core.failed_run import FAILURE_HANDLER, FailedRun
from kagzi.core.failure import Failure
from kagzi.core.instant import SECOND, to_datetime
from kagzi.core.run import Run, RunStatus
from kagzi.core.worker import WorkflowType
from kagzi.testing.conformance.bench import LEASE, NAMESPACE, QUEUE, TYPE, Bench

DAY = 24 * 3600 * SECOND
ERROR = Failure.of(ValueError, "no").encode()


async def handlers(bench: Bench) -> list[Run]:
    """Every run that was started because another has failed."""
    found = (await bench.store.runs.search(RunFilter(namespace=NAMESPACE), None, 100)).runs
    return [run for run in found if run.handles_run_id is not None]


async def claim_handler(bench: Bench, queue: str = QUEUE, workflow_type: str = "notify") -> Claim:
    polled = await bench.store.work.claim(bench.poll(queues=(queue,), types=(WorkflowType(workflow_type),)), LEASE)
    (claim,) = polled.claims
    return claim


def told(claim: Claim) -> FailedRun:
    (failed,) = msgspec.json.decode(claim.input, type=tuple[FailedRun])
    return failed


class TestFailureHandlers:
    async def test_a_failed_run_starts_its_handler_with_all_that_is_known(self, bench: Bench) -> None:
        began = bench.now()
        claim = await bench.started_claim(
            input=b"[1]", external_id="failure-1", priority=3, trace_context="span", on_failure="notify"
        )
        bench.clock.advance(SECOND)
        applied = await bench.store.work.apply([bench.chunk(claim, FailRun(error=ERROR))])
        (handler,) = await handlers(bench)
        (woken,) = applied.woken
        assert (woken.run_id, woken.task_queue, woken.status) == (handler.run_id, QUEUE, RunStatus.PENDING)
        assert (handler.workflow_type, handler.task_queue, handler.version) == ("notify", QUEUE, "1")
        assert (handler.external_id, handler.priority, handler.deadline_at) == (None, 3, None)
        assert (handler.status, handler.created_at, handler.available_at) == (
            RunStatus.PENDING,
            bench.now(),
            bench.now(),
        )
        assert handler.handles_run_id == claim.run_id
        assert (await bench.run(claim.run_id)).on_failure == "notify"
        held = await claim_handler(bench)
        assert (held.handles_run_id, held.failed_input, held.trace_context) == (claim.run_id, b"[1]", "span")
        failed = told(held)
        assert (failed.run_id, failed.namespace, failed.workflow) == (claim.run_id, NAMESPACE, TYPE)
        assert (failed.version, failed.queue, failed.id) == ("1", QUEUE, "failure-1")
        assert (failed.status, failed.failure) == (RunStatus.FAILED, Failure.decode(ERROR))
        assert (failed.attempts, failed.crashes, failed.parent_run_id) == (0, 0, None)
        assert (failed.created_at, failed.started_at) == (to_datetime(began), to_datetime(began))
        assert failed.failed_at == to_datetime(bench.now())
        state = await bench.store.work.read_lease(NAMESPACE, held.run_id, held.token, False)
        assert state is not None
        assert state.failed_input == b"[1]"

    async def test_without_a_handler_nothing_is_started(self, bench: Bench) -> None:
        claim = await bench.started_claim()
        applied = await bench.store.work.apply([bench.chunk(claim, FailRun(error=ERROR))])
        assert (applied.woken, await handlers(bench)) == ([], [])

    async def test_a_chunk_that_comes_twice_starts_one(self, bench: Bench) -> None:
        claim = await bench.started_claim(on_failure="notify")
        chunk = bench.chunk(claim, bench.completed("a", 1), FailRun(error=ERROR))
        for _ in range(2):
            await bench.answer(chunk)
        await bench.store.work.apply([chunk, chunk])
        assert len(await handlers(bench)) == 1

    async def test_several_fail_in_one_batch(self, bench: Bench) -> None:
        for number in range(5):
            await bench.start(on_failure="notify" if number < 3 else None, input=str(number).encode() * 2000)
        claims = await bench.claims()
        await bench.store.work.apply([bench.chunk(claim, FailRun(error=ERROR)) for claim in claims])
        found = await handlers(bench)
        assert sorted(run.handles_run_id or "" for run in found) == sorted(
            claim.run_id for claim in claims if claim.input[:1] < b"3"
        )
        polled = await bench.store.work.claim(bench.poll(types=(WorkflowType("notify"),)), LEASE)
        inputs = {claim.run_id: claim.input for claim in claims}
        assert [claim.failed_input for claim in polled.claims] == [
            inputs[claim.handles_run_id or ""] for claim in polled.claims
        ]

    async def test_a_deadline_starts_one(self, bench: Bench) -> None:
        run_id = await bench.start(timeout=SECOND, on_failure="notify", on_failure_queue="ops")
        bench.clock.advance(SECOND)
        changed = await bench.store.duties.time_out_runs(100)
        assert [run.task_queue for run in changed.woken] == ["ops"]
        failed = told(await claim_handler(bench, "ops"))
        assert (failed.run_id, failed.status, failed.started_at) == (run_id, RunStatus.TIMED_OUT, None)
        await bench.store.duties.time_out_runs(100)
        assert len(await handlers(bench)) == 1

    async def test_a_run_that_kills_its_workers_starts_one(self, bench: Bench) -> None:
        claim = await bench.started_claim(on_failure="notify")
        for crashes in (1, 2):
            bench.clock.advance(LEASE)
            changed = await bench.store.duties.recover_runs(100, 2, lambda _: 0)
            assert len(changed.woken) == crashes - 1
            if crashes == 1:
                assert await handlers(bench) == []
                await bench.claim(claim.run_id)
        failed = told(await claim_handler(bench))
        assert (failed.crashes, failed.status) == (2, RunStatus.FAILED)

    async def test_a_retry_starts_none_and_the_final_failure_one(self, bench: Bench) -> None:
        claim = await bench.started_claim(on_failure="notify")
        await bench.done(claim, RetryRun(available_at=bench.now(), keep_seq=0, error=ERROR))
        assert await handlers(bench) == []
        again = await bench.claim(claim.run_id)
        await bench.done(again, FailRun(error=ERROR))
        assert told(await claim_handler(bench)).attempts == 1

    @pytest.mark.parametrize("way", ["completed", "cancelled unbegun", "cancelled", "grace is over", "terminated"])
    async def test_every_other_end_starts_none(self, bench: Bench, way: str) -> None:
        if way == "cancelled unbegun":
            run_id = await bench.start(on_failure="notify")
            await bench.answer(CancelRun(namespace=NAMESPACE, run_id=run_id))
        else:
            claim = await bench.started_claim(on_failure="notify")
            request = CancelRun(namespace=NAMESPACE, run_id=claim.run_id, grace=SECOND)
            if way == "completed":
                await bench.done(claim, CompleteRun(output=b"1"))
            elif way == "terminated":
                await bench.answer(TerminateRun(namespace=NAMESPACE, run_id=claim.run_id))
            else:
                await bench.answer(request)
                if way == "cancelled":
                    await bench.done(claim, EndCancelledRun(error=ERROR))
                else:
                    bench.clock.advance(SECOND)
                    await bench.store.duties.end_cancelled_runs(100)
        assert await handlers(bench) == []

    async def test_a_late_failure_of_a_run_that_has_ended_starts_none(self, bench: Bench) -> None:
        claim = await bench.started_claim(on_failure="notify")
        await bench.answer(TerminateRun(namespace=NAMESPACE, run_id=claim.run_id))
        await bench.send(claim, FailRun(error=ERROR))
        assert await handlers(bench) == []

    async def test_a_handler_that_fails_starts_none(self, bench: Bench) -> None:
        await bench.store.workers.register(bench.registration(types=(WorkflowType(FAILURE_HANDLER, "1", "ops"),)))
        claim = await bench.started_claim()
        await bench.done(claim, FailRun(error=ERROR))
        handler = await claim_handler(bench, "ops", FAILURE_HANDLER)
        await bench.done(handler, FailRun(error=ERROR))
        assert len(await handlers(bench)) == 1

    async def test_children_have_handlers_but_not_those_of_a_handler(self, bench: Bench) -> None:
        for under_handler in (False, True):
            parent = await bench.started_claim(on_failure="notify")
            if under_handler:
                await bench.done(parent, FailRun(error=ERROR))
                parent = await claim_handler(bench)
            child_id = bench.new_id()
            spawn = SpawnChild(
                step_id="child",
                started_at=bench.now(),
                input=b"[2]",
                child=ChildStart(
                    run_id=child_id, workflow_type=TYPE, task_queue=QUEUE, version="1", on_failure="notify", depth=1
                ),
            )
            await bench.send(parent, spawn)
            before = len(await handlers(bench))
            await bench.done(await bench.claim(child_id), FailRun(error=ERROR))
            assert len(await handlers(bench)) == before + (not under_handler)
            if not under_handler:
                failed = told(await claim_handler(bench))
                assert (failed.run_id, failed.parent_run_id) == (child_id, parent.run_id)
                await bench.done(parent, CompleteRun(output=b"1"))

    @pytest.mark.parametrize("fork", [None, Fork(), Fork(from_step="look")])
    async def test_a_handler_that_is_repeated_gets_the_same_and_still_starts_none(
        self, bench: Bench, fork: Fork | None
    ) -> None:
        claim = await bench.started_claim(on_failure="notify", input=b"x" * 2000)
        await bench.done(claim, FailRun(error=ERROR))
        handler = await claim_handler(bench)
        await bench.done(handler, bench.completed("look", 1), FailRun(error=ERROR))
        new_id = bench.new_id()
        repeat = RepeatRun(
            namespace=NAMESPACE, run_id=new_id, of_run_id=handler.run_id, keep_steps=False, keep_id=False, fork=fork
        )
        assert isinstance(await bench.answer(repeat), Started)
        again = await claim_handler(bench)
        assert (again.run_id, again.input, again.failed_input) == (new_id, handler.input, b"x" * 2000)
        await bench.done(again, FailRun(error=ERROR))
        assert len(await handlers(bench)) == 2

    async def test_a_run_that_is_repeated_has_the_handler_of_the_first(self, bench: Bench) -> None:
        claim = await bench.started_claim(on_failure="notify", on_failure_queue="ops")
        await bench.done(claim, FailRun(error=ERROR))
        new_id = bench.new_id()
        await bench.answer(RepeatRun(namespace=NAMESPACE, run_id=new_id, of_run_id=claim.run_id, keep_steps=True))
        await bench.done(await bench.claim(new_id), FailRun(error=ERROR))
        assert [(run.task_queue, run.handles_run_id) for run in await handlers(bench)] == [
            ("ops", new_id),
            ("ops", claim.run_id),
        ]

    async def test_what_a_handler_needs_outlives_the_failed_run(self, bench: Bench) -> None:
        claim = await bench.started_claim(on_failure="notify", input=b"[1]")
        await bench.done(claim, FailRun(error=ERROR))
        bench.clock.advance(31 * DAY)
        await bench.store.duties.prune_runs(100, None)
        assert await bench.store.runs.get(NAMESPACE, claim.run_id) is None
        assert (await claim_handler(bench)).failed_input == b"[1]"


class TestHandlersOfNamespaces:
    async def test_a_registered_handler_counts_until_it_is_forgotten(self, bench: Bench) -> None:
        worker = bench.registration(types=(WorkflowType(FAILURE_HANDLER, "2", "ops"),))
        await bench.done(await bench.started_claim(), FailRun(error=ERROR))
        assert await handlers(bench) == []  # nobody has registered one yet
        await bench.store.workers.register(worker)
        await bench.store.workers.deregister(worker.worker_id)
        await bench.done(await bench.started_claim(), FailRun(error=ERROR))
        (handler,) = await handlers(bench)
        assert (handler.workflow_type, handler.task_queue, handler.version) == (FAILURE_HANDLER, "ops", "2")

    async def test_an_administrator_names_one_without_a_worker(self, bench: Bench) -> None:
        changed = await bench.store.namespaces.update(NAMESPACE, None, None, None, ("notify", "ops"))
        assert changed is not None
        assert (changed.on_failure, changed.on_failure_queue) == ("notify", "ops")
        await bench.store.namespaces.update(NAMESPACE, "Shop", None, None)
        await bench.store.workers.register(bench.registration(types=(WorkflowType(FAILURE_HANDLER, "1", "other"),)))
        await bench.done(await bench.started_claim(), FailRun(error=ERROR))
        assert [(run.workflow_type, run.task_queue) for run in await handlers(bench)] == [("notify", "ops")]
        changed = await bench.store.namespaces.update(NAMESPACE, None, None, None, ("", None))
        assert changed is not None
        assert (changed.on_failure, changed.on_failure_queue) == (None, None)

    async def test_a_run_may_have_two_handlers_and_one_that_is_both_is_called_once(self, bench: Bench) -> None:
        await bench.store.namespaces.update(NAMESPACE, None, None, None, ("notify", None))
        await bench.done(await bench.started_claim(on_failure="refund", on_failure_queue="money"), FailRun(error=ERROR))
        assert sorted((run.workflow_type, run.task_queue) for run in await handlers(bench)) == [
            ("notify", QUEUE),
            ("refund", "money"),
        ]
        both = await bench.started_claim(on_failure="notify", on_failure_queue="mine")
        await bench.done(both, FailRun(error=ERROR))
        assert [run.task_queue for run in await handlers(bench) if run.handles_run_id == both.run_id] == ["mine"]

    @pytest.mark.parametrize("how", ["named", "registered"])
    async def test_handlers_of_other_namespaces_are_not_called(self, bench: Bench, how: str) -> None:
        await bench.store.namespaces.ensure("tenant")
        if how == "named":
            await bench.store.namespaces.update("tenant", None, None, None, ("notify", None))
        else:
            types = (WorkflowType(FAILURE_HANDLER, "1", "ops"),)
            await bench.store.workers.register(bench.registration(namespace="tenant", types=types))
        await bench.done(await bench.started_claim(), FailRun(error=ERROR))
        assert await handlers(bench) == []

    async def test_the_version_is_the_default_one(self, bench: Bench) -> None:
        await bench.store.versions.set_default(NAMESPACE, "notify", "7", True)
        await bench.done(await bench.started_claim(on_failure="notify"), FailRun(error=ERROR))
        assert [run.version for run in await handlers(bench)] == ["7"]
