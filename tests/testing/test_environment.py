"""`run_virtually`: one time for everybody."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

import kagzi
from kagzi import Kagzi
from kagzi.core.instant import to_datetime
from kagzi.testing import Deadlock, run_virtually
from kagzi.testing.clock import BEGINNING


def test_now_is_virtual_outside_of_workflows_too() -> None:
    app = Kagzi("memory://")

    @app.step
    def in_a_plain_step() -> datetime:
        return kagzi.now()

    @app.step
    async def in_a_step() -> datetime:
        return kagzi.now()

    @app.workflow
    async def waits() -> list[datetime]:
        await kagzi.sleep("30 days")
        return [kagzi.now(), await in_a_step(), await in_a_plain_step()]

    async def scenario() -> list[datetime]:
        before = kagzi.now()
        seen = await waits.run()
        await kagzi.sleep_until(before + timedelta(days=60))
        return [before, *seen, kagzi.now()]

    start = to_datetime(BEGINNING)
    moments = run_virtually(app, scenario)
    assert moments == sorted(moments)
    assert [(moment - start).days for moment in moments] == [0, 30, 30, 30, 60]
    assert abs(kagzi.now() - datetime.now(UTC)) < timedelta(minutes=1)


def unserved() -> Kagzi:
    app = Kagzi("memory://")

    @app.workflow(queue="shop")
    async def order() -> None:
        await kagzi.sleep("1 day")

    return app


def test_a_run_that_no_worker_takes_is_a_deadlock_that_says_so() -> None:
    app = unserved()
    order = app.find_workflow("order", "1")
    assert order is not None
    with pytest.raises(Deadlock, match=r"order .* PENDING in queue 'shop'.*serves 'default'"):
        run_virtually(app, order.run, queues=("default",))
    assert run_virtually(app, order.run, queues=("shop",)) is None


def test_a_scenario_that_waits_for_nothing_is_a_deadlock() -> None:
    async def scenario() -> None:
        await asyncio.Event().wait()

    with pytest.raises(Deadlock, match="no run is left"):
        run_virtually(unserved(), scenario)


def test_years_of_waiting_are_no_deadlock() -> None:
    app = Kagzi("memory://")

    @app.workflow
    async def patient() -> None:
        await kagzi.sleep("500 days")

    async def scenario() -> timedelta:
        began = kagzi.now()
        await patient.run()
        for _ in range(30):
            await asyncio.sleep(timedelta(days=1).total_seconds())
        await asyncio.sleep(timedelta(days=500).total_seconds())
        return kagzi.now() - began

    assert run_virtually(app, scenario).days == 1030


def test_what_the_scenario_raises_is_raised() -> None:
    async def scenario() -> None:
        raise LookupError("on purpose")

    with pytest.raises(LookupError, match="on purpose"):
        run_virtually(unserved(), scenario)
