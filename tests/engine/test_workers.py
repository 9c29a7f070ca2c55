from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kagzi.api.operations import ChunkAnswer
from kagzi.api.workers import Heartbeat
from kagzi.core.instant import SECOND
from kagzi.core.run import RunStatus
from kagzi.core.worker import WorkflowType
from kagzi.engine.settings import EngineSettings
from kagzi.errors import InvalidRequest, PayloadTooLarge, Unavailable
from tests.engine.support import (
    OTHER_WORKER,
    WORKER,
    SlotWorker,
    chunk,
    claim_one,
    complete,
    completed_step,
    count_calls,
    hand_back,
    new_engine,
    new_poll,
    new_registration,
    new_start,
    park,
    run,
)


def test_a_worker_learns_its_lease_and_heartbeat() -> None:
    async def main() -> None:
        async with new_engine(settings=EngineSettings(lease=9 * SECOND)) as engine:
            registered = await engine.workers.register(new_registration(namespace="new"))
            assert (registered.lease, registered.heartbeat) == (9 * SECOND, 3 * SECOND)
            assert [w.worker_id for w in await engine.store.workers.rows("new")] == [WORKER]

    run(main)


@pytest.mark.parametrize(
    "fields",
    [
        {"worker_id": "me"},
        {"namespace": ""},
        {"queues": ()},
        {"queues": ("a\0",)},
        {"queues": tuple(str(n) for n in range(101))},
        {"types": (WorkflowType(""),)},
        {"concurrency": 0},
        {"pid": -1},
        {"hostname": "\ud800"},
    ],
)
def test_bad_registrations_are_refused(fields: dict[str, Any]) -> None:
    async def main() -> None:
        async with new_engine() as engine:
            with pytest.raises(InvalidRequest):
                await engine.workers.register(new_registration(**fields))

    run(main)


@pytest.mark.parametrize(
    "fields",
    [
        {"worker_id": "me"},
        {"token": ""},
        {"limit": 0},
        {"limit": -5},
        {"ending": -1},
        {"limit": 2, "ending": 3},
        {"wait": -1},
        {"number": 0},
        {"queues": ()},
    ],
)
def test_bad_polls_are_refused(fields: dict[str, Any]) -> None:
    async def main() -> None:
        async with new_engine() as engine:
            with pytest.raises(InvalidRequest):
                await engine.workers.poll(new_poll(**{"number": 1} | fields))

    run(main)


def test_an_empty_poll_waits_its_time_with_one_look_at_the_queue() -> None:
    async def main() -> None:
        async with new_engine() as engine:
            calls = count_calls(engine.store)  # type: ignore[arg-type]
            polled = await engine.workers.poll(new_poll(wait=10 * SECOND))
            assert polled.claims == ()
            assert asyncio.get_running_loop().time() == pytest.approx(10, abs=0.01)
            assert calls["claim"] == 1

    run(main)


def test_a_start_wakes_a_waiting_poll_at_once() -> None:
    async def main() -> None:
        async with new_engine() as engine:
            polling = asyncio.create_task(engine.workers.poll(new_poll()))
            await asyncio.sleep(3.3)
            began = asyncio.get_running_loop().time()
            started = await engine.workflows.start(new_start(engine))
            polled = await polling
            assert [claim.run_id for claim in polled.claims] == [started.run_id]
            assert asyncio.get_running_loop().time() - began < 0.001

    run(main)


def test_a_start_between_the_look_and_the_wait_is_not_lost() -> None:
    async def main() -> None:
        async with new_engine() as engine:
            store = engine.store
            claim = store.work.claim

            async def slow_claim(*args: Any) -> Any:
                polled = await claim(*args)
                if not polled.claims and not started:
                    # The look is over and has found nothing, but its answer is still on its way.
                    started.append(await engine.workflows.start(new_start(engine)))
                return polled

            started: list[Any] = []
            store.work.claim = slow_claim  # type: ignore[method-assign]
            polled = await engine.workers.poll(new_poll())
            assert [c.run_id for c in polled.claims] == [started[0].run_id]
            assert asyncio.get_running_loop().time() < 0.001

    run(main)


def test_a_start_in_another_process_is_found_within_a_second_without_notifications() -> None:
    async def main() -> None:
        async with new_engine() as engine, new_engine(engine.store.sibling()) as other:  # type: ignore[arg-type]
            polling = asyncio.create_task(engine.workers.poll(new_poll()))
            await asyncio.sleep(5.5)
            began = asyncio.get_running_loop().time()
            await other.workflows.start(new_start(other))
            assert len((await polling).claims) == 1
            assert asyncio.get_running_loop().time() - began < 1.01

    run(main)


def test_notifications_from_another_process_wake_polls_and_waiters() -> None:
    async def main() -> None:
        heard: list[Any] = []

        async def listen(on_work: Any, on_finished: Any, on_unknown: Any, on_news: Any) -> None:
            heard.append((on_work, on_finished, on_unknown))
            await asyncio.get_running_loop().create_future()

        async def announce(work: Any, finished: Any, news: Any) -> None:
            for queue in work:
                heard[0][0](queue)
            for finished_run in finished:
                heard[0][1](*finished_run)

        async with new_engine() as engine:
            engine.store.wakeups.listen = listen  # type: ignore[method-assign]
            store = engine.store.sibling()
            store.wakeups.announce = announce  # type: ignore[method-assign]
            async with new_engine(store) as other:  # type: ignore[arg-type]
                polling = asyncio.create_task(claim_one(engine))
                await asyncio.sleep(5.5)
                began = asyncio.get_running_loop().time()
                await other.workflows.start(new_start(other))
                await polling
                second = await other.workflows.start(new_start(other, task_queue="other"))
                waiting = asyncio.create_task(engine.workflows.wait("default", second.run_id, 60 * SECOND))
                await asyncio.sleep(0)
                claim = await claim_one(other, 2, worker_id=OTHER_WORKER, queues=("other",))
                await other.workers.commit(chunk(claim, complete()))
                assert (await waiting).status is RunStatus.COMPLETED
                assert asyncio.get_running_loop().time() - began < 0.02

    run(main)


def test_a_delayed_run_is_claimed_at_its_time_and_not_before() -> None:
    async def main() -> None:
        async with new_engine() as engine:
            polling = asyncio.create_task(engine.workers.poll(new_poll()))
            await asyncio.sleep(0.3)
            await engine.workflows.start(new_start(engine, delay=2_345_678))
            polled = await polling
            assert len(polled.claims) == 1
            assert 2.645678 <= asyncio.get_running_loop().time() < 2.66

    run(main)


def test_a_delayed_run_of_another_process_is_claimed_on_time_too() -> None:
    async def main() -> None:
        async with new_engine() as engine, new_engine(engine.store.sibling()) as other:  # type: ignore[arg-type]
            polling = asyncio.create_task(engine.workers.poll(new_poll()))
            await asyncio.sleep(0.3)
            await other.workflows.start(new_start(other, delay=5_345_678))
            assert len((await polling).claims) == 1
            assert 5.645678 <= asyncio.get_running_loop().time() < 5.66

    run(main)


def test_two_queues_due_in_the_same_millisecond_are_both_met() -> None:
    async def main() -> None:
        async with new_engine() as engine:
            queues = ("shop", "mail")
            workers = zip(queues, (WORKER, OTHER_WORKER), strict=True)
            polls = [new_poll(queues=(queue,), worker_id=worker) for queue, worker in workers]
            polling = [asyncio.create_task(engine.workers.poll(poll)) for poll in polls]
            await asyncio.sleep(0.3)
            for late, queue in enumerate(queues):
                await engine.workflows.start(new_start(engine, task_queue=queue, delay=2_345_678 + 100 * late))
            for polled in await asyncio.gather(*polling):
                assert len(polled.claims) == 1
            assert asyncio.get_running_loop().time() < 2.66

    run(main)


def test_many_due_times_of_a_queue_are_met_one_by_one_though_nobody_here_knew_them() -> None:
    async def main() -> None:
        async with new_engine() as engine, new_engine(engine.store.sibling()) as other:  # type: ignore[arg-type]
            for n in range(10):
                await other.workflows.start(new_start(other, delay=5 * SECOND + n * 70_000))
            for n in range(10):
                await claim_one(engine, n + 1)
                assert 0 <= asyncio.get_running_loop().time() - (5 + n * 0.07) < 0.08

    run(main)


def test_a_clock_that_was_ahead_is_corrected_by_the_claim() -> None:
    async def main() -> None:
        async with new_engine() as engine:
            polling = asyncio.create_task(engine.workers.poll(new_poll()))
            await asyncio.sleep(0.3)
            await engine.workflows.start(new_start(engine, delay=2 * SECOND))
            # As if an earlier answer had carried a time half a second ahead.
            engine.database_clock.heard(engine.database_clock.now() + SECOND // 2)
            assert len((await polling).claims) == 1
            assert 2.3 <= asyncio.get_running_loop().time() < 2.4

    run(main)


def test_a_repeated_poll_gets_the_same_claims() -> None:
    async def main() -> None:
        async with new_engine() as engine:
            for _ in range(3):
                await engine.workflows.start(new_start(engine))
            first = await engine.workers.poll(new_poll(limit=2))
            again = await engine.workers.poll(new_poll(limit=2))
            assert [c.run_id for c in again.claims] == [c.run_id for c in first.claims]
            assert [c.token for c in again.claims] == [c.token for c in first.claims]
            second = await engine.workers.poll(new_poll(2, limit=2))
            assert len(second.claims) == 1

    run(main)


def test_a_newer_poll_sends_the_older_one_home_and_a_straggler_claims_nothing() -> None:
    async def main() -> None:
        async with new_engine() as engine:
            old = asyncio.create_task(engine.workers.poll(new_poll(1)))
            await asyncio.sleep(1)
            new = asyncio.create_task(engine.workers.poll(new_poll(2)))
            assert (await old).claims == ()
            await engine.workflows.start(new_start(engine))
            assert len((await new).claims) == 1
            await engine.workflows.start(new_start(engine))
            assert (await engine.workers.poll(new_poll(1))).claims == ()
            assert len((await engine.workers.poll(new_poll(3))).claims) == 1

    run(main)


def test_a_worker_that_took_everything_does_not_look_again() -> None:
    async def main() -> None:
        async with new_engine() as engine:
            await engine.workers.poll(new_poll(wait=SECOND))
            await engine.workflows.start(new_start(engine))
            calls = count_calls(engine.store)  # type: ignore[arg-type]
            await claim_one(engine, 2)
            await engine.workers.poll(new_poll(3, wait=5 * SECOND))
            assert calls["claim"] == 1

    run(main)


def test_a_full_claim_means_that_there_may_be_more() -> None:
    async def main() -> None:
        async with new_engine() as engine:
            for _ in range(25):
                await engine.workflows.start(new_start(engine))
            sizes = [len((await engine.workers.poll(new_poll(n))).claims) for n in (1, 2, 3)]
            assert sizes == [10, 10, 5]
            assert asyncio.get_running_loop().time() < 0.001

    run(main)


def test_workers_of_one_queue_with_different_types_do_not_hide_work_from_each_other() -> None:
    async def main() -> None:
        async with new_engine() as engine:
            refunds = new_poll(worker_id=OTHER_WORKER, types=(WorkflowType("refund"),))
            polls = [asyncio.create_task(engine.workers.poll(poll)) for poll in (new_poll(), refunds)]
            await asyncio.sleep(2)
            await engine.workflows.start(new_start(engine, workflow_type="refund"))
            await engine.workflows.start(new_start(engine))
            assert [(await poll).claims[0].workflow_type for poll in polls] == ["order", "refund"]
            assert asyncio.get_running_loop().time() < 2.001

    run(main)


def test_polls_do_not_hear_of_other_namespaces() -> None:
    async def main() -> None:
        async with new_engine() as engine:
            polling = asyncio.create_task(engine.workers.poll(new_poll(wait=5 * SECOND)))
            await asyncio.sleep(0)
            calls = count_calls(engine.store)  # type: ignore[arg-type]
            await engine.workflows.start(new_start(engine, namespace="other"))
            assert (await polling).claims == ()
            assert calls["claim"] <= 1

    run(main)


def test_a_parked_run_comes_back_at_its_time_and_a_handed_back_one_at_once() -> None:
    async def main() -> None:
        async with new_engine() as engine:
            await engine.workflows.start(new_start(engine))
            claim = await claim_one(engine)
            assert await engine.workers.commit(chunk(claim, completed_step(), park(3.25))) is ChunkAnswer.DONE
            claim = await claim_one(engine, 2)
            assert 3.25 <= asyncio.get_running_loop().time() < 3.26
            assert [step.step_id for step in claim.history] == ["step1"]
            polling = asyncio.create_task(claim_one(engine, 3))
            await asyncio.sleep(2)
            began = asyncio.get_running_loop().time()
            await engine.workers.commit(chunk(claim, hand_back()))
            assert (await polling).run_id == claim.run_id
            assert asyncio.get_running_loop().time() - began < 0.001

    run(main)


def test_a_stale_token_changes_nothing() -> None:
    async def main() -> None:
        async with new_engine() as engine:
            await engine.workflows.start(new_start(engine))
            old = await claim_one(engine)
            await engine.workers.commit(chunk(old, hand_back()))
            new = await claim_one(engine, 2)
            assert await engine.workers.commit(chunk(old, complete())) is ChunkAnswer.LEASE_LOST
            assert (await engine.workflows.get("default", new.run_id)).status is RunStatus.RUNNING
            assert await engine.workers.commit(chunk(new, complete())) is ChunkAnswer.DONE

    run(main)


def test_bad_chunks_are_refused() -> None:
    async def main() -> None:
        async with new_engine(settings=EngineSettings(payload_bytes=100)) as engine:
            await engine.workflows.start(new_start(engine))
            claim = await claim_one(engine)
            calls = count_calls(engine.store)  # type: ignore[arg-type]
            with pytest.raises(InvalidRequest):
                await engine.workers.commit(chunk(claim))
            for step_id in ("", "a\0b", "\ud800", "x" * 5000):
                with pytest.raises(InvalidRequest, match="step id"):
                    await engine.workers.commit(chunk(claim, completed_step(step_id=step_id)))
            with pytest.raises(PayloadTooLarge, match="step1"):
                await engine.workers.commit(chunk(claim, completed_step(output=b"x" * 101)))
            with pytest.raises(PayloadTooLarge, match="output of run"):
                await engine.workers.commit(chunk(claim, complete(b"x" * 101)))
            assert not calls
            steps = [completed_step(seq, output=b"x" * size) for seq, size in enumerate((99, 100), 1)]
            await engine.workers.commit(chunk(claim, *steps, complete(b"x" * 100)))

    run(main)


def test_a_leaving_worker_gives_its_runs_back_at_once() -> None:
    async def main() -> None:
        async with new_engine() as engine:
            await engine.workers.register(new_registration())
            started = await engine.workflows.start(new_start(engine))
            await claim_one(engine)
            polling = asyncio.create_task(claim_one(engine, 7, worker_id=OTHER_WORKER))
            await asyncio.sleep(2)
            began = asyncio.get_running_loop().time()
            await engine.workers.deregister(WORKER)
            assert (await polling).run_id == started.run_id
            assert asyncio.get_running_loop().time() - began < 0.001
            with pytest.raises(InvalidRequest):
                await engine.workers.deregister("me")

    run(main)


def test_a_claim_whose_answer_was_lost_goes_back_with_the_next_heartbeat() -> None:
    async def main() -> None:
        async with new_engine() as engine:
            await engine.workers.register(new_registration())
            await engine.workflows.start(new_start(engine))
            lost = await claim_one(engine)
            polling = asyncio.create_task(claim_one(engine, 2))
            await asyncio.sleep(2)
            answer = await engine.workers.heartbeat(Heartbeat(worker_id=WORKER, held=(), heard=1))
            assert answer.known
            assert (await polling).run_id == lost.run_id
            assert asyncio.get_running_loop().time() < 2.001

    run(main)


@pytest.mark.parametrize("held", [(("x", "y"),), ((WORKER, "y"),)])
def test_bad_heartbeats_are_refused(held: Any) -> None:
    async def main() -> None:
        async with new_engine() as engine:
            with pytest.raises(InvalidRequest):
                await engine.workers.heartbeat(Heartbeat(worker_id=WORKER, held=held, heard=0))
            with pytest.raises(InvalidRequest):
                await engine.workers.heartbeat(Heartbeat(worker_id=WORKER, held=(), heard=-1))

    run(main)


# Runs born beside a worker.


def test_a_run_started_beside_a_free_worker_is_born_running() -> None:
    async def main() -> None:
        async with new_engine() as engine:
            worker = SlotWorker(1)
            engine.workers.attach(worker, "default", ("shop",))
            calls = count_calls(engine.store)  # type: ignore[arg-type]
            started = await engine.workflows.start(new_start(engine, input=b"[5]", external_id="a"))
            await asyncio.sleep(0)
            (claim,) = worker.adopted
            assert (claim.run_id, claim.input, claim.executions) == (started.run_id, b"[5]", 1)
            assert calls == {"apply": 1}
            found = await engine.workflows.get("default", started.run_id)
            assert (found.status, found.worker_id) == (RunStatus.RUNNING, WORKER)
            assert found.started_at == claim.started_at
            assert await engine.workers.commit(chunk(claim, complete())) is ChunkAnswer.DONE
            # The slot is taken: the next run waits for a claim.
            second = await engine.workflows.start(new_start(engine))
            assert (await engine.workflows.get("default", second.run_id)).status is RunStatus.PENDING

    run(main)


def test_a_reserved_slot_is_given_back_when_the_run_is_not_born() -> None:
    async def main() -> None:
        async with new_engine() as engine:
            await engine.workflows.start(new_start(engine, external_id="a"))
            worker = SlotWorker(5)
            detach = engine.workers.attach(worker, "default", ("shop",))
            again = await engine.workflows.start(new_start(engine, external_id="a"))
            assert again.already_exists
            await asyncio.sleep(0)
            assert (worker.declined, worker.slots) == (1, 5)
            await engine.workflows.start(new_start(engine, delay=SECOND))
            await engine.workflows.start(new_start(engine, start_at=2**57))
            await engine.workflows.start(new_start(engine, task_queue="other"))
            await engine.workflows.start(new_start(engine, namespace="other"))
            assert worker.slots == 5
            detach()
            await engine.workflows.start(new_start(engine))
            assert worker.slots == 5
            assert worker.adopted == []

    run(main)


def test_a_reserved_slot_is_given_back_in_an_outage() -> None:
    async def main() -> None:
        async with new_engine() as engine:
            worker = SlotWorker(5)
            engine.workers.attach(worker, "default", ("shop",))

            async def down(*_: Any) -> Any:
                raise Unavailable("down")

            engine.store.work.apply = down  # type: ignore[method-assign]
            with pytest.raises(Unavailable):
                await engine.workflows.start(new_start(engine))
            await asyncio.sleep(0)
            assert (worker.declined, worker.slots) == (1, 5)

    run(main)


def test_a_worker_that_leaves_while_a_run_is_born_still_hears_of_it() -> None:
    async def main() -> None:
        async with new_engine() as engine:
            worker = SlotWorker(1)
            detach = engine.workers.attach(worker, "default", ("shop",))
            starting = engine.workflows.start(new_start(engine))
            detach()
            await starting
            await asyncio.sleep(0)
            assert len(worker.adopted) == 1

    run(main)


def test_a_caller_cannot_bring_a_lease_of_its_own() -> None:
    async def main() -> None:
        async with new_engine() as engine:
            lease = SlotWorker(1).reserve(new_start(engine))
            started = await engine.workflows.start(new_start(engine, lease=lease))
            assert (await engine.workflows.get("default", started.run_id)).status is RunStatus.PENDING

    run(main)


def test_a_claim_takes_no_more_than_the_slots_that_are_left() -> None:
    async def main() -> None:
        async with new_engine() as engine:
            for _ in range(5):
                await engine.workflows.start(new_start(engine))
            worker = SlotWorker(2)
            engine.workers.attach(worker, "default", ("shop",))
            assert len((await engine.workers.poll(new_poll(1))).claims) == 2
            worker.slots = 0
            assert (await engine.workers.poll(new_poll(2))).claims == ()
            assert asyncio.get_running_loop().time() < 0.001
            worker.slots = 10
            assert len((await engine.workers.poll(new_poll(3))).claims) == 3
            assert worker.claiming == 0

    run(main)


def test_a_failing_claim_is_repeated_by_the_next_poll() -> None:
    async def main() -> None:
        async with new_engine() as engine:
            await engine.workflows.start(new_start(engine))
            claim = engine.store.work.claim

            async def down(*_: Any) -> Any:
                raise Unavailable("down")

            engine.store.work.claim = down  # type: ignore[method-assign]
            with pytest.raises(Unavailable):
                await engine.workers.poll(new_poll())
            engine.store.work.claim = claim  # type: ignore[method-assign]
            assert len((await engine.workers.poll(new_poll())).claims) == 1

    run(main)
