"""Why a run is not moving, asked at every home."""

from __future__ import annotations

import asyncio

import kagzi
from kagzi import Kagzi, RunStatus
from kagzi.api.engine import ManagedEngine
from kagzi.api.explanation import explain
from kagzi.clock import SystemClock
from kagzi.connect import connect


async def _explained(engine: ManagedEngine, run_id: str) -> str | None:
    run = await engine.workflows.get("default", run_id)
    return await explain(engine, run, SystemClock().now())


async def test_the_sentence_follows_a_run_from_its_queue_to_its_end(home: str) -> None:
    app = Kagzi(home)

    @app.workflow(name="approval")
    async def approval() -> bool:
        return await kagzi.wait_signal("approved", bool, timeout="3d", default=False)

    engine = connect(home)
    await engine.open()
    try:
        async with app:
            run = await approval.start()
            assert str(await _explained(engine, run.id)).startswith("Waiting for a worker: no worker that is online")
            async with app.worker():
                async with asyncio.timeout(60):
                    while (await engine.workflows.get("default", run.id)).status is not RunStatus.SLEEPING:
                        await asyncio.sleep(0.02)
                waits = str(await _explained(engine, run.id))
                assert waits.startswith("Waiting for signal approved since ")
                assert ", until " in waits
                assert waits.endswith(", then default.")
                await run.signal("approved", True)
                assert await run.result(timeout=60) is True
            assert await _explained(engine, run.id) is None
    finally:
        await engine.close()
