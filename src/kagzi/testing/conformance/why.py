"""The why sentence over rows of a store: what it needs is read back as it was written."""

from __future__ import annotations

import pytest

from kagzi.api.admin import WorkerFilter
from kagzi.api.operations import CancelRun, CompleteRun, ParkRun, RetryRun, SendSignal
from kagzi.core.failure import Failure
from kagzi.core.instant import SECOND, to_datetime
from kagzi.core.run import RunStatus
from kagzi.core.wake import NEWS_ALONE, THEN_DEFAULT, awaits_moment
from kagzi.core.why import why
from kagzi.core.worker import Worker, WorkerStatus, WorkflowType
from kagzi.testing.conformance.bench import NAMESPACE, QUEUE, STALE, TYPE, Bench

HOUR = 3600 * SECOND
DECLINED = Failure.of(ValueError, "card declined").encode()


async def sentence(bench: Bench, run_id: str) -> str | None:
    """As `api.explanation` asks an engine, so this asks the store."""
    run, store = await bench.run(run_id), bench.store

    async def online(queue: str | None) -> list[Worker]:
        wanted = WorkerFilter(namespace=NAMESPACE, task_queue=queue, status=WorkerStatus.ONLINE)
        return await store.workers.page(wanted, None, 100, STALE)

    signals = await store.signals.page(NAMESPACE, run_id, 0, 100)
    holder = None if run.worker_id is None else await store.workers.get(run.worker_id, NAMESPACE, STALE)
    return why(
        run,
        now=bench.now(),
        steps=await bench.steps(run_id),
        holder=holder,
        serving=await online(QUEUE),
        others=await online(None),
        untaken=[signal.name for signal in signals if signal.taken_seq is None],
    )


class TestWhy:
    async def test_no_worker_at_all(self, bench: Bench) -> None:
        run_id = await bench.start()
        assert await sentence(bench, run_id) == (
            "Waiting for a worker: no worker that is online serves queue orders, and no other worker is online either."
        )

    async def test_workers_of_other_queues_only(self, bench: Bench) -> None:
        await bench.store.workers.register(bench.registration(queues=("mail", "sms")))
        run_id = await bench.start()
        assert await sentence(bench, run_id) == (
            "Waiting for a worker: no worker that is online serves queue orders; those online serve queues mail, sms."
        )

    @pytest.mark.parametrize(
        ("offered", "there"),
        [
            (WorkflowType("refund"), "no worker of queue orders has workflow checkout; they have workflow refund"),
            (WorkflowType(TYPE, "7"), "no worker of queue orders has version 1 of checkout; they have version 7"),
        ],
    )
    async def test_workers_without_the_workflow_or_its_version(
        self, bench: Bench, offered: WorkflowType, there: str
    ) -> None:
        await bench.store.workers.register(bench.registration(types=(offered,)))
        assert await sentence(bench, await bench.start()) == f"Waiting for a worker: {there}."

    async def test_workers_that_are_full(self, bench: Bench) -> None:
        await bench.store.workers.register(bench.registration(concurrency=1))
        await bench.started_claim()
        run_id = await bench.start()
        bench.clock.advance(5 * SECOND)
        assert await sentence(bench, run_id) == (
            "Waiting for 5s for one of 1 worker of queue orders to take it, with 1 of 1 slot in use; they are full."
        )

    async def test_a_delayed_start(self, bench: Bench) -> None:
        said = await sentence(bench, await bench.start(delay=HOUR))
        assert said is not None
        assert said.startswith("Delayed: it starts at ")
        assert said.endswith(" UTC (in 1h).")

    async def test_a_sleep(self, bench: Bench) -> None:
        claim = await bench.started_claim()
        await bench.done(claim, ParkRun(available_at=bench.now() + HOUR, inbox_seq=0))
        said = await sentence(bench, claim.run_id)
        assert said is not None
        assert said.startswith("Sleeping until ")
        assert said.endswith(" UTC (in 1h).")

    @pytest.mark.parametrize(
        ("beside", "until"),
        [
            ((), ", until {} (in 58m 30s)."),
            ((THEN_DEFAULT,), ", until {} (in 58m 30s), then default."),
            ((NEWS_ALONE,), "."),
        ],
        ids=["with a timeout", "with a default", "alone"],
    )
    async def test_a_wait_for_signals(self, bench: Bench, beside: tuple[str, ...], until: str) -> None:
        claim = await bench.started_claim()
        waits, alone = ("s:approved", "s:denied", *beside), NEWS_ALONE in beside
        park = ParkRun(available_at=bench.now() + HOUR, inbox_seq=0, waiting_for=waits)
        await bench.done(claim, bench.completed("charge", 1), park)
        bench.clock.advance(90 * SECOND)
        said = await sentence(bench, claim.run_id)
        assert said is not None
        assert said.startswith("Waiting for signals approved or denied since ")
        moment = to_datetime(bench.now() + HOUR - 90 * SECOND).strftime("%Y-%m-%d %H:%M:%S UTC")
        assert said.endswith(" UTC (1m 30s)" + until.format(moment))
        # To wake it is offered if, and only if, it ends the wait.
        offered = awaits_moment(await bench.run(claim.run_id), bench.now())
        answer = await bench.store.work.wake(NAMESPACE, claim.run_id)
        assert answer is not None
        assert offered == answer.woken == (not alone)
        assert len(await bench.claims()) == answer.woken

    async def test_a_signal_that_it_does_not_wait_for(self, bench: Bench) -> None:
        claim = await bench.started_claim()
        park = ParkRun(available_at=bench.now() + HOUR, inbox_seq=0, waiting_for=("s:approved",))
        await bench.done(claim, park)
        for key in ("one", "two"):
            await bench.answer(
                SendSignal(namespace=NAMESPACE, run_id=claim.run_id, name="aproved", value=b"true", key=key)
            )
        said = await sentence(bench, claim.run_id)
        assert said is not None
        assert said.startswith("Waiting for signal approved since ")
        assert said.endswith(". It was sent signal aproved, which it does not wait for.")

    async def test_what_was_waited_for_is_forgotten_with_the_wait(self, bench: Bench) -> None:
        claim = await bench.started_claim()
        await bench.done(claim, ParkRun(available_at=bench.now() + SECOND, inbox_seq=0, waiting_for=("s:approved",)))
        assert (await bench.run(claim.run_id)).waiting_for == ("s:approved",)
        bench.clock.advance(2 * SECOND)
        again = await bench.claim(claim.run_id)
        assert (await bench.run(claim.run_id)).waiting_for == ()
        await bench.done(again, CompleteRun(output=b"1"))
        assert (await bench.run(claim.run_id)).waiting_for == ()

    async def test_a_step_that_is_tried_again(self, bench: Bench) -> None:
        claim = await bench.started_claim()
        retry_at = bench.now() + HOUR
        failed = bench.failed("charge", attempt=2, retry_at=retry_at, error=DECLINED)
        await bench.done(claim, failed, ParkRun(available_at=retry_at, inbox_seq=0))
        said = await sentence(bench, claim.run_id)
        assert said is not None
        assert said.startswith("Attempt 3 of step charge is at ")
        assert said.endswith(" UTC (in 1h), after ValueError: card declined.")

    async def test_a_run_that_is_tried_again(self, bench: Bench) -> None:
        claim = await bench.started_claim()
        await bench.done(claim, RetryRun(available_at=bench.now() + HOUR, keep_seq=0, error=DECLINED))
        said = await sentence(bench, claim.run_id)
        assert said is not None
        assert said.startswith("To be tried again: attempt 2 of the run is at ")
        assert said.endswith(" UTC (in 1h), after ValueError: card declined.")

    async def test_a_run_that_is_held_and_the_step_it_runs(self, bench: Bench) -> None:
        await bench.store.workers.register(bench.registration(hostname="blue", pid=42))
        claim = await bench.started_claim()
        held = f"Held by worker {bench.worker_id[-8:]} (process 42 on blue), last heard of"
        assert await sentence(bench, claim.run_id) == (
            f"{held} 1s ago; no step has been running for longer than a moment."
        )
        await bench.done(claim, bench.begun("charge", attempt=2), bench.begun("pack"))
        bench.clock.advance(7 * SECOND)
        assert await sentence(bench, claim.run_id) == (
            f"{held} 7s ago; step charge, attempt 2, has been running for 7s, and 1 more."
        )

    async def test_a_worker_that_is_lost_and_a_run_that_may_be_why(self, bench: Bench) -> None:
        await bench.store.workers.register(bench.registration(hostname="blue", pid=42))
        claim = await bench.started_claim()
        bench.clock.advance(claim.lease + 3 * SECOND)
        assert await sentence(bench, claim.run_id) == (
            f"Its worker is lost: worker {bench.worker_id[-8:]} (process 42 on blue) let the lease run out 3s ago. "
            "Another worker takes the run over within moments."
        )
        await bench.recover()
        await bench.crash(await bench.claim(claim.run_id))
        assert await sentence(bench, claim.run_id) == (
            "Waiting for a worker: no worker that is online serves queue orders, and no other worker is online either. "
            "Its workers were lost 2 times in a row without anything new recorded: it may be what ends them."
        )
        await bench.recover(backoff=lambda crashes: crashes * HOUR)
        await bench.claim(claim.run_id)
        bench.clock.advance(claim.lease)
        await bench.recover(max_crashes=9, backoff=lambda _: HOUR)
        said = await sentence(bench, claim.run_id)
        assert said is not None
        assert said.startswith(
            "To be taken again: its worker was lost 3 times in a row, so another one may have it at "
        )

    async def test_a_cancellation_under_a_lease_and_without(self, bench: Bench) -> None:
        claim = await bench.started_claim()
        await bench.answer(CancelRun(namespace=NAMESPACE, run_id=claim.run_id, grace=HOUR))
        said = await sentence(bench, claim.run_id)
        assert said is not None
        assert said.startswith("Cancelling: it may clean up until ")
        assert f"(in 1h). Held by worker {bench.worker_id}" in said
        parked = await bench.started_claim()
        await bench.done(parked, ParkRun(available_at=bench.now() + HOUR, inbox_seq=0))
        await bench.answer(CancelRun(namespace=NAMESPACE, run_id=parked.run_id, grace=HOUR))
        said = await sentence(bench, parked.run_id)
        assert said is not None
        assert said.startswith("Cancelling: a worker has to take it, so that it can clean up until ")
        assert ", but no worker that is online serves queue orders" in said

    async def test_a_run_that_has_finished(self, bench: Bench) -> None:
        claim = await bench.started_claim()
        await bench.done(claim, CompleteRun(output=b"1"))
        run = await bench.run(claim.run_id)
        assert (run.status, run.lease_expires_at, run.cancel_deadline) == (RunStatus.COMPLETED, None, None)
        assert await sentence(bench, claim.run_id) is None
