"""What is told to a run reaches its holder at once, in another process and behind a server, too."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

import kagzi
from kagzi import Kagzi, WorkflowCancelled
from tests.measures import Measures
from tests.scenarios.conftest import served

WARM_UP, TIMES = 2, 20


class Program:
    """A step that runs until it is cancelled, and says when."""

    def __init__(self, url: str) -> None:
        self.app = app = Kagzi(url)
        self.going = asyncio.Event()
        self.told_at: float | None = None

        @app.step
        async def endless() -> None:
            self.going.set()
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                self.told_at = asyncio.get_running_loop().time()
                raise

        @app.workflow
        async def stubborn() -> str:
            async with asyncio.TaskGroup() as group:
                body = group.create_task(endless())
                await kagzi.wait_signal("enough")
                body.cancel()
            return "over"

        self.stubborn = stubborn


@pytest.mark.postgres
@pytest.mark.parametrize("how", ["cancel", "signal"])
@pytest.mark.parametrize("behind_server", [False, True])
async def test_news_for_a_run_on_another_worker(
    postgres_database: str, behind_server: bool, how: str, measures: Measures
) -> None:
    async with AsyncExitStack() as stack:
        url = postgres_database
        if behind_server:
            url = await stack.enter_async_context(served(postgres_database))
        working, asking = Program(url), Program(postgres_database)
        await stack.enter_async_context(working.app)
        await stack.enter_async_context(working.app.worker())
        await stack.enter_async_context(asking.app)
        taken = [await tell(working, asking, how) for _ in range(WARM_UP + TIMES)][WARM_UP:]
    measures.nine_in_ten(f"{how}, {'through a server' if behind_server else 'embedded'}", taken, below=0.1)
    measures.hold()


async def tell(working: Program, asking: Program, how: str) -> float:
    """Returns how many seconds went by until the step heard of it."""
    working.going.clear()
    run = await asking.stubborn.start()
    async with asyncio.timeout(60):
        await working.going.wait()
    asked_at = asyncio.get_running_loop().time()
    if how == "cancel":
        assert await run.cancel()
        with pytest.raises(WorkflowCancelled):
            await run.result(timeout=60)
    else:
        await run.signal("enough")
        assert await run.result(timeout=60) == "over"
    assert working.told_at is not None
    return working.told_at - asked_at
