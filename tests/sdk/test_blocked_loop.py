"""What blocks a worker's event loop is told in the log, with where it stands."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from functools import partial

import pytest

from kagzi import Kagzi
from kagzi.sdk.worker import heartbeat
from kagzi.sdk.worker.blocked_loop import LoopWatch

LOOK = 0.02


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "LoopWatch", partial(LoopWatch, look_seconds=LOOK))


def block_until(seen: Callable[[], bool]) -> None:
    for _ in range(1_000):
        if seen():
            return
        time.sleep(0.01)


async def test_a_step_that_blocks(caplog: pytest.LogCaptureFixture) -> None:
    app = Kagzi("memory://")

    @app.step
    async def greedy() -> None:
        block_until(lambda: "is blocked" in caplog.text)

    @app.workflow
    async def order() -> None:
        await greedy()

    async with app, app.worker():
        run = await order.start()
        await run.result()

    (told,) = [record for record in caplog.records if "is blocked" in record.message]
    assert f"is blocked by step greedy of run {run.id}. " in told.message
    assert f'File "{__file__}", line ' in told.message
    assert told.message.splitlines()[-1].strip() == "time.sleep(0.01)"
    assert (told.levelname, told.run_id, told.step_id) == ("WARNING", run.id, "greedy")  # type: ignore[attr-defined]


@pytest.mark.parametrize("threaded", [False, True])
async def test_a_workflow_that_blocks(caplog: pytest.LogCaptureFixture, threaded: bool) -> None:
    app = Kagzi("memory://")

    def block() -> None:
        block_until(lambda: "is blocked" in caplog.text)

    async def block_on_the_loop() -> None:
        block()

    order = app.workflow(name="order")(block if threaded else block_on_the_loop)

    async with app, app.worker():
        run = await order.start()
        await run.result()

    (told,) = [record for record in caplog.records if "is blocked" in record.message]
    assert f"is blocked by workflow order ({run.id}). " in told.message


async def test_a_loop_that_is_free_is_not_told_of_and_one_that_goes_on_is(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    loop = asyncio.get_running_loop()
    watch = LoopWatch(loop, threading.get_ident(), "w", look_seconds=LOOK)
    thread = threading.Thread(target=lambda: asyncio.run(asyncio.wait_for(watch.run(), 3)), daemon=True)
    thread.start()
    await asyncio.sleep(20 * LOOK)
    assert "event loop" not in caplog.text
    block_until(lambda: "is blocked by something that is neither" in caplog.text)
    for _ in range(100):
        if "goes on after" in caplog.text:
            break
        await asyncio.sleep(LOOK)
    else:
        pytest.fail(caplog.text)
