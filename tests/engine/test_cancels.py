"""Cancelling, terminating and repeating through the engine: who hears of it, and when."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kagzi.api.operations import CancelRun, RepeatRun, TerminateRun
from kagzi.api.workers import Heartbeat
from kagzi.core.instant import SECOND
from kagzi.core.run import RunStatus
from kagzi.core.worker import WorkflowType
from kagzi.engine.local import LocalEngine
from kagzi.errors import Conflict, InvalidRequest, NotFound
from tests.engine.support import (
    WORKER,
    SlotWorker,
    chunk,
    claim_one,
    complete,
    count_calls,
    new_engine,
    new_poll,
    new_registration,
    new_start,
    park,
    run,
)

UNKNOWN = "0190a5f2-7c3e-7d31-9a51-0c8e6b1f2a44"


def cancel(run_id: str, **fields: Any) -> CancelRun:
    return CancelRun(**({"namespace": "default", "run_id": run_id} | fields))


def terminate(run_id: str, **fields: Any) -> TerminateRun:
    return TerminateRun(**({"namespace": "default", "run_id": run_id} | fields))


def repeat(engine: LocalEngine, source: str, **fields: Any) -> RepeatRun:
    given: dict[str, Any] = {
        "namespace": "default",
        "run_id": engine._ids.run_id(),
        "of_run_id": source,
        "keep_steps": True,
    }
    return RepeatRun(**(given | fields))


def test_a_worker_in_this_process_hears_of_it_at_once() -> None:
    async def main() -> None:
        async with new_engine() as engine:
            worker = SlotWorker(2)
            engine.workers.attach(worker, "default", ("shop",))
            first = await engine.workflows.start(new_start(engine))
            second = await engine.workflows.start(new_start(engine))
            await engine.workflows.cancel(cancel(first.run_id.upper()))
            await engine.workflows.terminate(terminate(second.run_id))
            await asyncio.sleep(0)
            assert (worker.cancelled, worker.lost) == ([first.run_id], [second.run_id])

    run(main)


def test_a_run_whose_worker_knows_no_cancellations_is_ended_at_once() -> None:
    async def main() -> None:
        async with new_engine() as engine:
            await engine.workers.register(new_registration(types=(WorkflowType("order"),)))
            await engine.workflows.start(new_start(engine))
            claim = await claim_one(engine)
            answer = await engine.workflows.cancel(cancel(claim.run_id))
            assert (answer.effective, answer.status) == (True, RunStatus.CANCELLED)

    run(main)


def test_any_other_worker_hears_of_it_with_its_next_heartbeat() -> None:
    async def main() -> None:
        async with new_engine() as engine:
            await engine.workers.register(new_registration(types=(WorkflowType("order", "1"),)))
            await engine.workflows.start(new_start(engine))
            claim = await claim_one(engine)
            beat = Heartbeat(worker_id=WORKER, held=((claim.run_id, claim.token),), heard=1)
            assert (await engine.workers.heartbeat(beat)).cancelled == ()
            await engine.workflows.cancel(cancel(claim.run_id))
            assert (await engine.workers.heartbeat(beat)).cancelled == (claim.run_id,)

    run(main)


def test_a_poll_that_waits_gets_a_run_that_is_woken() -> None:
    async def main() -> None:
        async with new_engine() as engine:
            await engine.workflows.start(new_start(engine))
            claim = await claim_one(engine)
            await engine.workers.commit(chunk(claim, park(3600)))
            polling = asyncio.create_task(engine.workers.poll(new_poll(2)))
            await asyncio.sleep(5)
            before = asyncio.get_running_loop().time()
            answer = await engine.workflows.cancel(cancel(claim.run_id))
            assert answer.status is RunStatus.SLEEPING
            (again,) = (await polling).claims
            assert again.cancel_requested
            assert asyncio.get_running_loop().time() - before < 0.01

    run(main)


@pytest.mark.parametrize("make", [cancel, terminate])
def test_whoever_waits_for_the_run_is_woken(make: Any) -> None:
    async def main() -> None:
        async with new_engine() as engine:
            started = await engine.workflows.start(new_start(engine, delay=3600 * SECOND))
            waiting = asyncio.create_task(engine.workflows.wait("default", started.run_id, 60 * SECOND))
            await asyncio.sleep(1)
            await getattr(engine.workflows, make.__name__)(make(started.run_id))
            before = asyncio.get_running_loop().time()
            assert (await waiting).status is RunStatus.CANCELLED
            assert asyncio.get_running_loop().time() - before < 0.01
            # Whoever comes later, too.
            assert (await engine.workflows.wait("default", started.run_id, 0)).status is RunStatus.CANCELLED

    run(main)


def test_the_coordinator_ends_what_does_not_end() -> None:
    async def main() -> None:
        async with new_engine(coordinate=True) as engine:
            await engine.workflows.start(new_start(engine, lease_length=600 * SECOND))
            claim = await claim_one(engine)
            await engine.workflows.cancel(cancel(claim.run_id, grace=7 * SECOND))
            waiting = asyncio.create_task(engine.workflows.wait("default", claim.run_id, 60 * SECOND))
            before = asyncio.get_running_loop().time()
            assert (await waiting).status is RunStatus.CANCELLED
            assert asyncio.get_running_loop().time() - before == pytest.approx(7, abs=0.1)

    run(main)


def test_a_repeated_run_is_claimed_at_once() -> None:
    async def main() -> None:
        async with new_engine() as engine:
            await engine.workflows.start(new_start(engine, external_id="a"))
            claim = await claim_one(engine)
            with pytest.raises(Conflict, match="RUNNING"):
                await engine.workflows.repeat(repeat(engine, claim.run_id))
            await engine.workers.commit(chunk(claim, complete()))
            polling = asyncio.create_task(engine.workers.poll(new_poll(2)))
            await asyncio.sleep(5)
            before = asyncio.get_running_loop().time()
            started = await engine.workflows.repeat(repeat(engine, claim.run_id))
            (again,) = (await polling).claims
            assert (again.run_id, again.external_id) == (started.run_id, "a")
            assert asyncio.get_running_loop().time() - before < 0.01

    run(main)


def test_what_is_not_there_or_not_right_is_refused_and_nothing_is_written() -> None:
    async def main() -> None:
        async with new_engine() as engine:
            started = await engine.workflows.start(new_start(engine))
            workflows = engine.workflows
            for call in (workflows.cancel(cancel(UNKNOWN)), workflows.terminate(terminate(UNKNOWN))):
                with pytest.raises(NotFound):
                    await call
            with pytest.raises(NotFound):
                await workflows.repeat(repeat(engine, UNKNOWN))
            with pytest.raises(NotFound):
                await workflows.cancel(cancel(started.run_id, namespace="another"))
            calls = count_calls(engine.store)  # type: ignore[arg-type]
            for request in (
                cancel("nonsense"),
                cancel(started.run_id, grace=-1),
                cancel(started.run_id, grace=1.5),
                cancel(started.run_id, namespace=""),
            ):
                with pytest.raises(InvalidRequest):
                    await workflows.cancel(request)
            for reason in ("x" * 2001, "a\0b", 7, "\ud800"):
                with pytest.raises(InvalidRequest, match="reason"):
                    await workflows.terminate(terminate(started.run_id, reason=reason))
            for fields in ({"run_id": "x"}, {"of_run_id": "x"}, {"namespace": "a\0"}):
                with pytest.raises(InvalidRequest):
                    await workflows.repeat(repeat(engine, started.run_id, **fields))
            assert calls["apply"] == 0
            assert (await workflows.get("default", started.run_id)).status is RunStatus.PENDING

    run(main)
