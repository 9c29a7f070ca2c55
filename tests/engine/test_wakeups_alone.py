"""Every wake-up by itself, with the pulse and the repair of lines off: they would find later what was missed."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import kagzi
from kagzi import Handle, Kagzi, Limit, RunStatus
from kagzi.engine.limits import Limits
from kagzi.engine.pulse import Pulse
from kagzi.sdk.debounce import Debounce
from kagzi.testing import run_virtually

SOON = 60.0  # virtual seconds; whatever else would find a run comes much later
LATER = 3600.0


class Shop:
    """What is woken: workflows of one app, with a worker for two runs at a time."""

    def __init__(self) -> None:
        self.app = app = Kagzi("memory://")
        self.finish: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self.fails = True

        @app.step
        async def work(name: str) -> None:
            await self.finish[name].wait()

        @app.workflow
        async def order(number: int = 1) -> int:
            return number

        @app.workflow
        async def busy(name: str) -> str:
            await work(name)
            return name

        @app.workflow(version="2")
        async def moved() -> str:
            return "2"

        @app.workflow(concurrency=Limit(1, key="tenant"))
        async def index(document: str, tenant: str) -> str:
            await work(document)
            return document

        @app.workflow
        async def told() -> int:
            return await kagzi.wait_signal("go", int)

        @app.workflow
        async def sleeps() -> None:
            await asyncio.sleep(LATER)

        @app.workflow
        async def family() -> str:
            return await (await busy.spawn("child")).result()

        @app.workflow(retry=None)
        async def broken() -> str:
            if self.fails:
                raise ValueError("not yet")
            return "mended"

        self.order, self.busy, self.moved, self.index = order, busy, moved, index
        self.told, self.sleeps, self.family, self.broken = told, sleeps, family, broken

    async def ends(self, run: Handle[Any]) -> Any:
        """It goes on soon, without anybody looking for it."""
        return await asyncio.wait_for(run.result(), SOON)

    async def waits(self, run: Handle[Any], *statuses: RunStatus) -> None:
        await asyncio.sleep(SOON)
        assert await run.status() in (statuses or (RunStatus.PENDING,))


async def a_queue_is_resumed(shop: Shop) -> None:
    await shop.app.queues.pause("default")
    run = await shop.order.start()
    await shop.waits(run)
    await shop.app.queues.resume("default")
    await shop.ends(run)


async def a_workflow_is_resumed(shop: Shop) -> None:
    await shop.app.limits.pause(workflow="order")
    run = await shop.order.start()
    await shop.waits(run)
    await shop.app.limits.resume(workflow="order")
    await shop.ends(run)


async def a_namespace_is_resumed(shop: Shop) -> None:
    await shop.app.limits.pause(everything=True)
    run = await shop.order.start()
    await shop.waits(run)
    await shop.app.limits.resume(everything=True)
    await shop.ends(run)


async def a_limit_is_raised(shop: Shop) -> None:
    await shop.app.limits.set(workflow="busy", concurrency=1)
    await shop.busy.start("one")
    run = await shop.busy.start("two")
    await shop.waits(run)
    shop.finish["two"].set()
    await shop.app.limits.set(workflow="busy", concurrency=2)
    await shop.ends(run)


async def a_slot_of_a_limit_is_free(shop: Shop) -> None:
    await shop.index.start("one", "a")
    run = await shop.index.start("two", "a")
    await shop.waits(run)
    shop.finish["two"].set()
    shop.finish["one"].set()
    await shop.ends(run)


async def a_slot_is_left_by_a_join(shop: Shop) -> None:
    at_once = shop.index.options(debounce=Debounce("1s", key="document"))
    await shop.index.start("first", "a")
    await at_once.start("joined", "a")
    await asyncio.sleep(2)
    run = await shop.index.start("behind it", "a")
    shop.finish["behind it"].set()
    await shop.waits(run)  # both are held for the first one's slot
    await shop.busy.start("other")
    await shop.busy.options(priority=10).start("another")  # gets the first one's place in the worker
    shop.finish["first"].set()
    await shop.waits(run)
    await shop.index.options(debounce=Debounce("1h", key="document")).start("joined", "b")
    shop.finish["other"].set()
    await shop.ends(run)


async def a_run_is_moved(shop: Shop) -> None:
    run = await shop.moved.options(version="1").start()
    await shop.waits(run)
    await shop.app.move_runs("moved", from_version="1", to_version="2")
    assert await shop.ends(run) == "2"


async def a_schedule_is_triggered(shop: Shop) -> None:
    schedule = await shop.app.schedules.create("yearly", shop.order, 1, cron="@yearly")
    await asyncio.sleep(SOON)
    await shop.ends(await schedule.trigger())


async def a_signal_comes(shop: Shop) -> None:
    run = await shop.told.start()
    await shop.waits(run, RunStatus.SLEEPING)
    await run.signal("go", 5)
    assert await shop.ends(run) == 5


async def a_sleeper_is_woken(shop: Shop) -> None:
    run = await shop.sleeps.start()
    await shop.waits(run, RunStatus.SLEEPING)
    await run.wake()
    await shop.ends(run)


async def a_sleeper_is_cancelled(shop: Shop) -> None:
    run = await shop.sleeps.start()
    await shop.waits(run, RunStatus.SLEEPING)
    await run.cancel()
    with pytest.raises(kagzi.WorkflowCancelled):
        await shop.ends(run)


async def a_child_ends(shop: Shop) -> None:
    run = await shop.family.start()
    await shop.waits(run, RunStatus.SLEEPING)
    shop.finish["child"].set()
    assert await shop.ends(run) == "child"


async def a_run_is_retried(shop: Shop) -> None:
    run = await shop.broken.start()
    with pytest.raises(kagzi.WorkflowFailed):
        await shop.ends(run)
    shop.fails = False
    assert await shop.ends(await run.retry()) == "mended"


async def a_delay_is_over(shop: Shop) -> None:
    run = await shop.order.options(delay="30s").start()
    await shop.ends(run)


WAKES = (
    a_queue_is_resumed,
    a_workflow_is_resumed,
    a_namespace_is_resumed,
    a_limit_is_raised,
    a_slot_of_a_limit_is_free,
    a_slot_is_left_by_a_join,
    a_run_is_moved,
    a_schedule_is_triggered,
    a_signal_comes,
    a_sleeper_is_woken,
    a_sleeper_is_cancelled,
    a_child_ends,
    a_run_is_retried,
    a_delay_is_over,
)


@pytest.mark.parametrize("scene", WAKES)
def test_a_run_goes_on_at_once_when(scene: Callable[[Shop], Awaitable[None]], monkeypatch: pytest.MonkeyPatch) -> None:
    shop = Shop()

    async def nothing(*_: Any) -> bool:
        return False

    async def main() -> None:
        await asyncio.sleep(1)  # a first look says what time it is
        monkeypatch.setattr(Pulse, "_look", nothing)
        monkeypatch.setattr(Limits, "repair", nothing)
        await scene(shop)

    run_virtually(shop.app, main, concurrency=2)
