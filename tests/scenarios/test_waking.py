"""Runs that wait for a moment are woken, in every home."""

from __future__ import annotations

import asyncio

import pytest

import kagzi
from kagzi import Kagzi, NotFound, Retry, RunStatus
from kagzi.clock import SystemClock
from kagzi.core.instant import SECOND
from kagzi.sdk.histories import export_history
from kagzi.testing import replay


async def until_parked(app: Kagzi, run_id: str, seconds: float) -> None:
    """Until the run sleeps for at least so long."""
    async with asyncio.timeout(60):
        while True:
            run = await app.engine.workflows.get("default", run_id)
            left = (run.available_at or 0) - SystemClock().now()
            if run.status is RunStatus.SLEEPING and left > seconds * SECOND:
                return
            await asyncio.sleep(0.02)


async def test_what_a_run_waits_for_by_the_clock_is_over_when_it_is_woken(home: str) -> None:
    app = Kagzi(home)
    tries: list[int] = []

    @app.step(retry=Retry(attempts=3, first="1h", cap="1h", jitter=0))
    async def flaky() -> str:
        tries.append(1)
        if len(tries) == 1:
            raise ValueError("not yet")
        return "done"

    @app.workflow(name="patient")
    async def patient() -> str:
        result = await flaky()
        await kagzi.wait_signal("go")
        await asyncio.sleep(1800)  # due before the attempt was that somebody has hastened
        try:
            async with asyncio.timeout(86_400):
                await kagzi.wait_signal("never")
        except TimeoutError:
            return f"{result}, and nobody came"
        return "somebody came"

    async with app, app.worker():
        run = await patient.options(delay="1h").start()
        assert await run.wake()  # it was to start later
        await until_parked(app, run.id, 3000)
        assert len(tries) == 1
        assert await run.wake()
        assert not await run.wake() or len(tries) == 2  # it is due already
        while len(tries) < 2:
            await asyncio.sleep(0.02)
        await until_parked(app, run.id, 200)
        assert not await run.wake()  # it waits for no moment: only the signal ends the wait
        await run.signal("go")
        await until_parked(app, run.id, 1000)  # waking it has not ended what came later
        assert await run.wake()
        await until_parked(app, run.id, 80_000)
        assert await run.wake()
        assert await run.result(timeout=60) == "done, and nobody came"
        assert not await run.wake()  # it has finished
        history = await export_history(app.engine, await app.engine.workflows.get("default", run.id))
        replay(history, app)  # the same on replay
        with pytest.raises(NotFound):
            await app.engine.workflows.wake("default", run.id[:-4] + "aaaa")
