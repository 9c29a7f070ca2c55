"""An event loop whose time passes only when there is nothing else to do."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from kagzi.core.instant import SECOND
from kagzi.testing.clock import VirtualClock
from kagzi.testing.virtual import Deadlock, Livelock, VirtualLoop


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    loop = VirtualLoop(VirtualClock())
    yield loop
    loop.close()


def test_a_month_of_sleep_takes_no_time(loop: VirtualLoop) -> None:
    began = loop.clock.now()

    loop.run_until_complete(asyncio.sleep(30 * 86400))

    assert loop.clock.now() - began == 30 * 86400 * SECOND


def test_sleepers_wake_in_the_order_of_their_times(loop: VirtualLoop) -> None:
    woken: list[tuple[str, float]] = []

    async def sleeper(name: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        woken.append((name, loop.time()))

    async def main() -> None:
        await asyncio.gather(sleeper("c", 3), sleeper("a", 1), sleeper("b", 2))

    loop.run_until_complete(main())

    assert woken == [("a", 1.0), ("b", 2.0), ("c", 3.0)]


def test_ready_callbacks_keep_their_order(loop: VirtualLoop) -> None:
    order: list[int] = []
    for number in range(5):
        loop.call_soon(order.append, number)
    loop.call_soon(loop.stop)

    loop.run_forever()

    assert order == [0, 1, 2, 3, 4]


def test_time_stands_still_while_there_is_something_to_do(loop: VirtualLoop) -> None:
    async def main() -> float:
        for _ in range(100):
            await asyncio.sleep(0)
        return loop.time()

    assert loop.run_until_complete(main()) == 0.0


def test_timeouts_work(loop: VirtualLoop) -> None:
    async def main() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.25):
                await asyncio.Event().wait()
        return loop.time()

    assert loop.run_until_complete(main()) == 0.25


def test_waiting_for_nothing_is_an_error(loop: VirtualLoop) -> None:
    async def main() -> None:
        await loop.create_future()

    task = loop.create_task(main())
    with pytest.raises(Deadlock):
        loop.run_until_complete(task)
    task.cancel()
    loop.call_soon(loop.stop)
    loop.run_forever()


def test_a_loop_that_never_rests_is_an_error(loop: VirtualLoop) -> None:
    def again() -> None:
        loop.call_soon(again)

    again()
    with pytest.raises(Livelock):
        loop.run_forever()
