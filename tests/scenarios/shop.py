"""What scenarios of cancelling, terminating and repeating runs share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import kagzi
from kagzi import Kagzi, RunStatus, WorkflowFailed
from tests.scenarios.conftest import Stage


class Shop:
    """An app with a charge that takes its time and a refund that undoes it."""

    def __init__(self, stage: Stage) -> None:
        self.app = Kagzi("memory://")
        self.seen: list[str] = []
        self._stage = stage

        @self.app.step
        async def charge(seconds: float = 60) -> str:
            self.seen.append("charging")
            try:
                await asyncio.sleep(seconds)
            except asyncio.CancelledError:
                self.seen.append("charge cancelled")
                raise
            self.seen.append("charged")
            return "paid"

        @self.app.step
        async def refund() -> str:
            self.seen.append("refunded")
            return "back"

        self.charge, self.refund = charge, refund

    def run(self, main: Callable[[], Awaitable[Any]], **options: int) -> Any:
        return self._stage.run(self.app, main, **options)


async def ended(run: kagzi.Handle[Any], timeout: float = 120) -> RunStatus:
    try:
        await run.result(timeout=timeout)
    except WorkflowFailed:
        pass
    return await run.status()


async def becomes(run: kagzi.Handle[Any], status: RunStatus) -> None:
    async with asyncio.timeout(60):
        while await run.status() is not status:
            await asyncio.sleep(0.01)
