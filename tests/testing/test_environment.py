"""`run_virtually`: one time for everybody."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import kagzi
from kagzi import Kagzi
from kagzi.core.instant import to_datetime
from kagzi.testing import run_virtually
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
