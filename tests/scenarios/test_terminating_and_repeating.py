"""Terminating and repeating runs, as their authors and their callers see it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import kagzi
from kagzi import Conflict, NotFound, Retry, RunStatus, WorkflowCancelled
from tests.scenarios.conftest import Stage, until
from tests.scenarios.shop import Shop, becomes, ended

RUNNING, SLEEPING, PENDING = RunStatus.RUNNING, RunStatus.SLEEPING, RunStatus.PENDING
CANCELLED, COMPLETED, FAILED = RunStatus.CANCELLED, RunStatus.COMPLETED, RunStatus.FAILED


@pytest.mark.parametrize("state", [RUNNING, SLEEPING, PENDING])
def test_terminating_ends_at_once_and_cleans_nothing_up(stage: Stage, state: RunStatus) -> None:
    shop = Shop(stage)

    @shop.app.workflow
    async def order() -> None:
        try:
            if state is RUNNING:
                await shop.charge(3600)
            await asyncio.sleep(3600)
        finally:
            await shop.refund()

    async def scenario() -> None:
        run = await order.options(delay="1h" if state is PENDING else None).start()
        await becomes(run, state)
        await until(lambda: shop.seen or state is not RUNNING)
        answer = await run.terminate("the shop has closed")
        assert (answer.effective, answer.status) == (True, CANCELLED)
        with pytest.raises(WorkflowCancelled, match="terminated: the shop has closed"):
            await run.result(timeout=stage.lateness)
        await until(lambda: "charge cancelled" in shop.seen or state is not RUNNING)
        before = await run.get()
        assert (await run.terminate()).status is CANCELLED
        assert await run.cancel()
        await stage.linger(7200)
        assert await run.get() == before

    shop.run(scenario)
    assert shop.seen == (["charging", "charge cancelled"] if state is RUNNING else [])


def test_an_end_is_final(stage: Stage) -> None:
    shop = Shop(stage)

    @shop.app.workflow
    async def order() -> str:
        return await shop.refund()

    async def scenario() -> None:
        run = await order.start()
        assert await run.result() == "back"
        for answer in (await run.cancel(), await run.terminate("too late")):
            assert (bool(answer), answer.status) == (False, COMPLETED)
        assert await run.result() == "back"
        nobody = shop.app.handle("0190a5f2-7c3e-7d31-9a51-0c8e6b1f2a44")
        for request in (nobody.cancel, nobody.terminate, nobody.retry, nobody.rerun):
            with pytest.raises(NotFound):
                await request()

    shop.run(scenario)


# Repeating.


def test_a_retry_goes_on_before_what_failed(stage: Stage) -> None:
    shop = Shop(stage)
    broken, nap = True, "1100ms"  # long enough to be parked
    ids: list[str] = []

    @shop.app.step(retry=Retry.none)
    async def ship(id: str) -> str:
        ids.append(id)
        if broken:
            raise ValueError("no lorry")
        return "shipped"

    @shop.app.workflow
    async def order(name: str) -> list[Any]:
        began = kagzi.now()
        paid = await shop.charge(0.1)
        await kagzi.sleep(nap)
        chance = str(kagzi.uuid4())
        return [name, paid, await ship(chance), (kagzi.now() - began).total_seconds() >= 1.1]

    async def scenario() -> None:
        nonlocal broken, nap
        run = await order.options(id="order-1").start("ada")
        assert await ended(run) is FAILED
        old = await run.get()
        broken = False
        again = await run.retry(keep_id=False)
        assert again.id != run.id
        # Nothing is slept or paid twice, and what was drawn by chance is the same.
        assert await again.result(timeout=60) == ["ada", "paid", "shipped", True]
        record = await again.get()
        assert (record.id, record.workflow, record.status) == (None, "order", COMPLETED)
        assert record.executions == 1
        assert await run.get() == old
        assert (await shop.app.find("order-1")).id == run.id

        # A retry of a retry, and of a run that completed.
        third = await again.retry()
        assert await third.result(timeout=60) == await again.result()
        nap = "10ms"
        scratch = await run.rerun(keep_id=False)
        assert (await scratch.result(timeout=60))[:3] == ["ada", "paid", "shipped"]

    shop.run(scenario)
    assert shop.seen == ["charging", "charged"] * 2
    assert len(ids) == 3
    assert ids[0] == ids[1] != ids[2]


def test_a_cancelled_run_is_retried_from_before_its_cancellation(stage: Stage) -> None:
    shop = Shop(stage)
    nap = 3600.0

    @shop.app.workflow
    async def order() -> str:
        try:
            first = await shop.charge(0)
            await asyncio.sleep(nap)
            return first
        except asyncio.CancelledError:
            await shop.refund()
            raise

    async def scenario() -> None:
        nonlocal nap
        run = await order.start()
        await becomes(run, SLEEPING)
        assert await run.cancel()
        assert await ended(run) is CANCELLED
        nap = 0.1
        again = await run.retry()
        assert await again.result(timeout=60) == "paid"

    shop.run(scenario)
    assert shop.seen == ["charging", "charged", "refunded"]


def test_a_live_run_is_not_repeated(stage: Stage) -> None:
    shop = Shop(stage)

    @shop.app.workflow
    async def order() -> str:
        return await shop.charge()

    async def scenario() -> None:
        run = await order.start()
        for request in (run.retry, run.rerun):
            with pytest.raises(Conflict, match="only a finished run"):
                await request()
        assert await run.cancel()
        assert await ended(run) is CANCELLED

    shop.run(scenario)
